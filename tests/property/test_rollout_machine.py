"""The rollout buffer against plain lists: recording, advantages, flattening, minibatches and rewinding in any order."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

from rl_training.core.types import ActArrays, ObsArray, StepArrays
from rl_training.data.rollout_buffer import RolloutBatch, RolloutBuffer

GOES_ON, TERMINATES, IS_TRUNCATED, IS_CUT = range(4)
kinds = st.sampled_from([GOES_ON] * 5 + [TERMINATES, IS_TRUNCATED, IS_CUT])
numbers = st.integers(-8, 8).map(lambda number: number / 4)
MAX_ENVS = 3
# what comes of one step in every environment: how it ends, what it pays, what was and what would be expected of it
steps = st.lists(st.tuples(kinds, numbers, numbers, numbers), min_size=MAX_ENVS, max_size=MAX_ENVS)
fractions = st.sampled_from([0.0, 0.5, 0.9, 1.0])


@dataclass(frozen=True)
class Row:
    """One step of one environment; its action is a number of its own."""

    action: int
    reward: float
    value: float
    final_value: float
    ended: bool
    valid: bool
    cut: bool


class RolloutMachine(RuleBasedStateMachine):
    """Does to a buffer what a run can do to it."""

    @initialize(
        num_steps=st.integers(1, 7),
        num_envs=st.integers(1, MAX_ENVS),
        as_dict=st.booleans(),
        same_step=st.booleans(),
    )
    def begin(self, num_steps: int, num_envs: int, as_dict: bool, same_step: bool) -> None:
        self.num_steps, self.num_envs, self.same_step = num_steps, num_envs, same_step
        self.as_dict = as_dict
        self.clock = itertools.count(1)
        self.buffer = RolloutBuffer(
            num_steps=num_steps,
            num_envs=num_envs,
            obs_shape={"a": (2,), "b/c": ()} if as_dict else (2,),
            obs_dtype={"b/c": np.int64} if as_dict else None,
            action_shape=(),
            action_dtype=np.int64,
        )
        self.rows: list[list[Row]] = []
        self.dead = np.zeros(num_envs, np.bool_)
        # one set of arrays for all steps, as a collector has it: the buffer must copy
        self.actions = np.zeros(num_envs, np.int64)
        self.acted = ActArrays(self.actions, *(np.zeros(num_envs, np.float32) for _ in range(4)))
        flags = [np.zeros(num_envs, np.bool_) for _ in range(5)]
        self.step = StepArrays(self.observations(), self.observations(), np.zeros(num_envs), *flags)

    def observations(self) -> ObsArray:
        """What is seen before each action: a function of the action, so that a row can be checked by itself."""
        vector = np.stack([self.actions, -self.actions], axis=-1).astype(np.float32)
        return {"a": vector, "b/c": self.actions.copy()} if self.as_dict else vector

    # ------------------------------------------------------------------------------------------------- rules

    @precondition(lambda self: len(self.rows) < self.num_steps)
    @rule(many=st.lists(steps, min_size=1, max_size=5))
    def record(self, many: list[list[tuple[int, float, float, float]]]) -> None:
        for one in many[: self.num_steps - len(self.rows)]:
            self.record_step(one[: self.num_envs])

    def record_step(self, one: list[tuple[int, float, float, float]]) -> None:
        kinds_now, rewards, values, future = (np.array(column) for column in zip(*one, strict=True))
        acted, step, valid = self.acted, self.step, ~self.dead
        self.actions[:] = [next(self.clock) for _ in range(self.num_envs)]
        acted.value[:], acted.logprob[:] = values, -self.actions
        self.buffer.record_action(self.observations(), acted)
        step.reward[:] = rewards * valid
        step.terminated[:], step.truncated[:] = (
            (kinds_now == TERMINATES) & valid,
            (kinds_now == IS_TRUNCATED) & valid,
        )
        step.ended[:] = step.terminated | step.truncated
        step.valid[:], step.num_valid = valid, int(valid.sum())
        step.any_ended = bool(step.ended.any())
        step.cut[:] = (kinds_now == IS_CUT) & valid
        step.any_cut = bool(step.cut.any())
        acted.final_value[:] = np.where(step.truncated, future, 0.0)
        self.buffer.record_outcome(step, acted)
        columns = (
            self.actions,
            step.reward,
            acted.value,
            acted.final_value,
            step.ended,
            step.valid,
            step.cut,
        )
        self.rows.append([Row(*cells) for cells in zip(*(c.tolist() for c in columns), strict=True)])
        self.dead = step.ended & (not self.same_step)
        for array in (self.actions, acted.value, acted.logprob, acted.final_value, step.reward):
            array[:] = 99

    @precondition(lambda self: len(self.rows) == self.num_steps)
    @rule()
    def no_row_too_many(self) -> None:
        with pytest.raises(IndexError, match="full"):
            self.buffer.record_action(self.observations(), self.acted)

    @precondition(lambda self: len(self.rows) == self.num_steps)
    @rule(
        last_value=st.lists(numbers, min_size=MAX_ENVS, max_size=MAX_ENVS),
        gamma=fractions,
        gae_lambda=fractions,
        scale=st.sampled_from([None, 0.5]),
    )
    def estimate(self, last_value: list[float], gamma: float, gae_lambda: float, scale: float | None) -> None:
        buffer = self.buffer
        rewards = None if scale is None else buffer.rewards * scale
        last = torch.tensor(last_value[: self.num_envs])
        buffer.compute_returns_and_advantages(last, gamma, gae_lambda, rewards=rewards)
        for env in range(self.num_envs):
            expected = advantages(
                [row[env] for row in self.rows],
                last_value[env],
                gamma,
                gae_lambda,
                1.0 if scale is None else scale,
            )
            for t, advantage in expected.items():
                row = self.rows[t][env]
                assert float(buffer.advantages[t, env]) == pytest.approx(advantage, abs=1e-5)
                assert float(buffer.returns[t, env]) == pytest.approx(advantage + row.value, abs=1e-5)

    @precondition(lambda self: len(self.rows) == self.num_steps)
    @rule(batch_size=st.integers(1, 25), seed=st.none() | st.integers(0, 99))
    def spend(self, batch_size: int, seed: int | None) -> None:
        flat = self.buffer.flat()
        self.check_rows(flat)
        assert flat.actions.tolist() == [row.action for rows in self.rows for row in rows]
        rng = None if seed is None else np.random.default_rng(seed)
        parts = list(self.buffer.iter_minibatches(batch_size, rng=rng))
        for part in parts:
            self.check_rows(part)
        drawn = [action for part in parts for action in part.actions.tolist()]
        if seed is None:
            assert drawn == flat.actions.tolist()
        assert sorted(drawn) == sorted(flat.actions.tolist())
        full, rest = divmod(len(flat), batch_size)
        assert [len(part) for part in parts] == [batch_size] * full + [rest] * (rest > 0)

    def check_rows(self, batch: RolloutBatch) -> None:
        """Every field of a row belongs to its action."""
        by_action = {
            row.action: (row, t, env) for t, rows in enumerate(self.rows) for env, row in enumerate(rows)
        }
        found = [by_action[action] for action in batch.actions.tolist()]
        where = tuple(torch.tensor([[t, env] for _, t, env in found]).T)
        plain = batch.obs["a"] if isinstance(batch.obs, dict) else batch.obs
        assert torch.equal(plain, torch.stack([batch.actions, -batch.actions], dim=-1).float())
        if isinstance(batch.obs, dict):
            assert torch.equal(batch.obs["b/c"], batch.actions)
        assert torch.equal(batch.logprobs, -batch.actions.float())
        assert batch.values.tolist() == [row.value for row, _, _ in found]
        assert torch.equal(batch.advantages, self.buffer.advantages[where])
        assert torch.equal(batch.returns, self.buffer.returns[where])
        all_valid = all(row.valid for rows in self.rows for row in rows)
        assert (batch.valid is None) == all_valid
        if batch.valid is not None:
            assert batch.valid.tolist() == [row.valid for row, _, _ in found]

    @rule()
    def rewind(self) -> None:
        """The next rollout begins where the episodes are, also if this one was not full."""
        self.buffer.reset()
        self.rows = []

    # -------------------------------------------------------------------------------------------- invariants

    @invariant()
    def is_full_when_the_list_is(self) -> None:
        assert self.buffer.full == (len(self.rows) == self.num_steps)

    @invariant()
    def keeps_what_was_recorded(self) -> None:
        buffer, count = self.buffer, len(self.rows)
        columns: dict[str, Tensor] = {
            "action": buffer.actions, "reward": buffer.rewards, "value": buffer.values,
            "final_value": buffer.final_values, "ended": buffer.dones, "valid": buffer.valid, "cut": buffer.cuts,
        }  # fmt: skip
        for name, column in columns.items():
            assert column[:count].tolist() == [[getattr(row, name) for row in rows] for rows in self.rows], (
                name
            )


def advantages(
    rows: list[Row], last_value: float, gamma: float, gae_lambda: float, scale: float
) -> dict[int, float]:
    """Return the advantage of every valid step, episode by episode, as the sum that defines it."""
    episodes: list[list[int]] = [[]]
    for t, row in enumerate(rows):
        if row.valid:
            episodes[-1].append(t)
        if row.ended or row.cut:
            episodes.append([])
    found = {}
    for episode in episodes:
        deltas = []
        for t in episode:
            if rows[t].ended or rows[t].cut:
                following = rows[t].final_value
            else:
                following = last_value if t == len(rows) - 1 else rows[t + 1].value
            deltas.append(scale * rows[t].reward + gamma * following - rows[t].value)
        for place, t in enumerate(episode):
            found[t] = sum((gamma * gae_lambda) ** k * delta for k, delta in enumerate(deltas[place:]))
    return found


RolloutMachine.TestCase.settings = settings(
    deadline=None, database=None, derandomize=True, max_examples=120, stateful_step_count=20
)
TestRolloutMachine = RolloutMachine.TestCase
