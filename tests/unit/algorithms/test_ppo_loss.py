from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.algorithms.actor_critic_objective import normalized
from rl_training.algorithms.on_policy import explained_variance
from rl_training.algorithms.ppo import ppo_loss
from rl_training.data.rollout_buffer import RolloutBatch

SETTINGS = {"clip_coef": 0.2, "ent_coef": 0.03, "vf_coef": 0.7}


def minibatch(rows: int = 40, seed: int = 0) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    logprobs = rng.normal(-1.0, 0.5, rows)
    columns = {
        "logprobs": logprobs,
        "old_logprobs": logprobs + rng.normal(0.0, 0.3, rows),  # about half of the ratios are clipped
        "advantages": rng.normal(0.0, 2.0, rows),
        "returns": rng.normal(0.0, 1.0, rows),
        "values": rng.normal(0.0, 1.0, rows),
        "new_values": rng.normal(0.0, 1.0, rows),
        "entropy": rng.uniform(0.1, 1.0, rows),
    }
    return {name: torch.from_numpy(column) for name, column in columns.items()}


def slow_loss(
    batch: dict[str, Tensor], *, clip_coef: float, ent_coef: float, vf_coef: float, clip_vloss: bool
) -> dict[str, float]:
    """Row by row, as the paper writes it."""
    totals = dict.fromkeys(("policy_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction"), 0.0)
    rows = len(batch["returns"])
    for i in range(rows):
        row = {name: float(column[i]) for name, column in batch.items()}
        log_ratio = row["logprobs"] - row["old_logprobs"]
        ratio = np.exp(log_ratio)
        bounded = min(max(ratio, 1 - clip_coef), 1 + clip_coef)
        totals["policy_loss"] -= min(ratio * row["advantages"], bounded * row["advantages"])
        error = (row["new_values"] - row["returns"]) ** 2
        if clip_vloss:
            change = min(max(row["new_values"] - row["values"], -clip_coef), clip_coef)
            error = max(error, (row["values"] + change - row["returns"]) ** 2)
        totals["value_loss"] += error
        totals["entropy_loss"] -= row["entropy"]
        totals["approx_kl"] += ratio - 1 - log_ratio
        totals["clip_fraction"] += abs(ratio - 1) > clip_coef
    means = {name: total / rows for name, total in totals.items()}
    means["loss"] = means["policy_loss"] + vf_coef * means["value_loss"] + ent_coef * means["entropy_loss"]
    return means


@pytest.mark.parametrize("clip_vloss", [False, True])
@pytest.mark.parametrize("clip_coef", [0.1, 0.2, 0.5])
def test_every_part_equals_a_slow_reference(clip_coef: float, clip_vloss: bool) -> None:
    settings = SETTINGS | {"clip_coef": clip_coef, "clip_vloss": clip_vloss}
    losses = ppo_loss(minibatch(), **settings)
    expected = slow_loss(minibatch(), **settings)
    assert set(expected) <= set(losses)
    for name, value in expected.items():
        assert losses[name].shape == ()
        assert float(losses[name]) == pytest.approx(value, abs=1e-12), name
    assert 0.0 < expected["clip_fraction"] < 1.0


def test_a_tensor_clip_coefficient_is_the_same_as_a_number() -> None:
    as_number = ppo_loss(minibatch(), **SETTINGS, clip_vloss=True)
    as_tensor = ppo_loss(
        minibatch(), **SETTINGS | {"clip_coef": torch.tensor(0.2, dtype=torch.float64)}, clip_vloss=True
    )
    torch.testing.assert_close(as_tensor, as_number, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "moves"),
    [(0.5, 1.0, False), (0.5, -1.0, True), (-0.5, 1.0, True), (-0.5, -1.0, False), (0.1, 1.0, True)],
)
def test_the_gradient_is_cut_only_where_the_ratio_left_in_the_direction_of_gain(
    log_ratio: float, advantage: float, moves: bool
) -> None:
    logprobs = torch.tensor([log_ratio], requires_grad=True)
    batch = {name: torch.zeros(1) for name in ("old_logprobs", "returns", "values", "new_values", "entropy")}
    losses = ppo_loss(batch | {"logprobs": logprobs, "advantages": torch.tensor([advantage])}, **SETTINGS)
    (gradient,) = torch.autograd.grad(losses["loss"], logprobs)
    assert bool(gradient.item() != 0.0) is moves


@pytest.mark.parametrize(
    ("old", "new", "target", "error"),
    [
        (0.0, 1.0, 1.0, 0.64),  # moved too far towards the target: the clipped error is larger
        (0.0, -1.0, 1.0, 4.0),  # moved away from it: the unclipped one is
        (0.0, 0.1, 1.0, 0.81),  # within the bound both are the same
    ],
)
def test_a_clipped_value_takes_the_larger_error_of_each_row(
    old: float, new: float, target: float, error: float
) -> None:
    batch = minibatch(1) | {
        "values": torch.tensor([old]),
        "new_values": torch.tensor([new]),
        "returns": torch.tensor([target]),
    }
    losses = ppo_loss(batch, **SETTINGS, clip_vloss=True)
    assert losses["value_loss"].item() == pytest.approx(error, rel=1e-6)


