"""The replay buffer against plain lists: whatever is done to it, in whatever order, it holds what the lists hold.

The model keeps the steps of each environment's unfinished episode and cuts whole transitions out of them by hand. Every
observation and every action is a number of its own, so a row that shows the wrong one is found out.
"""

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rl_training.core.types import ObsArray, StepArrays
from rl_training.data.replay_buffer import ReplayBuffer, Transitions

GOES_ON, TERMINATES, IS_TRUNCATED, IS_CUT = range(4)
kinds = st.sampled_from([GOES_ON] * 6 + [TERMINATES, IS_TRUNCATED, IS_CUT])
MAX_ENVS = 3
# one step of all environments: how each of them ends, what it pays, and whether it shows the same picture again
steps = st.lists(st.tuples(kinds, st.integers(-3, 3), st.booleans()), min_size=MAX_ENVS, max_size=MAX_ENVS)

Seen = tuple[int, ...]
"""An observation: one number, or one per frame of a stack."""


@dataclass(frozen=True)
class Transition:
    """One expected row."""

    obs: Seen
    action: int
    reward: float
    discount: float
    next_obs: Seen


@dataclass
class Life:
    """What one environment shows now, and the steps of its episode so far."""

    shown: Seen
    dead: bool = False
    """Its next step only resets."""
    steps: list[tuple[Seen, int, float]] = field(default_factory=list)


