"""Networks with a memory that know their backward through time give what autograd gives."""

import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rl_training.algorithms.optimizers import FlatAdam
from rl_training.core.timing import heard_by
from rl_training.models.autograd_network import AutogradNetwork
from rl_training.models.cores import CELLS
from rl_training.models.fast.backend import NUMPY, Backend, TorchBackend
from rl_training.models.fast.networks import ExplicitReader, explicit_recurrent
from rl_training.models.fast.recurrent_layers import Starts
from rl_training.models.recurrent import LSTMActorCritic

pytestmark = pytest.mark.usefixtures("float64")
INPUTS, ACTIONS, SIZE = 3, 2, 5


def made(kind: Any, *, inputs: int = INPUTS, size: int = SIZE, **settings: Any) -> LSTMActorCritic:
    """Weights of all sizes, as some gates must be saturated; and biases that are not 0."""
    generator = torch.Generator().manual_seed(3)
    network = LSTMActorCritic(
        inputs, ACTIONS, (4,), core=kind, core_size=size, orthogonal=False, generator=generator, **settings
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
    return network


def sequences(
    network: LSTMActorCritic, length: int, rows: int, starts: float = 0.3, inputs: int = INPUTS
) -> Any:
    """Return rows [L * B] of sequences that go on from something; one begins at once, if any does."""
    generator = torch.Generator().manual_seed(length * rows)
    begins = torch.rand(length, rows, generator=generator) < starts
    begins[0, 0] = starts > 0
    memory = [torch.randn(rows, size, generator=generator) for size in network.memory_sizes]
    return SimpleNamespace(
        obs=torch.randn(length * rows, inputs, generator=generator),
        actions=torch.zeros(length * rows),
        memory=tuple(memory),
        extra={"episode_starts": begins.view(-1)},
    )


def as_arrays(rows: Any) -> Any:
    """Return the rows as learners hand them over on the CPU."""
    return SimpleNamespace(
        obs=rows.obs.numpy(),
        actions=rows.actions.numpy(),
        memory=tuple(part.numpy() for part in rows.memory),
        extra={name: part.numpy() for name, part in rows.extra.items()},
        tensors=lambda: rows,
    )


def by_autograd(network: LSTMActorCritic, optimizer: FlatAdam) -> AutogradNetwork:
    def run(rows: Any) -> tuple[Tensor, ...]:
        memory, starts = rows.memory, rows.extra["episode_starts"]
        return network(rows.obs, memory=memory, starts=starts)[:2]

    return AutogradNetwork(run, network.parameters(), optimizer.gradient_of)


def assert_same(known: Any, module: AutogradNetwork, optimizer: FlatAdam, rows: Any) -> None:
    """Both give the same outputs, and the same gradients for the same of the outputs."""
    expected = module.forward(rows)
    for ours, theirs in zip(known.forward(as_arrays(rows)), expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(ours), theirs, rtol=0, atol=1e-12)
    upstream = [torch.randn(part.shape, generator=torch.Generator().manual_seed(8)) for part in expected]
    found = []
    for way, given in ((module, upstream), (known, [part.numpy() for part in upstream])):
        optimizer.gradient.fill_(99.0)
        way.backward(*given)
        found.append(optimizer.gradient.clone())
    assert found[0].abs().max() > 0.1
    torch.testing.assert_close(found[1], found[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("kind", CELLS)
def test_it_goes_forwards_and_backwards_through_time(kind: Any, share: bool, layers: int) -> None:
    network = made(kind, share_core=share, core_layers=layers)
    optimizer = FlatAdam(network.parameters())
    known, module = explicit_recurrent(network, optimizer.gradient_of), by_autograd(network, optimizer)
    assert known is not None
    # of an epoch the last part has fewer rows than the others, and buffers were used before
    for length, rows in [(7, 4), (7, 3), (7, 4), (1, 4), (6, 1)]:
        for starts in (0.0, 0.3, 1.0):
            assert_same(known, module, optimizer, sequences(network, length, rows, starts))
    with torch.no_grad():
        optimizer.flat.mul_(-0.7)
    assert_same(known, module, optimizer, sequences(network, 7, 4))


@pytest.mark.parametrize("kind", CELLS)
def test_actor_and_critic_may_share_all_layers(kind: Any) -> None:
    network = made(kind, share_core=True, shared=True)
    optimizer = FlatAdam(network.parameters())
    known = explicit_recurrent(network, optimizer.gradient_of)
    assert_same(known, by_autograd(network, optimizer), optimizer, sequences(network, 7, 4))


@pytest.mark.parametrize(("share", "encoders"), [(True, 1), (False, 1), (False, 2)])
@pytest.mark.parametrize("kind", CELLS)
def test_gradients_reach_what_is_below(kind: Any, share: bool, encoders: int) -> None:
    network = made(kind, inputs=4, share_core=share)
    below = nn.ModuleList(nn.Linear(INPUTS, 4) for _ in range(encoders))
    everything = nn.ModuleList([below, network])
    optimizer = FlatAdam(everything.parameters())

    def features(rows: Any) -> tuple[Tensor, ...]:
        return tuple(encoder(rows.obs).tanh() for encoder in below)

    def run(rows: Any) -> tuple[Tensor, ...]:
        memory, starts = rows.memory, rows.extra["episode_starts"]
        return network(*features(rows), memory=memory, starts=starts)[:2]

    known = explicit_recurrent(network, optimizer.gradient_of)
    assert known is not None
    seen = AutogradNetwork(features, below.parameters(), optimizer.gradient_of)
    reader = ExplicitReader(seen, known, NUMPY)
    module = AutogradNetwork(run, everything.parameters(), optimizer.gradient_of)
    assert_same(reader, module, optimizer, sequences(network, 7, 4))

    heard: list[tuple[str, bool]] = []
    optimizer.gradient.fill_(99.0)
    with heard_by(lambda name: heard.append((name, bool((optimizer.gradient == 99.0).all())))):
        reader.backward(*reader.forward(as_arrays(sequences(network, 7, 4))))
    assert heard == [("forward", True)], "a profile is told where the way back begins, and once"


@pytest.mark.parametrize("kind", CELLS)
def test_gates_that_are_shut_overflow_nothing(kind: Any) -> None:
    network = made(kind)
    with torch.no_grad():
        for parameter in network.core.parameters():
            parameter.mul_(1e6)
    optimizer = FlatAdam(network.parameters())
    known = explicit_recurrent(network, optimizer.gradient_of)
    assert known is not None
    rows = as_arrays(sequences(network, 7, 4))
    params, values = known.forward(rows)
    known.backward(params, values)
    assert optimizer.gradient.isfinite().all()


class Odd(LSTMActorCritic):
    """Looks like one of ours, and may do anything."""


def test_what_is_not_known_is_left_to_autograd() -> None:
    def known(network: nn.Module, backend: Backend = NUMPY) -> bool:
        return explicit_recurrent(network, FlatAdam(network.parameters()).gradient_of, backend) is not None

    frozen = made("gru", share_core=False)
    assert isinstance(frozen.critic_core, nn.Module)
    next(frozen.critic_core.parameters()).requires_grad_(False)
    assert known(made("lstm"))
    assert not known(frozen)
    assert not known(Odd(INPUTS, ACTIONS))
    assert not known(LSTMActorCritic(INPUTS, ACTIONS, core=None))
    assert not known(nn.Sequential(nn.Linear(INPUTS, ACTIONS)))
    assert not known(made("lstm"), TorchBackend()), "on another device"


@pytest.mark.parametrize("kind", CELLS)
def test_nothing_is_allocated_once_the_buffers_are_there(kind: Any) -> None:
    network = made(kind, size=64, share_core=False)
    known = explicit_recurrent(network, FlatAdam(network.parameters()).gradient_of)
    assert known is not None
    rows = as_arrays(sequences(network, 16, 16))
    known.forward(rows)
    (layer,), upstream = known.layers, [np.zeros((256, 64))] * 2

    def go() -> None:
        layer.forward(*layer_inputs)
        layer.backward(upstream)

    parts = list(rows.memory)
    each = len(parts) // 2
    layer_inputs = ([rows.obs] * 2, [parts[:each], parts[each:]], Starts(rows.extra["episode_starts"], 16))
    go()
    tracemalloc.start()
    go()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    go()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak - before < 2**17, "the outputs of all steps would be 256 KiB; NumPy has buffers of its own"
