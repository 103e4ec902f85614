"""Sequences of a rollout: which rows they hold, in which order, and what was remembered before them."""

from typing import Any

import numpy as np
import pytest
import torch

from rl_training.core.columns import Column
from rl_training.core.types import ActArrays, StepArrays
from rl_training.data.recurrent_rollout_buffer import RecurrentRolloutBuffer

STEPS, ENVS, WIDTH = 6, 2, 3
EXTRA = (Column("episode_starts", dtype=np.bool_), Column("memory/0", (WIDTH,)), Column("memory/1", (1,)))


def filled(length: int) -> RecurrentRolloutBuffer:
    """Return a rollout whose numbers say their step and environment: 10 * step + environment."""
    buffer = RecurrentRolloutBuffer(
        num_steps=STEPS, num_envs=ENVS, obs_shape=(2,), action_shape=(), extra=EXTRA, sequence_length=length
    )
    zeros, false = np.zeros(ENVS), np.zeros(ENVS, bool)
    for step in range(STEPS):
        name = 10.0 * step + np.arange(ENVS)
        extra = {
            "episode_starts": name % 20 == 1,
            "memory/0": np.repeat(name[:, None], WIDTH, 1),
            "memory/1": -name[:, None],
        }
        buffer.record_action(
            np.stack([name, name], 1), ActArrays(name, zeros, zeros, zeros, zeros, extra=extra)
        )
        out = StepArrays(np.zeros((ENVS, 2)), np.zeros((ENVS, 2)), name, false, false, false, ~false, false)
        out.num_valid = ENVS
        buffer.record_outcome(out, ActArrays(name, zeros, zeros, zeros, zeros))
    return buffer


def names(part: Any) -> list[float]:
    return [float(value) for value in part]


@pytest.mark.parametrize("length", [1, 2, 3, 6])
def test_sequences_are_stretches_of_one_environment_and_hold_every_row_once(length: int) -> None:
    batch = filled(length).flat()
    assert batch.sequences.shape == (STEPS * ENVS // length, length)
    assert sorted(batch.sequences.reshape(-1).tolist()) == list(range(STEPS * ENVS))
    for sequence, memory in zip(batch.sequences, batch.memory[0], strict=True):
        steps = names(batch.actions[sequence])
        assert steps == [steps[0] + 10 * i for i in range(length)]
        assert names(memory) == [steps[0]] * WIDTH
    assert [part.shape[1] for part in batch.memory] == [WIDTH, 1]
    assert list(batch.extra) == ["episode_starts"]


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_minibatches_partition_the_sequences_and_lie_in_time_order(seed: int | None) -> None:
    batch = filled(3).flat()
    rng = None if seed is None else np.random.default_rng(seed)
    seen: list[float] = []
    for part in batch.minibatches(6, rng):
        assert len(part) == 6
        rows = part.actions.view(3, 2)
        assert torch.equal(rows[1:], rows[:-1] + 10)
        assert torch.equal(part.memory[0][:, 0], rows[0])
        assert torch.equal(part.memory[1][:, 0], -rows[0])
        assert torch.equal(part.actions[part.sequences], rows.T)
        assert part.extra["episode_starts"].tolist() == [name % 20 == 1 for name in names(part.actions)]
        assert torch.equal(part.obs[:, 0], part.actions)
        seen += names(part.actions)
    assert sorted(seen) == sorted(names(batch.actions))


def test_sequences_of_one_step_are_the_minibatches_of_a_plain_rollout() -> None:
    batch = filled(1).flat()
    plain = super(RecurrentRolloutBuffer, filled(1)).flat()
    ours = [names(part.actions) for part in batch.minibatches(5, np.random.default_rng(4))]
    theirs = [names(part.actions) for part in plain.minibatches(5, np.random.default_rng(4))]
    assert ours == theirs


@pytest.mark.parametrize("length", [0, 4, 12])
def test_a_length_that_does_not_divide_the_rollout_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"sequence_length is {length}; it must divide num_steps, 6"):
        filled(length)
