"""Chains that know their backward give what autograd gives, on arrays and on tensors."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rl_training.algorithms.optimizers import FlatAdam
from rl_training.core.timing import heard_by
from rl_training.models.autograd_network import AutogradCritics, AutogradNetwork
from rl_training.models.ensemble import EnsembleMLP
from rl_training.models.fast.backend import NUMPY, Backend, TorchBackend
from rl_training.models.fast.chain import Chain
from rl_training.models.fast.layers import linear_layers
from rl_training.models.fast.networks import (
    explicit_actor_critic,
    explicit_critics,
    explicit_mlp,
    in_parts,
)
from rl_training.models.mlp import ACTIVATIONS, MLPActorCritic, mlp_with_head
from rl_training.models.q_network import QNetwork

pytestmark = pytest.mark.usefixtures("float64")
ROWS = 7


@pytest.fixture(params=["arrays", "tensors"])
def arrays(request: Any) -> bool:
    """Run on arrays, as on the CPU, or on tensors, as on any other device."""
    return bool(request.param == "arrays")


def backend(arrays: bool) -> Backend:
    return NUMPY if arrays else TorchBackend()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=generator(seed))


def given(tensor: Tensor, arrays: bool) -> Any:
    return tensor.numpy() if arrays else tensor


def assert_equal(ours: Any, theirs: Tensor) -> None:
    torch.testing.assert_close(torch.as_tensor(ours), theirs.detach(), rtol=1e-12, atol=1e-12)


def gradients(optimizer: FlatAdam) -> Tensor:
    """Return what was written, and leave something that must be written over."""
    found = optimizer.gradient.clone()
    optimizer.gradient.fill_(99.0)
    return found


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("sizes", [(3, 5, 4, 2), (3, 2), (2, 6, 1)])
def test_a_chain_goes_forwards_and_backwards(activation: Any, sizes: tuple[int, ...], arrays: bool) -> None:
    network = mlp_with_head(sizes, activation, generator=generator())
    optimizer = FlatAdam(network.parameters())
    chain, module = (
        explicit_mlp(network, optimizer.gradient_of, backend(arrays)),
        AutogradNetwork(network, network.parameters(), optimizer.gradient_of),
    )
    assert chain is not None
    for seed in range(2):  # the second time into buffers that were used
        inputs, upstream = numbers(ROWS, sizes[0], seed=seed), numbers(ROWS, sizes[-1], seed=seed + 9)
        outputs = chain.forward(given(inputs, arrays))
        assert isinstance(outputs, np.ndarray) is arrays
        assert_equal(outputs, network(inputs))
        chain.backward(given(upstream.clone(), arrays))
        ours = gradients(optimizer)
        module.forward(inputs)
        module.backward(upstream)
        assert_equal(ours, gradients(optimizer))


def test_only_the_first_rows_may_count(arrays: bool) -> None:
    network = mlp_with_head((3, 5, 4, 2), "silu", generator=generator())
    optimizer = FlatAdam(network.parameters())
    chain = explicit_mlp(network, optimizer.gradient_of, backend(arrays))
    assert chain is not None
    first, others, upstream = numbers(ROWS, 3), numbers(ROWS, 3, seed=2), numbers(ROWS, 2, seed=3)
    outputs, other_outputs = chain.forward_both(given(first, arrays), given(others, arrays))
    assert_equal(outputs(), network(first))
    assert_equal(other_outputs, network(others))
    chain.backward(given(upstream, arrays))
    ours = gradients(optimizer)
    expected = torch.autograd.grad(network(first), list(network.parameters()), upstream)
    assert_equal(ours, torch.cat([part.reshape(-1) for part in expected]))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "silu"])
def test_actor_and_critic_share_a_body_or_not(shared: bool, activation: Any, arrays: bool) -> None:
    critic_sizes = None if shared else (6,)
    network = MLPActorCritic(
        3, 2, (5, 4), critic_sizes=critic_sizes, activation=activation, shared=shared, generator=generator()
    )
    optimizer = FlatAdam(network.parameters())
    known = explicit_actor_critic(network, optimizer.gradient_of, backend(arrays))
    assert known is not None

    class Rows:
        obs: Any

    rows, inputs = Rows(), numbers(ROWS, 3)
    rows.obs = given(inputs, arrays)
    params, values = known.forward(rows)
    expected = network(inputs)
    assert_equal(params, expected[0])
    assert_equal(values, expected[1])
    upstream = [numbers(ROWS, 2, seed=4), numbers(ROWS, seed=5)]
    known.backward(*(given(part.clone(), arrays) for part in upstream))
    found = torch.autograd.grad(expected, list(network.parameters()), upstream)
    assert_equal(gradients(optimizer), torch.cat([part.reshape(-1) for part in found]))


def critics(num_members: int, activation: Any, *, layer_norm: bool) -> EnsembleMLP:
    """Return critics; each member scales and shifts otherwise."""
    network = EnsembleMLP(num_members, (5, 6, 4, 1), activation, layer_norm=layer_norm, generator=generator())
    for seed, part in enumerate([*network.scales, *network.shifts]):
        part.data += 0.5 * numbers(*part.shape, seed=10 + seed)
    return network


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("members", [None, 1])
def test_critics_give_gradients_by_parameters_and_by_actions(
    members: int | None, layer_norm: bool, arrays: bool
) -> None:
    network = critics(3, "relu", layer_norm=layer_norm)
    optimizer = FlatAdam(network.parameters())
    known = explicit_critics(network, optimizer.gradient_of, backend(arrays), members=members)
    module = AutogradCritics(
        lambda *inputs: network(*inputs, members=members), network.parameters(), optimizer.gradient_of
    )
    assert known is not None
    inputs, actions = numbers(ROWS, 3), numbers(ROWS, 2, seed=2)
    upstream = numbers(members or 3, ROWS, seed=3)
    assert_equal(
        known.forward(given(inputs, arrays), given(actions, arrays)), module.forward(inputs, actions)
    )
    before = gradients(optimizer).fill_(99.0)
    by_actions = known.action_gradient(given(upstream, arrays))
    assert_equal(by_actions, module.action_gradient(upstream))
    assert torch.equal(optimizer.gradient, before), "no parameter's gradient is written"
    if members is None:
        module.forward(inputs, actions)
        module.backward(upstream)
        expected = gradients(optimizer)
        known.backward(given(upstream, arrays))
        assert_equal(gradients(optimizer), expected)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_rows_that_count_for_one_member_each_take_a_shorter_way(
    activation: Any, layer_norm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = critics(2, activation, layer_norm=layer_norm)
    known = explicit_critics(network)
    assert known is not None
    module = AutogradCritics(network, [], lambda _: None)
    inputs, actions = numbers(ROWS, 3), numbers(ROWS, 2, seed=2)
    which = torch.tensor([0, 1, 1, 0, 1, 1, 0])
    upstream = numbers(2, ROWS, seed=3) * (torch.arange(2)[:, None] == which)
    known.forward(inputs.numpy(), actions.numpy())
    module.forward(inputs, actions)
    monkeypatch.delattr(Chain, "input_gradient")
    assert_equal(known.action_gradient(upstream.numpy()), module.action_gradient(upstream))


def test_outputs_of_many_rows_come_in_parts(arrays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.models.fast.networks.ROWS_AT_ONCE", 3)
    network = mlp_with_head((3, 5, 2), "relu", generator=generator())
    chain = explicit_mlp(network, None, backend(arrays))
    assert chain is not None
    for rows in (2, 3, 7, 9):
        inputs = numbers(rows, 3)
        assert_equal(in_parts(chain, given(inputs, arrays), backend(arrays)), network(inputs))


def test_a_q_network_is_known_if_it_is_a_plain_chain() -> None:
    def known(**settings: Any) -> bool:
        network = QNetwork(3, 2, (5, 4), generator=generator(), **settings)
        return explicit_mlp(network, FlatAdam(network.parameters()).gradient_of) is not None

    assert known()
    assert known(outputs_per_action=5)
    assert not known(dueling=True)
    assert not known(noisy=True)


class Odd(nn.Linear):
    """Looks like a layer, and may do anything."""


@pytest.mark.parametrize(
    "modules",
    [
        [nn.Linear(3, 2, bias=False)],
        [Odd(3, 2)],
        [nn.Linear(3, 2), nn.Dropout()],
        [nn.Tanh(), nn.Linear(3, 2)],
        [nn.Linear(3, 2), nn.ELU(alpha=2.0)],
        [nn.Linear(3, 2), nn.Tanh(), nn.Tanh()],
    ],
)
def test_what_is_not_known_has_no_chain(modules: list[nn.Module]) -> None:
    assert linear_layers(modules) is None
    assert explicit_mlp(nn.Sequential()) is None


def test_a_network_with_a_frozen_layer_is_left_to_autograd() -> None:
    network = mlp_with_head((3, 5, 2), "tanh", generator=generator())
    network[0].weight.requires_grad_(False)
    assert explicit_mlp(network, FlatAdam(network.parameters()).gradient_of) is None


def test_parameters_that_outputs_do_not_depend_on_have_gradient_0() -> None:
    network = mlp_with_head((3, 5, 2), "tanh", generator=generator())
    optimizer = FlatAdam(network.parameters())
    optimizer.gradient.fill_(99.0)
    run = AutogradNetwork(lambda x: network[2](x.expand(-1, 5)), network.parameters(), optimizer.gradient_of)
    run.forward(numbers(ROWS, 1))
    run.backward(numbers(ROWS, 2))
    used = optimizer.gradient_of(network[2].weight)
    assert used is not None
    assert used.any()
    for parameter in network[0].parameters():
        place = optimizer.gradient_of(parameter)
        assert place is not None
        assert not place.any()


def test_a_network_that_cuts_itself_off_has_gradient_0() -> None:
    """Such as an encoder that looks without gradients, though its parameters could learn."""
    network = mlp_with_head((3, 5, 2), "tanh", generator=generator())
    optimizer = FlatAdam(network.parameters())
    optimizer.gradient.fill_(99.0)
    run = AutogradNetwork(lambda x: network(x).detach(), network.parameters(), optimizer.gradient_of)
    run.forward(numbers(ROWS, 3))
    run.backward(numbers(ROWS, 2))
    assert not optimizer.gradient.any()


def test_nothing_is_allocated_once_the_buffers_are_there() -> None:
    import tracemalloc

    network = mlp_with_head((8, 64, 64, 2), "relu", generator=generator())
    chain = explicit_mlp(network, FlatAdam(network.parameters()).gradient_of)
    assert chain is not None
    inputs, upstream = np.zeros((256, 8)), np.zeros((256, 2))

    def go() -> None:
        chain.forward(inputs)
        chain.backward(upstream)

    go()
    tracemalloc.start()
    go()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    go()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak - before < 4096, "one buffer of a hidden layer alone would be 128 KiB"


@pytest.mark.parametrize("shared", [False, True])
def test_a_profile_is_told_once_where_the_way_back_begins(shared: bool) -> None:
    network = MLPActorCritic(3, 2, (8,), shared=shared)
    optimizer = FlatAdam(network.parameters())
    known = explicit_actor_critic(network, optimizer.gradient_of)
    assert known is not None
    heard: list[tuple[str, bool]] = []
    params, values = known.forward(SimpleNamespace(obs=np.ones((4, 3))))
    optimizer.gradient.fill_(99.0)
    with heard_by(lambda name: heard.append((name, bool((optimizer.gradient == 99.0).all())))):
        known.backward(params.copy(), values.copy())
    assert heard == [("forward", True)]
