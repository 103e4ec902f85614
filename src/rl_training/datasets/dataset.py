"""A dataset: recorded episodes as columns, whatever files they come from.

Letters: `N` transitions, `E` episodes. An episode of T steps has T + 1 observations, so there are N + E of them.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import Space

from rl_training.core.spaces.layout import space_text, take_rows
from rl_training.core.types import Array, ObsArray, leaves

ROWS_AT_ONCE = 2**16


@dataclass(frozen=True)
class RecordedIn:
    """The environment that a dataset was recorded in, as far as it says so."""

    env_id: str = ""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None


NOWHERE = RecordedIn()
"""The files do not say where they were recorded."""


@dataclass(frozen=True)
class Dataset:
    """Episodes one after the other, in the units of a policy: continuous actions in [-1, 1] where bounds are finite."""

    name: str
    observation_space: Space[Any]
    action_space: Space[Any]
    obs: ObsArray
    """Observations [N + E, ...]: those of an episode, with its last one, then those of the next."""
    actions: Array
    """Actions [N, ...] as a policy stores them; see `ActionAdapter`."""
    rewards: Array
    """Raw rewards [N]."""
    terminated: Array
    """Whether each step [N] ended the task; a time limit does not."""
    ends: Array
    """The number of transitions up to the end of each episode [E]."""
    recorded_in: RecordedIn = NOWHERE
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Other descriptions in the files, such as who recorded the dataset."""
    remarks: tuple[str, ...] = ()
    """What a user should know about how the files were read, such as steps that were dropped."""
    digest: str = ""
    """Hash of spaces and numbers, whatever the format of the files."""

    @property
    def num_steps(self) -> int:
        return len(self.actions)

    @property
    def num_episodes(self) -> int:
        return len(self.ends)

    @property
    def lengths(self) -> Array:
        """Number of transitions of each episode [E]."""
        return np.diff(self.ends, prepend=0)

    @property
    def nbytes(self) -> int:
        """Memory or disk space of all columns."""
        return sum(array.nbytes for array in self._columns())

    def returns(self) -> Array:
        """Return the sum of rewards of each episode [E]."""
        totals = np.zeros(self.num_episodes)
        for start in range(0, self.num_steps, ROWS_AT_ONCE):
            steps = np.arange(start, min(start + ROWS_AT_ONCE, self.num_steps))
            np.add.at(totals, self.episode_of(steps), self.rewards[steps].astype(np.float64))
        return totals

    def episode_of(self, steps: Array) -> Array:
        """Return the episodes [B] that transitions [B] belong to."""
        return np.searchsorted(self.ends, steps, side="right")

    def obs_rows(self, steps: Array) -> Array:
        """Return the rows [B] of `obs` in which transitions [B] begin; each ends in the row after."""
        rows: Array = steps + self.episode_of(steps)
        return rows

    def observations(self, rows: Array) -> ObsArray:
        """Return observations [B, ...], copied."""
        return take_rows(self.obs, rows)

    def _columns(self) -> Iterator[Array]:
        yield from (array for _, array in leaves(self.obs))
        yield from (self.actions, self.rewards, self.terminated, self.ends)

    def computed_digest(self) -> str:
        """Return the hash of spaces and numbers."""
        found = hashlib.sha256()
        for space in (self.observation_space, self.action_space):
            found.update(space_text(space).encode())
        for column in self._columns():
            found.update(f"{column.shape}{column.dtype}".encode())
            for start in range(0, len(column), ROWS_AT_ONCE):
                found.update(np.ascontiguousarray(column[start : start + ROWS_AT_ONCE]).tobytes())
        return found.hexdigest()[:32]
