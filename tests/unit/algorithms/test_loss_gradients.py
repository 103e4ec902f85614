"""The losses by hand return what the readable losses return, and the derivatives that autograd finds for those."""

from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms.a2c import a2c_gradient, a2c_loss
from rl_training.algorithms.ppo import ppo_gradient, ppo_loss
from rl_training.algorithms.q_objective import td_gradient, td_loss
from rl_training.models.fast.backend import NUMPY, Backend, TorchBackend

pytestmark = pytest.mark.usefixtures("float64")
ROWS = 40
BACKENDS: dict[str, Backend] = {"arrays": NUMPY, "tensors": TorchBackend()}


def minibatch(*, masked: bool) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    names = ("logprobs", "old_logprobs", "advantages", "returns", "values", "new_values", "entropy")
    columns: dict[str, Any] = {name: 0.5 * torch.randn(ROWS, generator=generator) for name in names}
    return columns | {"valid": torch.rand(ROWS, generator=generator) < 0.7 if masked else None}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("ent_coef", [0.0, 0.02])
@pytest.mark.parametrize(
    ("loss", "gradient", "settings"),
    [
        (a2c_loss, a2c_gradient, {}),
        (ppo_loss, ppo_gradient, {"clip_coef": 0.2}),
        (ppo_loss, ppo_gradient, {"clip_coef": 0.2, "clip_vloss": True}),
    ],
    ids=["a2c", "ppo", "ppo with clipped values"],
)
def test_actor_critic_losses(
    loss: Any, gradient: Any, settings: dict[str, Any], ent_coef: float, masked: bool, backend: str
) -> None:
    columns, chosen = minibatch(masked=masked), BACKENDS[backend]
    settings = settings | {"ent_coef": ent_coef, "vf_coef": 0.7}
    leaves = {name: columns[name].clone().requires_grad_() for name in ("logprobs", "entropy", "new_values")}
    expected = loss(columns | leaves, **settings)
    derivatives = torch.autograd.grad(
        expected["loss"], list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    given = {name: None if part is None else chosen.view(part) for name, part in columns.items()}
    metrics, *found = gradient(given, backend=chosen, **settings)
    assert metrics.keys() == expected.keys()
    for name, part in expected.items():
        assert float(metrics[name]) == pytest.approx(part.item(), rel=1e-12), name
    for ours, theirs in zip((found[0], found[1], found[2]), derivatives, strict=True):
        np.testing.assert_allclose(
            np.broadcast_to(0.0 if ours is None else ours, ROWS), theirs, rtol=1e-12, atol=1e-16
        )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("huber", [False, True])
def test_temporal_difference_losses(huber: bool, weighted: bool, backend: str) -> None:
    generator, chosen = torch.Generator().manual_seed(1), BACKENDS[backend]
    values, targets, weights = (2 * torch.rand(ROWS, generator=generator) for _ in range(3))
    leaf = values.clone().requires_grad_()
    columns = {"values": values, "targets": targets, "weights": weights if weighted else None}
    expected = td_loss(columns | {"values": leaf}, huber=huber)
    (derivative,) = torch.autograd.grad(expected["loss"], leaf)
    given = {name: None if part is None else chosen.view(part) for name, part in columns.items()}
    found, by_values = td_gradient(given, huber=huber, backend=chosen)
    assert found.keys() == expected.keys()
    assert float(found["loss"]) == pytest.approx(expected["loss"].item(), rel=1e-12)
    np.testing.assert_allclose(by_values, derivative, rtol=1e-12, atol=1e-16)
    np.testing.assert_allclose(found["errors"], expected["errors"], rtol=1e-12)
