from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rl_training.models import MLPActorCritic
from rl_training.models.fast.acting import NumpyActorCritic
from rl_training.models.mlp import ActivationName

ACTIVATIONS: list[ActivationName] = ["tanh", "relu", "elu", "silu"]


def network(**settings: Any) -> MLPActorCritic:
    """A network whose outputs depend on all of its parameters, unlike the cautious initial one."""
    settings = {"hidden_sizes": (16, 8), "generator": torch.Generator().manual_seed(1)} | settings
    net = MLPActorCritic(5, 3, orthogonal=False, **settings)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(3.0)
    return net


def features(rows: int = 7, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(rows, 5, generator=torch.Generator().manual_seed(2))


def assert_numpy_equals_torch(
    fast: NumpyActorCritic, net: MLPActorCritic, inputs: torch.Tensor, tolerance: float
) -> None:
    params, values = net(inputs)
    numpy_params, numpy_values = fast(inputs.numpy())
    np.testing.assert_allclose(numpy_params, params.detach().numpy(), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(numpy_values, values.detach().numpy(), rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(fast.value(inputs.numpy()), numpy_values)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("hidden_sizes", [(), (16,), (16, 8)])
def test_numpy_equals_torch(activation: ActivationName, shared: bool, hidden_sizes: tuple[int, ...]) -> None:
    net = network(activation=activation, shared=shared, hidden_sizes=hidden_sizes)
    assert_numpy_equals_torch(NumpyActorCritic(net), net, features(), 1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_numpy_equals_torch_on_large_inputs_without_a_warning(activation: ActivationName) -> None:
    net = network(activation=activation)
    assert_numpy_equals_torch(NumpyActorCritic(net), net, features(scale=200.0), 1e-4)


def test_numpy_leaves_its_input_alone() -> None:
    inputs = features().numpy()
    before = inputs.copy()
    NumpyActorCritic(network(hidden_sizes=()))(inputs)
    NumpyActorCritic(network(activation="relu"))(inputs)
    np.testing.assert_array_equal(inputs, before)


@pytest.mark.parametrize("shared", [False, True])
def test_numpy_sees_parameters_that_change_in_place(shared: bool) -> None:
    net = network(shared=shared)
    fast = NumpyActorCritic(net)
    before = fast(features().numpy())
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1)
    assert fast.current
    assert not np.allclose(fast(features().numpy())[0], before[0])
    assert_numpy_equals_torch(fast, net, features(), 1e-5)


def test_a_recast_network_makes_the_views_stale_and_new_ones_exact() -> None:
    net = network()
    fast = NumpyActorCritic(net)
    net.double()
    assert not fast.current
    assert_numpy_equals_torch(NumpyActorCritic(net), net, features().double(), 1e-12)


def test_loading_a_state_keeps_the_views_current() -> None:
    net, other = network(), network(generator=torch.Generator().manual_seed(9))
    fast = NumpyActorCritic(net)
    net.load_state_dict(other.state_dict())
    assert fast.current
    assert_numpy_equals_torch(fast, other, features(), 1e-5)


def orthogonality(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The Gram matrix over the shorter side and the identity of its size."""
    gram = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
    return gram, torch.eye(len(gram))


@pytest.mark.parametrize("shared", [False, True])
def test_orthogonal_weights_have_their_gains_and_zero_biases(shared: bool) -> None:
    net = MLPActorCritic(6, 3, (16, 8), shared=shared)
    bodies = [net.actor_body] if net.critic_body is None else [net.actor_body, net.critic_body]
    gains = {layer: 2.0 for body in bodies for layer in body if isinstance(layer, nn.Linear)}
    gains |= {net.actor_head: 0.01**2, net.critic_head: 1.0}
    assert len(gains) == (4 if shared else 6)
    for layer, gain in gains.items():
        gram, identity = orthogonality(layer.weight)
        torch.testing.assert_close(gram / gain, identity, rtol=0, atol=1e-4)
        assert not layer.bias.any()


def test_uniform_weights_stay_within_one_over_the_root_of_their_inputs() -> None:
    net = MLPActorCritic(25, 3, (400,), orthogonal=False)
    for layer in (net.actor_body[0], net.actor_head):
        assert isinstance(layer, nn.Linear)
        bound = layer.in_features**-0.5
        for parameter in (layer.weight, layer.bias):
            assert parameter.abs().max() <= bound
            assert parameter.std() > 0.3 * bound


@pytest.mark.parametrize("orthogonal", [False, True])
def test_initial_weights_come_from_the_generator_alone(orthogonal: bool) -> None:
    def weights(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        net = MLPActorCritic(4, 2, (8,), orthogonal=orthogonal, generator=generator)
        return torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])

    first = weights(0)
    torch.rand(3)  # moves the global generator
    assert torch.equal(first, weights(0))
    assert not torch.equal(first, weights(1))


def test_actor_and_critic_are_two_networks_unless_shared() -> None:
    apart, shared = network(), network(shared=True)
    for net, expected in ((apart, None), (shared, True)):
        _, values = net(features())
        (gradient,) = torch.autograd.grad(values.sum(), net.actor_body[0].weight, allow_unused=True)
        assert (gradient is None) == (expected is None)
    assert shared.critic_body is None


def test_forward_shapes() -> None:
    params, values = network()(features(4))
    assert params.shape == (4, 3)
    assert values.shape == (4,)


@pytest.mark.parametrize(
    ("input_size", "action_size", "hidden_sizes", "culprit"),
    [
        (0, 2, (8,), "0 and 2"),
        (4, 0, (8,), "4 and 0"),
        (-1, 2, (8,), "-1 and 2"),
        (4, 2, (8, 0), r"\[4, 8, 0\]"),
    ],
)
def test_senseless_sizes_fail_fast(
    input_size: int, action_size: int, hidden_sizes: tuple[int, ...], culprit: str
) -> None:
    with pytest.raises(ValueError, match=f"positive, got {culprit}"):
        MLPActorCritic(input_size, action_size, hidden_sizes)
