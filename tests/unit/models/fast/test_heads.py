"""Derivatives by hand equal autograd's, for arrays and tensors, and keep the type of their numbers."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.models.fast.backend import NUMPY, Backend, TorchBackend
from rl_training.models.fast.heads import action_evaluator, sigmoid, softplus, squashed_gaussian
from rl_training.models.heads import (
    BernoulliHead,
    CategoricalHead,
    GaussianHead,
    MultiCategoricalHead,
    squashed_gaussian_sample,
)
from rl_training.models.state_dependent import StateDependentHead

ROWS = 9
HEADS: dict[str, Any] = {
    "categorical": lambda: CategoricalHead(4),
    "two choices": lambda: CategoricalHead(2),
    "multi-categorical": lambda: MultiCategoricalHead([3, 2, 4]),
    "bernoulli": lambda: BernoulliHead(3),
    "gaussian": lambda: GaussianHead(3, -0.4),
    "state-dependent": lambda: StateDependentHead(3, 5, -0.4),
}


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def actions_of(head: Any) -> Tensor:
    rng = np.random.default_rng(0)
    actions = torch.from_numpy(head.sample(np.asarray(numbers(ROWS, head.num_params)), rng)[0])
    return actions.to(torch.get_default_dtype()) if actions.is_floating_point() else actions


def backend(arrays: bool) -> Backend:
    return NUMPY if arrays else TorchBackend()


def given(tensor: Tensor, arrays: bool) -> Any:
    return tensor.numpy() if arrays else tensor


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("arrays", [True, False])
@pytest.mark.parametrize("entropy_counts", [True, False])
@pytest.mark.parametrize("scale", [1.0, 40.0])
@pytest.mark.parametrize("name", HEADS)
def test_every_head_evaluates_actions_as_by_autograd(
    name: str, scale: float, entropy_counts: bool, arrays: bool
) -> None:
    head = HEADS[name]()
    params, actions = numbers(ROWS, head.num_params, seed=1, scale=scale), actions_of(head)
    by_logprob, by_entropy = numbers(ROWS, seed=2), numbers(ROWS, seed=3)
    evaluate = action_evaluator(head, backend(arrays))
    assert evaluate is not None
    logprobs, entropies, back = evaluate(given(params, arrays), given(actions, arrays))
    ours = back(given(by_logprob, arrays), given(by_entropy, arrays) if entropy_counts else None)

    leaf = params.clone().requires_grad_()
    expected = head.logprob_entropy(leaf, actions)
    learned = list(head.parameters())
    upstream = [by_logprob, by_entropy if entropy_counts else torch.zeros(ROWS)]
    gradients = torch.autograd.grad(expected, [leaf, *learned], upstream)
    for mine, theirs in zip((logprobs, entropies, *ours), (*expected, *gradients), strict=True):
        torch.testing.assert_close(torch.as_tensor(mine), theirs.detach(), rtol=1e-9, atol=1e-11)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("arrays", [True, False])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_a_squashed_gaussian_is_differentiated_as_by_autograd(scale: float, arrays: bool) -> None:
    params, noise = numbers(ROWS, 6, seed=1, scale=scale), numbers(ROWS, 3, seed=2)
    by_actions, by_logprob = numbers(ROWS, 3, seed=3), numbers(ROWS, seed=4)
    actions, logprobs, back = squashed_gaussian(given(params, arrays), given(noise, arrays), backend(arrays))
    (ours,) = back(given(by_actions, arrays), given(by_logprob, arrays))
    leaf = params.clone().requires_grad_()
    expected = squashed_gaussian_sample(leaf, noise)
    (gradient,) = torch.autograd.grad(expected, leaf, [by_actions, by_logprob])
    for mine, theirs in zip((actions, logprobs, ours), (*expected, gradient), strict=True):
        torch.testing.assert_close(torch.as_tensor(mine), theirs.detach(), rtol=1e-8, atol=1e-10)
    if scale > 1:
        assert (params[:, 3:].abs() > 20).any(), "some deviations must be clipped"


@pytest.mark.parametrize("name", HEADS)
def test_single_precision_stays_single(name: str) -> None:
    """One number in double precision, and every product after it would be."""
    head = HEADS[name]()
    evaluate = action_evaluator(head, NUMPY)
    assert evaluate is not None
    logprobs, entropies, back = evaluate(numbers(ROWS, head.num_params).numpy(), actions_of(head).numpy())
    found = [logprobs, entropies, *back(numbers(ROWS).numpy(), -0.01), *back(numbers(ROWS).numpy(), None)]
    assert {part.dtype for part in found} == {np.dtype(np.float32)}
    actions, logprobs, again = squashed_gaussian(numbers(ROWS, 4).numpy(), numbers(ROWS, 2).numpy(), NUMPY)
    assert {part.dtype for part in (actions, logprobs, *again(actions, 0.1))} == {np.dtype(np.float32)}


def test_a_head_of_ones_own_is_left_to_autograd() -> None:
    class Own(CategoricalHead):
        pass

    assert action_evaluator(Own(3), NUMPY) is None


def test_large_numbers_do_not_overflow() -> None:
    large = np.array([-1e4, -30.0, 0.0, 30.0, 1e4], np.float32)
    with np.errstate(over="raise", invalid="raise"):
        assert softplus(large, NUMPY)[[0, -1]].tolist() == [0.0, 1e4]
        assert sigmoid(large, NUMPY)[[0, 2, -1]].tolist() == [0.0, 0.5, 1.0]
