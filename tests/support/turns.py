"""Rows that wait for their turn, die and appear late: scripts of what happens to them, and their own actions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

from rl_training.core.rows import Rows
from rl_training.core.spaces.masks import MASK_KEY
from rl_training.core.types import Array, EnvSpec, ObsArray, StepArrays

GOES_ON, TERMINATES, IS_TRUNCATED, IS_CUT = range(4)


@dataclass(frozen=True)
class Moment:
    """What a step brought to one row."""

    valid: bool
    kind: int
    reward: float
    value: float = 0.0
    """What was expected before it."""
    final_value: float = 0.0
    """What is expected after it, if it is truncated."""

    @property
    def over(self) -> bool:
        return self.kind != GOES_ON


@dataclass
class OwnAction:
    """An action that was used: its step, and what was paid from then until the row acted again."""

    step: int
    rewards: list[float]

    @property
    def paid(self) -> float:
        return sum(self.rewards)


@dataclass
class Episode:
    """The own actions of a row in one episode, and the step in which it ended; None while it goes on."""

    actions: list[OwnAction] = field(default_factory=list)
    end: int | None = None


def episodes_of(moments: Sequence[Moment]) -> list[Episode]:
    """Return the episodes of one row; those without an own action have an empty list."""
    found = [Episode()]
    for step, moment in enumerate(moments):
        actions = found[-1].actions
        if moment.valid:
            actions.append(OwnAction(step, [moment.reward]))
        elif actions:
            actions[-1].rewards.append(moment.reward)
        if moment.over:
            found[-1].end = step
            found.append(Episode())
    return found


quarters = st.integers(-8, 8).map(lambda number: number / 4)


def moments(*, always_valid: bool = False) -> st.SearchStrategy[Moment]:
    """Draw what a step brings to one row."""
    return st.builds(
        Moment,
        valid=st.just(True) if always_valid else st.booleans(),
        kind=st.sampled_from([GOES_ON] * 6 + [TERMINATES, IS_TRUNCATED, IS_CUT]),
        reward=quarters,
        value=quarters,
        final_value=quarters,
    )


@st.composite
def scripts(draw: st.DrawFn, *, max_steps: int = 20, always_valid: bool = False) -> list[list[Moment]]:
    """Draw [T][N] moments."""
    rows, steps = draw(st.integers(1, 3)), draw(st.integers(1, max_steps))
    drawn = moments(always_valid=always_valid)
    return draw(st.lists(st.lists(drawn, min_size=rows, max_size=rows), min_size=steps, max_size=steps))


def step_of(row: Sequence[Moment], obs: ObsArray, final_obs: ObsArray) -> StepArrays:
    """Return the moments of one step as a stepper writes them."""
    kinds = np.array([moment.kind for moment in row])
    valid = np.array([moment.valid for moment in row])
    terminated, truncated, cut = (kinds == kind for kind in (TERMINATES, IS_TRUNCATED, IS_CUT))
    ended = terminated | truncated
    return StepArrays(
        obs=obs,
        final_obs=final_obs,
        reward=np.array([moment.reward for moment in row]),
        terminated=terminated,
        truncated=truncated,
        ended=ended,
        valid=valid,
        cut=cut,
        any_ended=bool(ended.any()),
        any_cut=bool(cut.any()),
        num_valid=int(valid.sum()),
    )


class Duels:
    """Duels of two rows that take turns: stepped as environments are, whatever the actions.

    Observations tell environment, seat and step. A duel lasts from two to seven moves; its last mover wins. Some are
    broken off by a time limit instead. With `deaths`, there is a third row, which always acts and dies early.
    """

    def __init__(
        self, num_envs: int = 2, *, deaths: bool = False, masked: bool = False, seed: int = 0
    ) -> None:
        self.seats = 3 if deaths else 2
        count = num_envs * self.seats
        self.spec = EnvSpec(
            spaces.Box(-9, 1e6, (3,), np.float32), spaces.Discrete(4), count, masked=masked, turns=True
        )
        self.rows = Rows(
            [row // self.seats for row in range(count)], [row % self.seats for row in range(count)]
        )
        self.notices: list[str] = []
        self.rng, self.clock = np.random.default_rng(seed), 0
        self.length, self.move = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)
        flags = [np.zeros(count, np.bool_) for _ in range(5)]
        self.out = StepArrays(
            self.seen(), self.seen(), np.zeros(count), *flags, acts=np.ones(count, np.bool_)
        )
        self.reset()

    @property
    def resumable(self) -> bool:
        return False

    def reset(self) -> None:
        self.begin(range(len(self.length)))
        self.show()

    def begin(self, envs: Any) -> None:
        for env in envs:
            self.length[env], self.move[env] = self.rng.integers(2, 8), 0

    def seen(self) -> Any:
        self.clock += 1
        plain = np.stack([self.rows.envs, self.rows.agents, np.full(len(self.rows), self.clock)], axis=1)
        obs = plain.astype(np.float32)
        if not self.spec.masked:
            return obs
        allowed = (self.clock + np.arange(4)[None]) % (2 + self.rows.agents[:, None]) == 0
        return {"": obs, MASK_KEY: allowed | (np.arange(4) == 3)}

    def show(self) -> None:
        acts = self.out.acts
        assert acts is not None
        write(self.out.obs, self.seen())
        move = self.rows.spread(self.move)
        acts[:] = (self.rows.agents == move % 2) & (self.rows.agents < 2)
        acts |= (self.rows.agents == 2) & (move < 2)

    def step(self, action: Array) -> None:
        out, seats = self.out, self.rows.agents
        assert out.acts is not None
        out.valid[:] = out.acts
        self.move += 1
        move, length = self.rows.spread(self.move), self.rows.spread(self.length)
        over, died = (move == length) & (seats < 2), (seats == 2) & (move == 2)
        broken_off = length == 5
        mover = seats == (move - 1) % 2
        out.reward[:] = np.where(over & ~broken_off, np.where(mover, 1.0, -1.0), 0.0)
        out.reward[seats == 2] = 0.25
        out.terminated[:], out.truncated[:] = over & ~broken_off | died, over & broken_off
        out.ended[:] = out.terminated | out.truncated
        out.any_ended, out.num_valid = bool(out.ended.any()), int(out.valid.sum())
        write(out.final_obs, self.seen())
        self.begin(np.flatnonzero(self.move == self.length))
        self.show()

    def restart(self, envs: Array) -> None:
        self.begin(np.flatnonzero(envs))

    def restart_streams(self) -> None: ...
    def change_seed(self, *stream: int) -> None: ...
    def statistics(self) -> list[Any]:
        return []

    def use_statistics(self, statistics: list[Any], *, frozen: bool = True) -> None: ...
    def state_dict(self) -> dict[str, Any]:
        return {}

    def resume(self, state: dict[str, Any]) -> list[int]:
        self.reset()
        return list(range(len(self.length)))

    def close(self) -> None: ...


class FirstMoveDecides(Duels):
    """Duels of two moves: the first mover wins with actions 1 and 3, and learns it while it waits."""

    def begin(self, envs: Any) -> None:
        for env in envs:
            self.length[env], self.move[env] = 2, 0

    def seen(self) -> Any:
        self.clock = 0
        return super().seen()

    def step(self, action: Array) -> None:
        first = self.move == 0
        if not hasattr(self, "won"):
            self.won = np.zeros(len(self.move), np.bool_)
        self.won[first] = action[self.rows.agents == 0][first] % 2 == 1
        super().step(action)
        over = self.out.ended
        won = self.rows.spread(self.won) == (self.rows.agents == 0)
        self.out.reward[:] = np.where(over, np.where(won, 1.0, -1.0), 0.0)


def write(into: Any, what: Any) -> None:
    if isinstance(into, dict):
        for key, array in into.items():
            array[...] = what[key]
    else:
        into[...] = what