class ReplayMachine(RuleBasedStateMachine):
    """Does to a buffer what a run can do to it."""

    @initialize(
        capacity=st.integers(1, 24),
        num_envs=st.integers(1, MAX_ENVS),
        n_step=st.integers(1, 4),
        gamma=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
        layout=st.sampled_from(["plain", "dict", "frames", "colour frames"]),
        stack=st.integers(1, 3),
        prioritized=st.booleans(),
        same_step=st.booleans(),
    )
    def begin(self, num_envs: int, layout: str, stack: int, same_step: bool, **options: Any) -> None:
        self.layout, self.stack, self.same_step, self.options = layout, stack, same_step, options
        self.prioritized = options["prioritized"]
        self.clock = itertools.count(1)
        self.buffer = self.new_buffer(num_envs)
        self.rows: dict[int, Transition] = {}
        """All transitions ever finished, by their number."""
        self.priorities: dict[int, float] = {}
        self.largest_priority = 1.0
        self.lives = [Life(self.first_seen()) for _ in range(num_envs)]

    @property
    def stacked(self) -> bool:
        return "frames" in self.layout

    def new_buffer(self, num_envs: int) -> ReplayBuffer:
        shapes: dict[str, Any] = {
            "plain": {"obs_shape": (2,)},
            "dict": {"obs_shape": {"a": (2,), "b/c": ()}, "obs_dtype": {"b/c": np.int64}},
            "frames": {"obs_shape": (self.stack, 2), "obs_dtype": np.int32, "frame_stack": self.stack},
            "colour frames": {
                "obs_shape": (3 * self.stack, 2),
                "obs_dtype": np.int16,
                "frame_stack": self.stack,
            },
        }
        return ReplayBuffer(
            num_envs=num_envs, action_shape=(), action_dtype=np.int64, **shapes[self.layout], **self.options
        )

    # --------------------------------------------------------------------------------------- what is observed

    def first_seen(self) -> Seen:
        """After a reset a stack shows one frame several times, or frames of its own."""
        first = next(self.clock)
        if not self.stacked:
            return (first,)
        return (first,) * self.stack if first % 2 else tuple(next(self.clock) for _ in range(self.stack))

    def seen_after(self, seen: Seen, same_picture: bool) -> Seen:
        new = seen[-1] if same_picture and self.stacked else next(self.clock)
        return (*seen[1:], new)

    def arrays(self, seen: list[Seen]) -> ObsArray:
        """Observations [N, ...] as an environment gives them."""
        numbers = np.array(seen)
        if self.stacked:
            pixels = np.stack([numbers, -numbers], axis=-1)
            if self.layout == "frames":
                return pixels.astype(np.int32)
            # three channels of a frame lie side by side
            return (
                np.stack([pixels, pixels + 1, pixels + 2], axis=2).reshape(len(seen), -1, 2).astype(np.int16)
            )
        vector = np.concatenate([numbers, -numbers], axis=-1).astype(np.float32)
        return vector if self.layout == "plain" else {"a": vector, "b/c": numbers[:, 0]}

    # ------------------------------------------------------------------------------------------------- rules

    @rule(many=st.lists(steps, min_size=1, max_size=6))
    def record(self, many: list[list[tuple[int, int, bool]]]) -> None:
        for one in many:
            self.record_step(one[: len(self.lives)])

    def record_step(self, one: list[tuple[int, int, bool]]) -> None:
        lives, buffer = self.lives, self.buffer
        num_envs = len(lives)
        actions = np.array([next(self.clock) * MAX_ENVS + env for env in range(num_envs)])
        obs = self.arrays([life.shown for life in lives])
        buffer.record_action(obs, actions)
        for leaf in obs.values() if isinstance(obs, dict) else [obs]:
            leaf[...] = 0  # environments write over what they showed

        valid = np.array([not life.dead for life in lives])
        reward, final = np.zeros(num_envs), [life.shown for life in lives]
        terminated, truncated, cut = (np.zeros(num_envs, np.bool_) for _ in range(3))
        expected: dict[int, list[Transition]] = defaultdict(list)
        for env, (life, (kind, paid, same_picture)) in enumerate(zip(lives, one, strict=True)):
            if life.dead:
                reward[env] = 1e6  # of no meaning
                lives[env] = Life(self.first_seen())
                continue
            successor = final[env] = self.seen_after(life.shown, same_picture)
            reward[env] = paid
            terminated[env], truncated[env], cut[env] = (
                kind == k for k in (TERMINATES, IS_TRUNCATED, IS_CUT)
            )
            life.steps.append((life.shown, int(actions[env]), float(paid)))
            expected[env] = self.finished(life, kind, successor)
            if kind in (GOES_ON, IS_CUT):
                life.shown = successor
                life.steps = [] if kind == IS_CUT else life.steps
            elif self.same_step:
                lives[env] = Life(self.first_seen())
            else:
                lives[env] = Life(successor, dead=True)
        ended = terminated | truncated
        before = buffer.total_rows
        buffer.record_outcome(
            StepArrays(
                obs=self.arrays([life.shown for life in lives]),
                final_obs=self.arrays(final),
                reward=reward,
                terminated=terminated,
                truncated=truncated,
                ended=ended,
                valid=valid,
                cut=cut,
                any_cut=bool(cut.any()),
                any_ended=bool(ended.any()),
                num_valid=int(valid.sum()),
            )
        )
        self.take_over(before, expected)

    def finished(self, life: Life, kind: int, successor: Seen) -> list[Transition]:
        """Cut the transitions out of an episode that have just got their last reward, oldest first."""
        n, gamma, length = self.options["n_step"], self.options["gamma"], len(life.steps)
        first = max(length - n, 0)
        starts = range(first, length if kind != GOES_ON else first + (length >= n))
        return [
            Transition(
                obs=life.steps[start][0],
                action=life.steps[start][1],
                reward=sum(gamma**k * paid for k, (_, _, paid) in enumerate(life.steps[start:])),
                discount=0.0 if kind in (TERMINATES, IS_CUT) else gamma ** (length - start),
                next_obs=successor,
            )
            for start in starts
        ]

    def take_over(self, before: int, expected: dict[int, list[Transition]]) -> None:
        """Number the new transitions as the buffer does: the order is free between environments, not within one."""
        buffer = self.buffer
        count = sum(len(found) for found in expected.values())
        # of more rows than it has room for at once, it takes the last
        assert buffer.total_rows == before + min(count, buffer.capacity)
        actions = buffer.read_rows(before, buffer.total_rows)["actions"].tolist() if count else []
        for env, found in expected.items():
            stored = [action for action in actions if action % MAX_ENVS == env]
            assert stored == [row.action for row in found][len(found) - len(stored) :]
        by_action = {row.action: row for found in expected.values() for row in found}
        for number, action in enumerate(actions, start=before):
            self.rows[number] = by_action[action]
            self.priorities[number] = self.largest_priority

    @rule(envs=st.lists(st.integers(0, MAX_ENVS - 1), unique=True))
    def forget(self, envs: list[int]) -> None:
        known = [env for env in envs if env < len(self.lives)]
        self.buffer.forget(known)
        for env in known:
            self.lives[env] = Life(self.first_seen())

    @precondition(lambda self: self.prioritized and self.rows)
    @rule(
        errors=st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0]), min_size=1, max_size=8),
        seed=st.integers(0, 99),
    )
    def update_priorities(self, errors: list[float], seed: int) -> None:
        drawn = self.buffer.sample(len(errors), np.random.default_rng(seed))
        self.buffer.update_priorities(drawn.indices, torch.tensor(errors))
        for number, error in zip(self.numbers(drawn.indices), errors, strict=True):
            priority = (error + 1e-6) ** 0.6
            self.priorities[number] = priority
            self.largest_priority = max(self.largest_priority, priority)

    @rule(num_envs=st.none() | st.integers(1, MAX_ENVS), parts=st.integers(1, 3))
    def save_and_go_on_in_another(self, num_envs: int | None, parts: int) -> None:
        """`num_envs` None is as many as before; with others the unfinished episodes are lost."""
        old = self.buffer
        new = self.new_buffer(len(self.lives) if num_envs is None else num_envs)
        for name, storage in old.storages.items():
            first = storage.total_rows - storage.kept_rows
            cuts = np.linspace(first, storage.total_rows, parts + 1).astype(int).tolist()
            for start, stop in itertools.pairwise(cuts):
                if start < stop:
                    new.storages[name].restore_rows(start, storage.read_rows(start, stop), stop)
        state = old.state_dict()
        old.record_action(
            self.arrays([(0,) * len(life.shown) for life in self.lives]), np.zeros(len(self.lives))
        )
        old.rows[...] = np.zeros((), old.dtype)  # nothing of it is shared
        new.load_state_dict(state)
        self.buffer = new
        if len(self.lives) != new.num_envs:
            self.lives = [Life(self.first_seen()) for _ in range(new.num_envs)]

    # -------------------------------------------------------------------------------------------- invariants

    def numbers(self, indices: torch.Tensor) -> list[int]:
        """Row numbers of positions in the ring."""
        total, capacity = self.buffer.total_rows, self.buffer.capacity
        return [int(total - 1 - (total - 1 - index) % capacity) for index in indices.tolist()]

    @invariant()
    def every_draw_is_a_transition_that_happened(self) -> None:
        buffer = self.buffer
        kept = list(range(max(buffer.total_rows - buffer.capacity, 0), buffer.total_rows))
        assert buffer.total_rows == len(self.rows)
        assert len(buffer) == len(kept)
        if not kept:
            return
        drawn = buffer.sample(40 * len(kept), np.random.default_rng(len(self.rows)), beta=0.7)
        numbers = self.numbers(drawn.indices)
        self.check_rows(drawn, [self.rows[number] for number in numbers])
        if not self.prioritized:
            assert drawn.weights is None
            assert set(numbers) == set(kept), "all that is kept is drawn, and nothing else"
        else:
            self.check_priorities(drawn, numbers, kept)

    @invariant()
    def no_more_frames_are_kept_than_rows_and_open_episodes_show(self) -> None:
        """Every step of an environment brings one frame, and a reset at most a whole stack."""
        buffer, frames = self.buffer, self.buffer.frames
        if frames is None:
            return
        assert frames.first_alive <= frames.total_rows
        # of the steps since the oldest kept row was begun, at most every second only reset
        begun = 2 * (len(buffer) + len(self.lives) * (self.options["n_step"] + self.stack)) + MAX_ENVS
        assert frames.kept_rows <= begun * (1 + self.stack) + frames.chunk

    def check_rows(self, drawn: Transitions, rows: list[Transition]) -> None:
        for got, seen in ((drawn.obs, [r.obs for r in rows]), (drawn.next_obs, [r.next_obs for r in rows])):
            expected = self.arrays(seen)
            if isinstance(expected, dict):
                assert isinstance(got, dict)
                assert got.keys() == expected.keys()
                for key, leaf in expected.items():
                    np.testing.assert_array_equal(got[key].numpy(), leaf)
            else:
                assert isinstance(got, torch.Tensor)
                np.testing.assert_array_equal(got.numpy(), expected)
        np.testing.assert_array_equal(drawn.actions.numpy(), [row.action for row in rows])
        np.testing.assert_allclose(drawn.rewards.numpy(), [row.reward for row in rows], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(drawn.discounts.numpy(), [row.discount for row in rows], rtol=1e-6)

    def check_priorities(self, drawn: Transitions, numbers: list[int], kept: list[int]) -> None:
        """Draws are stratified, so each row comes as often as its part says, give or take the edges of its part."""
        total = sum(self.priorities[number] for number in kept)
        part = {number: self.priorities[number] / total for number in kept}
        for number in kept:
            assert abs(numbers.count(number) - len(numbers) * part[number]) <= 2
        weights = np.array([(len(kept) * part[number]) ** -0.7 for number in numbers])
        assert drawn.weights is not None
        np.testing.assert_allclose(drawn.weights.numpy(), weights / weights.max(), rtol=2e-3)


ReplayMachine.TestCase.settings = settings(
    deadline=None, database=None, derandomize=True, max_examples=80, stateful_step_count=20
)
TestReplayMachine = ReplayMachine.TestCase