@pytest.mark.parametrize("clip_vloss", [False, True])
def test_masked_rows_count_as_if_they_were_not_there(clip_vloss: bool) -> None:
    batch = minibatch()
    valid = torch.rand(40, generator=torch.Generator().manual_seed(0)) < 0.7
    dropped = {name: column[valid] for name, column in batch.items()}
    garbage = {name: torch.where(valid, column, column * 5 + 3) for name, column in batch.items()}
    masked = ppo_loss(garbage | {"valid": valid}, **SETTINGS, clip_vloss=clip_vloss)
    expected = ppo_loss(dropped, **SETTINGS, clip_vloss=clip_vloss)
    torch.testing.assert_close(masked, expected, rtol=0, atol=1e-12)


def test_masked_rows_get_no_gradient() -> None:
    batch = minibatch(6)
    learned = [batch[name].requires_grad_() for name in ("logprobs", "new_values", "entropy")]
    valid = torch.tensor([True, False, True, True, False, True])
    loss = ppo_loss(batch | {"valid": valid}, **SETTINGS, clip_vloss=True)["loss"]
    for gradient in torch.autograd.grad(loss, learned):
        assert not gradient[~valid].any()
        assert gradient[valid].any()


def test_a_mask_of_none_and_a_full_one_are_the_same() -> None:
    whole = torch.ones(40, dtype=torch.bool)
    torch.testing.assert_close(
        ppo_loss(minibatch() | {"valid": whole}, **SETTINGS),
        ppo_loss(minibatch() | {"valid": None}, **SETTINGS),
        rtol=0,
        atol=1e-12,
    )


def test_no_valid_row_at_all_is_a_loss_of_zero() -> None:
    losses = ppo_loss(minibatch() | {"valid": torch.zeros(40, dtype=torch.bool)}, **SETTINGS)
    assert losses["loss"] == 0.0


def test_the_loss_is_pure() -> None:
    batch, untouched = minibatch(), minibatch()
    first = ppo_loss(batch, **SETTINGS, clip_vloss=True)
    second = ppo_loss(batch, **SETTINGS, clip_vloss=True)
    assert first == second
    assert batch.keys() == untouched.keys()
    for name, column in batch.items():
        assert torch.equal(column, untouched[name]), name


def test_recorded_values_are_not_needed_without_value_clipping() -> None:
    batch = minibatch()
    expected = ppo_loss(batch, **SETTINGS)["loss"]
    del batch["values"]
    assert ppo_loss(batch, **SETTINGS)["loss"] == expected


def test_normalised_advantages_have_zero_mean_and_unit_deviation() -> None:
    result = normalized(minibatch()["advantages"], None)
    assert result.mean().item() == pytest.approx(0.0, abs=1e-12)
    assert result.std().item() == pytest.approx(1.0, abs=1e-6)


def test_a_single_advantage_is_left_as_it_is() -> None:
    assert normalized(torch.tensor([3.0]), None).tolist() == [3.0]
    one_valid = normalized(torch.tensor([3.0, 50.0]), torch.tensor([True, False]))
    assert one_valid[0] == 3.0


def test_equal_advantages_become_zero() -> None:
    assert normalized(torch.full((4,), 3.0), None).tolist() == [0.0] * 4


def test_invalid_rows_do_not_take_part_in_the_normalisation() -> None:
    advantages = minibatch()["advantages"]
    valid = torch.arange(40) % 3 != 0
    garbage = torch.where(valid, advantages, 1e4)
    torch.testing.assert_close(
        normalized(garbage, valid)[valid], normalized(advantages[valid], None), rtol=0, atol=1e-12
    )


def batch_of(returns: list[float], values: list[float], valid: list[bool] | None = None) -> RolloutBatch:
    columns: dict[str, Any] = dict.fromkeys(
        ("obs", "actions", "logprobs", "advantages"), torch.zeros(len(returns))
    )
    mask = None if valid is None else torch.tensor(valid)
    return RolloutBatch(**columns, returns=torch.tensor(returns), values=torch.tensor(values), valid=mask)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1.0, 2.0, 3.0], 1.0), ([11.0, 12.0, 13.0], 1.0), ([5.0, 5.0, 5.0], 0.0), ([3.0, 2.0, 1.0], -3.0)],
)
def test_explained_variance(values: list[float], expected: float) -> None:
    assert explained_variance(batch_of([1.0, 2.0, 3.0], values)).item() == pytest.approx(expected, abs=1e-6)


def test_explained_variance_counts_valid_rows_and_is_undefined_for_constant_returns() -> None:
    masked = batch_of([1.0, 2.0, 99.0], [1.0, 2.0, -99.0], [True, True, False])
    assert explained_variance(masked) == 1.0
    assert explained_variance(batch_of([2.0, 2.0], [1.0, 3.0])).isnan()
