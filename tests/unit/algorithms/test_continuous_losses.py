"""The gradients by hand of the losses that learn from transitions are those of autograd, in NumPy and torch alike."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.algorithms.advantage_weighting import WEIGHTED_ACTOR_LOSS
from rl_training.algorithms.bc import BC_LOSS
from rl_training.algorithms.cql import CQL_LOSSES
from rl_training.algorithms.iql import IQL_LOSSES
from rl_training.algorithms.losses import Loss
from rl_training.algorithms.sac import SAC_LOSSES
from rl_training.algorithms.td3 import TD3_LOSSES
from rl_training.models.fast.backend import NUMPY, Backend, TorchBackend

CRITICS, ROWS = 3, 8
BACKENDS: dict[str, Backend] = {"arrays": NUMPY, "tensors": TorchBackend()}


def numbers(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


VALUES, TARGETS, LOGPROBS = numbers(CRITICS, ROWS, seed=0), numbers(ROWS, seed=1), numbers(ROWS, seed=3)
ALL_VALUES, RECORDED = numbers(ROWS, 4, seed=4) * 3, torch.arange(ROWS) % 4
CHOSEN = ALL_VALUES[torch.arange(ROWS), RECORDED]
ALPHA = torch.tensor(0.3, dtype=torch.float64)
CASES: dict[str, tuple[Loss, dict[str, Tensor], tuple[str, ...], dict[str, Any], Tensor]] = {
    "sac critics": (
        SAC_LOSSES["critic_loss"],
        {"values": VALUES, "targets": TARGETS},
        ("values",),
        {},
        0.5 * sum((row - TARGETS).square().mean() for row in VALUES),
    ),
    "sac actor": (
        SAC_LOSSES["actor_loss"],
        {"values": VALUES, "logprobs": LOGPROBS, "alpha": ALPHA},
        ("values", "logprobs"),
        {"use_mean": False},
        (0.3 * LOGPROBS - VALUES.min(0).values).mean(),
    ),
    "sac actor of an ensemble": (
        SAC_LOSSES["actor_loss"],
        {"values": VALUES, "logprobs": LOGPROBS, "alpha": ALPHA},
        ("values", "logprobs"),
        {"use_mean": True},
        (0.3 * LOGPROBS - VALUES.mean(0)).mean(),
    ),
    "sac temperature": (
        SAC_LOSSES["temperature_loss"],
        {"log_alpha": ALPHA.log(), "logprobs": LOGPROBS},
        ("log_alpha",),
        {"target_entropy": -2.0},
        -ALPHA.log() * (LOGPROBS.mean() - 2.0),
    ),
    "td3 critics": (
        TD3_LOSSES["critic_loss"],
        {"values": VALUES, "targets": TARGETS},
        ("values",),
        {},
        sum((row - TARGETS).square().mean() for row in VALUES),
    ),
    "td3 actor": (TD3_LOSSES["actor_loss"], {"values": VALUES[:1]}, ("values",), {}, -VALUES[0].mean()),
    "behavioural cloning": (BC_LOSS, {"mismatch": TARGETS}, ("mismatch",), {}, TARGETS.mean()),
    "iql value": (
        IQL_LOSSES["value_loss"],
        {"values": VALUES[0], "targets": TARGETS},
        ("values",),
        {"expectile": 0.8},
        sum((0.8 if t > v else 0.2) * (t - v) ** 2 for v, t in zip(VALUES[0], TARGETS, strict=True)) / ROWS,
    ),
    "actor weighted by advantages": (
        WEIGHTED_ACTOR_LOSS,
        {"logprobs": LOGPROBS, "advantages": 100 * TARGETS},
        ("logprobs",),
        {"inverse_temperature": 0.05, "max_weight": 3.0},
        -sum(min(float((5 * a).exp()), 3.0) * p for a, p in zip(TARGETS, LOGPROBS, strict=True)) / ROWS,
    ),
    "cql, one critic for discrete actions": (
        CQL_LOSSES["critic_loss"],
        {"others": ALL_VALUES[None], "values": CHOSEN[None], "targets": 3 * TARGETS},
        ("values", "others"),
        {"cql_alpha": 0.7, "huber": True},
        sum(0.5 * min(abs(d), 1) * (2 * abs(d) - min(abs(d), 1)) for d in CHOSEN - 3 * TARGETS) / ROWS
        + 0.7 * (ALL_VALUES.exp().sum(1).log() - CHOSEN).mean(),
    ),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_the_gradient_by_hand_is_that_of_the_loss(name: str, backend: str) -> None:
    loss, columns, by, settings, formula = CASES[name]
    chosen = BACKENDS[backend]
    assert float(loss.parts(columns, **settings)["loss"]) == pytest.approx(float(formula), rel=1e-12)
    given = {name: chosen.view(part) for name, part in columns.items()}
    expected, gradients = Loss(loss.function).differentiate(columns, by, BACKENDS["tensors"], **settings)
    found, by_hand = loss.differentiate(given, by, chosen, **settings)
    assert loss.gradient is not None
    assert found.keys() == expected.keys()
    for part, number in expected.items():
        assert float(found[part]) == pytest.approx(float(number), rel=1e-12), part
    for derivative, gradient in zip(by_hand, gradients, strict=True):
        np.testing.assert_allclose(
            np.broadcast_to(derivative, gradient.shape), gradient, rtol=1e-12, atol=1e-15
        )
