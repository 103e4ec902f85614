"""From steps to finished transitions for rows that may wait: n-step returns over a row's own actions.

What follows an action is known when the same row acts again, or when its episode ends. Until then the transition is
open and receives what the row is paid while it waits.
"""

from typing import Any

import numpy as np

from rl_training.core.types import Array
from rl_training.data.n_step import NStepWindow


class TurnWindow(NStepWindow):
    """The last `n` own actions of each row; `time` counts those of the current episode.

    Its use is that of `NStepWindow`. A transition is finished by the row's n-th own action after it, and its successor
    is what the row saw there; or by the end of the episode, in a valid row or not.
    """

    def __init__(self, dtype: np.dtype[Any], *, n: int, gamma: float, num_envs: int) -> None:
        super().__init__(dtype, n=n, gamma=gamma, num_envs=num_envs)
        self._begun = {name: np.zeros_like(column[0]) for name, column in self.fields.items()}
        self._seen = [name for name in self.fields if f"next_{name}" in self.fields]
        self._given: list[str] = []

    def begin(self, values: dict[str, Array]) -> None:
        """Copy the fields [N, ...] of the next actions; only the outcome shows which of them are used."""
        for name, value in values.items():
            self._begun[name][...] = value
        self._given = list(values)

    def complete(
        self, reward: Array, terminated: Array, ended: Array, valid: Array, next_values: dict[str, Array]
    ) -> Array:
        """Open a transition per valid row and add the rewards [N]; return the finished ones [K], the oldest first.

        `next_values` are the fields [N, ...] of the successors where an episode ended. Rewards without an own action
        before them in the episode are ignored.
        """
        acting, time = np.flatnonzero(valid), self.time
        full = acting[time[acting] >= self.n]
        replaced = self._taken(np.full(len(full), self.n - 1), full)
        replaced["discounts"] = self._powers[self.n]
        for name in self._seen:
            replaced[f"next_{name}"] = self._begun[name][full]
        self._open(acting)

        age = (time - 1 - self._slots) % self.n  # [n, N]: own actions since each slot was opened
        self._add_rewards(np.where(age < time, self._powers[age] * reward, 0.0))
        over = np.flatnonzero(ended & (time > 0))
        counts = np.minimum(time[over], self.n)
        rows = np.repeat(over, counts)
        ages = np.concatenate([np.zeros(0, np.int64), *(np.arange(count)[::-1] for count in counts)])
        last = self._taken(ages, rows)
        last["discounts"] = self._powers[ages + 1] * ~terminated[rows]
        for name, value in next_values.items():
            last[name] = value[rows]
        time[over] = 0
        return np.concatenate([replaced, last])

    def waiting(self) -> Array:
        """Return the rows [K] that are open between two steps: at most the last n own actions of each episode."""
        age = (self.time - 1 - self._slots) % self.n
        rows: Array = self.rows[age < self.time]
        return rows

    def _open(self, acting: Array) -> None:
        place = self.time[acting] % self.n, acting
        for name in self._given:
            self.fields[name][place] = self._begun[name][acting]
        self.fields["rewards"][place] = 0.0
        self.time[acting] += 1

    def _taken(self, ages: Array, rows: Array) -> Array:
        """Return copies of open transitions; age 0 is the newest of a row."""
        found: Array = self.rows[(self.time[rows] - 1 - ages) % self.n, rows]
        return found
