"""Returns, lengths, successes and `info_keywords` of the episodes in progress, by environment."""

import time
from collections.abc import Iterable, Sequence

import numpy as np

from rl_training.core.info_keywords import keyword_parts
from rl_training.core.rows import Rows
from rl_training.core.types import Array, EpisodeStats, State, StepArrays


class EpisodeNumber:
    """The number of one of the `info_keywords` over the steps of the episodes in progress."""

    def __init__(self, keyword: str, num_rows: int) -> None:
        self.keyword = keyword
        self.name, self.reduction = keyword_parts(keyword)
        self.values = np.zeros(num_rows, np.float64)
        self.counts = np.zeros(num_rows, np.int64)
        """How many steps of the episode reported it."""

    def add(self, told: Array) -> None:
        """Add a step; `told` [N] is nan where it is not reported."""
        reported = ~np.isnan(told)
        first = reported if self.reduction == "last" else reported & (self.counts == 0)
        later = reported & ~first
        np.copyto(self.values, told, where=first)
        if self.reduction in ("mean", "sum"):
            np.add(self.values, told, out=self.values, where=later)
        elif self.reduction != "last":
            extreme = np.minimum if self.reduction == "min" else np.maximum
            extreme(self.values, told, out=self.values, where=later)
        self.counts += reported

    def of(self, rows: list[int]) -> float | None:
        """Return the number of an environment's episode, the mean over its agents; None if it was not reported."""
        counts, values = self.counts[rows], self.values[rows]
        if not counts.any():
            return None
        values, counts = values[counts > 0], counts[counts > 0]
        return float((values / counts if self.reduction == "mean" else values).mean())

    def state_dict(self) -> State:
        return {"values": self.values.tolist(), "counts": self.counts.tolist()}

    def load_state_dict(self, state: State | None) -> None:
        """Restore it; a keyword that was not saved starts from here."""
        if state is not None:
            self.values[:], self.counts[:] = state["values"], state["counts"]


class RunningEpisodes:
    """Adds up raw rewards and steps of the episodes in progress, one per environment.

    Rewards are summed over the agents of an environment. Its length counts the steps in which any of them acted,
    opponents as well, and its success is the mean over the agents that report one.
    """

    def __init__(self, rows: Rows, info_keywords: Iterable[str] = ()) -> None:
        self.rows = rows
        self._numbers = [EpisodeNumber(keyword, len(rows)) for keyword in info_keywords]
        self.lengths = np.zeros(rows.num_envs, np.int64)
        self._returns = np.zeros(len(rows), np.float64)
        self._successes = np.full(len(rows), np.nan)
        self._ended = np.zeros(len(rows), np.bool_)
        self._started = np.full(rows.num_envs, time.monotonic())

    def add(self, step: StepArrays) -> None:
        self._returns += step.reward
        self.lengths += self.rows.any(step.valid if step.played is None else step.played)
        if step.any_ended:
            self._ended |= step.ended
            np.copyto(self._successes, step.success, where=step.ended)
        for number in self._numbers:
            number.add(step.info[number.keyword])

    @property
    def over(self) -> Array:
        """A mask of the environments [E] whose episode is over: those of all their agents have ended."""
        return self.rows.all(self._ended)

    def stats(self, env: int) -> EpisodeStats:
        """Return the totals of an environment's episode so far."""
        rows = self.rows.of([env])
        successes = self._successes[rows]
        told = successes[~np.isnan(successes)]
        return EpisodeStats(
            float(self._returns[rows].sum()),
            int(self.lengths[env]),
            time.monotonic() - float(self._started[env]),
            float(told.mean()) if len(told) else None,
            {number.name: value for number in self._numbers if (value := number.of(rows)) is not None},
            dict(zip(self.rows.names, self._returns[rows].tolist(), strict=True)) if self.rows.names else {},
        )

    def restart(self, envs: Array) -> None:
        """Begin new episodes in the environments of a mask [E]."""
        rows = self.rows.spread(envs)
        self._returns[rows] = 0.0
        self._successes[rows] = np.nan
        self._ended[rows] = False
        for number in self._numbers:
            number.counts[rows] = 0
        self.lengths[envs] = 0
        self._started[envs] = time.monotonic()

    def record(self, step: StepArrays) -> list[EpisodeStats]:
        """Add one step; return the episodes that are over with it, and begin new ones in their place."""
        self.add(step)
        if not step.any_ended:
            return []
        over = self.over.copy()
        finished = [self.stats(int(env)) for env in np.flatnonzero(over)]
        self.restart(over)
        return finished

    def state_dict(self) -> State:
        return {
            "returns": self._returns.tolist(),
            "lengths": self.lengths.tolist(),
            "ended": self._ended.tolist(),
            "successes": [None if np.isnan(said) else said for said in self._successes.tolist()],
        } | ({"info": {each.keyword: each.state_dict() for each in self._numbers}} if self._numbers else {})

    def load_state_dict(self, state: State, *, lost: Sequence[int] = ()) -> None:
        """Restore them; those of another number of rows, and of the `lost` environments, start from 0."""
        if len(state["returns"]) != len(self._returns) or len(state["lengths"]) != len(self.lengths):
            return
        self._returns[:] = state["returns"]
        self.lengths[:] = state["lengths"]
        self._ended[:] = state["ended"]
        self._successes[:] = [np.nan if said is None else float(said) for said in state["successes"]]
        for number in self._numbers:
            number.load_state_dict(state.get("info", {}).get(number.keyword))
        self.restart(np.isin(np.arange(self.rows.num_envs), list(lost)))
