"""State-dependent exploration against known answers, torch's distributions and autograd."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from rl_training.algorithms.optimizers import FlatAdam
from rl_training.models.autograd_network import AutogradNetwork
from rl_training.models.fast.acting import numpy_twin
from rl_training.models.fast.backend import NUMPY, Backend, TorchBackend
from rl_training.models.fast.heads import squashed_state_dependent
from rl_training.models.fast.networks import explicit_actor_critic, explicit_mlp
from rl_training.models.mlp import MLPActorCritic, mlp_with_head
from rl_training.models.state_dependent import (
    LEAST_VARIANCE,
    MEAN_LIMIT,
    LinearAndFeatures,
    StateDependentHead,
    make_linear_and_features,
)

pytestmark = pytest.mark.usefixtures("float64")
ROWS, ACTIONS, FEATURES = 9, 2, 4


@pytest.fixture(params=["arrays", "tensors"])
def arrays(request: Any) -> bool:
    """Run on arrays, as on the CPU, or on tensors, as on any other device."""
    return bool(request.param == "arrays")


def backend(arrays: bool) -> Backend:
    return NUMPY if arrays else TorchBackend()


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def given(tensor: Tensor, arrays: bool) -> Any:
    return tensor.numpy() if arrays else tensor


def make_head(log_std_init: float = -0.5, spread: float = 0.3) -> StateDependentHead:
    head = StateDependentHead(ACTIONS, FEATURES, log_std_init)
    with torch.no_grad():
        head.log_std += numbers(FEATURES, ACTIONS, seed=7, scale=spread)
    return head


def normal(head: StateDependentHead, params: Tensor) -> Normal:
    """The distribution over all matrices, written down anew."""
    means, features = params[:, :ACTIONS], params[:, ACTIONS:]
    variances = torch.stack(
        [(features**2 * torch.exp(head.log_std[:, column]) ** 2).sum(1) for column in range(ACTIONS)], 1
    )
    return Normal(means, (variances + LEAST_VARIANCE).sqrt())


def test_a_row_that_was_computed_by_hand() -> None:
    head = StateDependentHead(1, 2, math.log(0.5))
    params, actions = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[0.0]])
    logprobs, entropies = head.logprob_entropy(params, actions)
    # (2² + 4²) * 0.5² = 5
    assert entropies.item() == pytest.approx(0.5 * math.log(2 * math.pi * math.e * 5), abs=1e-6)
    assert logprobs.item() == pytest.approx(-0.5 / 5 - 0.5 * math.log(2 * math.pi * 5), abs=1e-6)


def test_log_probabilities_and_entropies_are_those_of_torchs_normal() -> None:
    head, params, actions = make_head(), numbers(ROWS, ACTIONS + FEATURES), numbers(ROWS, ACTIONS, seed=1)
    reference = normal(head, params)
    logprobs, entropies = head.logprob_entropy(params, actions)
    torch.testing.assert_close(logprobs, reference.log_prob(actions).sum(1))
    torch.testing.assert_close(entropies, reference.entropy().sum(1))


def test_noise_of_many_matrices_has_the_deviation_that_log_probabilities_are_of() -> None:
    head, params = make_head(), numbers(1, ACTIONS + FEATURES)
    matrices = head.matrices(200_000, np.random.default_rng(0))
    noise = head.noise_by(params.expand(len(matrices), -1).numpy(), matrices)
    np.testing.assert_allclose(noise.std(0), normal(head, params).stddev[0].detach(), rtol=0.01)
    np.testing.assert_allclose(noise.mean(0), 0.0, atol=0.01)
    fresh = head.fresh_noise(params.expand(200_000, -1).numpy(), np.random.default_rng(1))
    np.testing.assert_allclose(fresh.std(0), normal(head, params).stddev[0].detach(), rtol=0.01)


def test_noise_is_features_times_the_matrix_of_the_row() -> None:
    head, params = make_head(), numbers(ROWS, ACTIONS + FEATURES).numpy()
    matrices = head.matrices(ROWS, np.random.default_rng(0))
    drawn = np.random.default_rng(0).standard_normal((ROWS, FEATURES, ACTIONS))
    np.testing.assert_allclose(matrices, np.exp(head.log_std.detach().numpy()) * drawn)
    for row, noise in enumerate(head.noise_by(params, matrices)):
        np.testing.assert_allclose(noise, params[row, ACTIONS:] @ matrices[row])


def test_acting_in_numpy_says_what_learning_in_torch_says() -> None:
    head, params = make_head(), numbers(ROWS, ACTIONS + FEATURES)
    noise = head.noise_by(params.numpy(), head.matrices(ROWS, np.random.default_rng(0)))
    for actions, logprobs in (
        head.with_noise(params.numpy(), noise),
        head.sample(params.numpy(), np.random.default_rng(1)),
    ):
        expected, _ = head.logprob_entropy(params, torch.from_numpy(actions))
        np.testing.assert_allclose(logprobs, expected.detach(), rtol=1e-12)
    means = params[:, :ACTIONS].numpy()
    np.testing.assert_array_equal(head.with_noise(params.numpy(), noise)[0], means + noise)
    np.testing.assert_array_equal(head.mode(params.numpy()), means)


def test_features_do_not_learn_from_the_deviation_of_an_actor_critic() -> None:
    head, params = make_head(), numbers(ROWS, ACTIONS + FEATURES).requires_grad_()
    parts = head.logprob_entropy(params, numbers(ROWS, ACTIONS, seed=1))
    by_params, by_log_std = torch.autograd.grad(sum(part.sum() for part in parts), [params, head.log_std])
    assert by_params[:, :ACTIONS].abs().min() > 0
    assert by_params[:, ACTIONS:].abs().max() == 0
    assert by_log_std.abs().min() > 0


def test_features_of_zero_leave_a_deviation_that_is_no_zero() -> None:
    head, params = make_head(), torch.zeros(1, ACTIONS + FEATURES)
    logprobs, entropies = head.logprob_entropy(params, torch.zeros(1, ACTIONS))
    assert logprobs.item() == pytest.approx(-ACTIONS * 0.5 * math.log(2 * math.pi * LEAST_VARIANCE))
    assert entropies.isfinite().all()


# ------------------------------------------------------------------------------------------------- squashed


def squashed_reference(params: Tensor, noise: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
    """One matrix for all rows, and all gradients by autograd."""
    means, features = params[:, :ACTIONS].clamp(-MEAN_LIMIT, MEAN_LIMIT), params[:, ACTIONS:]
    raw = means + features @ (log_std.exp() * noise)
    deviations = (features**2 @ log_std.exp() ** 2 + LEAST_VARIANCE).sqrt()
    actions = raw.tanh()
    logprobs = Normal(means, deviations).log_prob(raw) - torch.log1p(-(actions**2))
    return actions, logprobs.sum(1)


@pytest.mark.parametrize("on_arrays", [True, False])
@pytest.mark.parametrize("scalar", [True, False])
def test_a_squashed_sample_is_differentiated_as_by_autograd(on_arrays: bool, scalar: bool) -> None:
    head, noise = make_head(), numbers(FEATURES, ACTIONS, seed=2)
    params = numbers(ROWS, ACTIONS + FEATURES, seed=1, scale=1.5)
    assert (params[:, :ACTIONS].abs() > MEAN_LIMIT).any(), "some means must be beyond their bounds"
    by_actions, by_logprob = numbers(ROWS, ACTIONS, seed=3), numbers(ROWS, seed=4)
    if scalar:
        by_logprob = torch.full((ROWS,), 0.3)
    log_std = head.log_std.detach()
    actions, logprobs, back = squashed_state_dependent(
        *(given(part, on_arrays) for part in (params, noise, log_std)), backend(on_arrays)
    )
    ours = back(given(by_actions, on_arrays), 0.3 if scalar else given(by_logprob, on_arrays))
    leaves = [params.clone().requires_grad_(), head.log_std]
    expected = squashed_reference(leaves[0], noise, leaves[1])
    gradients = torch.autograd.grad(expected, leaves, [by_actions, by_logprob])
    for mine, theirs in zip((actions, logprobs, *ours), (*expected, *gradients), strict=True):
        torch.testing.assert_close(torch.as_tensor(mine), theirs.detach(), rtol=1e-9, atol=1e-9)


def test_single_precision_stays_single_when_squashed() -> None:
    parts = [numbers(*shape).float().numpy() for shape in ((ROWS, ACTIONS + FEATURES), (FEATURES, ACTIONS))]
    actions, logprobs, back = squashed_state_dependent(*parts, parts[1], NUMPY)
    found = [actions, logprobs, *back(actions, 0.1)]
    assert {part.dtype for part in found} == {np.dtype(np.float32)}


# ------------------------------------------------------------------------------------------------- networks


def gradients(optimizer: FlatAdam) -> Tensor:
    found = optimizer.gradient.clone()
    optimizer.gradient.fill_(99.0)
    return found


@pytest.mark.parametrize("hidden", [(5, FEATURES), (FEATURES,), ()])
def test_a_chain_hands_on_its_features_and_takes_their_gradient_back(hidden: Any, arrays: bool) -> None:
    sizes = (3, *hidden, ACTIONS + (hidden[-1] if hidden else 3))
    network = mlp_with_head(
        sizes, "relu", generator=torch.Generator().manual_seed(0), make_last=make_linear_and_features
    )
    assert isinstance(network[-1], LinearAndFeatures)
    optimizer = FlatAdam(network.parameters())
    chain = explicit_mlp(network, optimizer.gradient_of, backend(arrays))
    by_autograd = AutogradNetwork(network, network.parameters(), optimizer.gradient_of)
    assert chain is not None
    inputs, upstream = numbers(ROWS, 3), numbers(ROWS, sizes[-1], seed=1)
    features = nn.Sequential(*list(network)[:-1])(inputs)
    outputs = network(inputs)
    torch.testing.assert_close(outputs[:, ACTIONS:], features)
    torch.testing.assert_close(torch.as_tensor(chain.forward(given(inputs, arrays))), outputs.detach())
    chain.backward(given(upstream, arrays))
    ours = gradients(optimizer)
    by_autograd.forward(inputs)
    by_autograd.backward(upstream)
    torch.testing.assert_close(ours, gradients(optimizer))
    twin = numpy_twin(network)
    assert twin is not None
    np.testing.assert_allclose(twin(inputs.numpy()), outputs.detach(), atol=1e-12)


class Rows:
    """Stands in for a batch."""

    def __init__(self, obs: Any) -> None:
        self.obs = obs


@pytest.mark.parametrize("hidden", [(5, FEATURES), ()])
@pytest.mark.parametrize("shared", [True, False])
def test_an_actor_critic_hands_on_its_features(hidden: Any, shared: bool, arrays: bool) -> None:
    size = ACTIONS + (hidden[-1] if hidden else 3)
    network = MLPActorCritic(3, size, hidden, shared=shared, make_last=make_linear_and_features)
    optimizer = FlatAdam(network.parameters())
    explicitly = explicit_actor_critic(network, optimizer.gradient_of, backend(arrays))
    by_autograd = AutogradNetwork(network, network.parameters(), optimizer.gradient_of)
    assert explicitly is not None
    inputs, upstream = numbers(ROWS, 3), (numbers(ROWS, size, seed=1), numbers(ROWS, seed=2))
    found = explicitly.forward(Rows(given(inputs, arrays)))
    for mine, theirs in zip(found, network(inputs), strict=True):
        torch.testing.assert_close(torch.as_tensor(mine), theirs.detach())
    explicitly.backward(*(given(part.clone(), arrays) for part in upstream))
    ours = gradients(optimizer)
    by_autograd.forward(inputs)
    by_autograd.backward(*upstream)
    torch.testing.assert_close(ours, gradients(optimizer))
    twin = numpy_twin(network)
    assert twin is not None
    for mine, theirs in zip(twin(inputs.numpy()), network(inputs), strict=True):
        np.testing.assert_allclose(mine, theirs.detach(), atol=1e-12)
