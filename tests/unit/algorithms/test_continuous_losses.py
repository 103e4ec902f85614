"""The derivatives that SAC's and TD3's losses return are those that autograd finds, in NumPy and torch alike."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.algorithms.sac import sac_actor_loss, sac_critic_loss
from rl_training.algorithms.td3 import td3_actor_loss, td3_critic_loss

CRITICS, ROWS = 3, 8


def numbers(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def check(compute: Callable[..., tuple[Any, ...]], expected: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Compare loss and derivatives with those of the formula in the docstring."""
    leaves = [part.clone().requires_grad_() for part in inputs]
    loss = expected(*leaves)
    gradients = torch.autograd.grad(loss, leaves)
    for library in (np, torch):
        given = [part.numpy() for part in inputs] if library is np else list(inputs)
        found, *derivatives = compute(library, *given)
        assert float(found) == pytest.approx(loss.item(), rel=1e-12)
        for derivative, gradient in zip(derivatives, gradients, strict=True):
            np.testing.assert_allclose(
                np.broadcast_to(derivative, gradient.shape), gradient, rtol=1e-12, atol=1e-15
            )


def test_critics() -> None:
    values, targets = numbers(CRITICS, ROWS, seed=0), numbers(ROWS, seed=1)

    def given(library: Any) -> Any:
        return targets.numpy() if library is np else targets

    def squares(values: Tensor) -> Tensor:
        return (values - targets).square().mean(1).sum()

    check(lambda xp, x: sac_critic_loss(x, given(xp)), lambda x: 0.5 * squares(x), values)
    check(lambda xp, x: td3_critic_loss(x, given(xp)), squares, values)


@pytest.mark.parametrize("use_mean", [False, True])
def test_the_actor_of_sac(use_mean: bool) -> None:
    def expected(values: Tensor, logprobs: Tensor) -> Tensor:
        value = values.mean(0) if use_mean else values.amin(0)
        return (0.3 * logprobs - value).mean()

    check(
        lambda xp, values, logprobs: sac_actor_loss(values, logprobs, 0.3, use_mean=use_mean, xp=xp),
        expected,
        numbers(CRITICS, ROWS, seed=2),
        numbers(ROWS, seed=3),
    )


def test_the_actor_of_td3() -> None:
    check(lambda xp, values: td3_actor_loss(values), lambda values: -values.mean(), numbers(1, ROWS, seed=4))
