"""From steps to finished transitions with n-step returns.

Returns are summed when written, so sampling stays one lookup. A window never crosses the end of an episode: there, all
waiting transitions are finished with the rewards so far; their discount is gamma to the power of the number of rewards.
"""

from typing import Any

import numpy as np
import torch

from rl_training.core.errors import EnvironmentFault
from rl_training.core.types import Array, State


class NStepWindow:
    """The last `n` steps of each of `num_envs` environments, as rows of `dtype` (a structured type).

    Call `begin` with the observations and actions of a step, then `complete` with its outcome.
    """

    def __init__(self, dtype: np.dtype[Any], *, n: int, gamma: float, num_envs: int) -> None:
        if n < 1:
            raise ValueError(f"n_step must be 1 or more, got {n}")
        self.n, self.gamma = n, gamma
        self.rows = np.zeros((n, num_envs), dtype)
        self.fields = {name: self.rows[name] for name in dtype.names or ()}
        self.time = np.zeros(num_envs, np.int64)  # steps recorded in the current episode
        self._envs = np.arange(num_envs)
        self._slots = np.arange(n)[:, None]
        self._powers = gamma ** np.arange(n + 1)
        self._bootstraps = np.zeros(num_envs, np.bool_)

    def begin(self, values: dict[str, Array]) -> None:
        """Open a transition per environment: `values` are its fields [N, ...], observation and action."""
        place: Any = 0 if self.n == 1 else (self.time % self.n, self._envs)
        for name, value in values.items():
            self.fields[name][place] = value
        self.fields["rewards"][place] = 0.0

    def complete(
        self, reward: Array, terminated: Array, ended: Array, valid: Array, next_values: dict[str, Array]
    ) -> Array:
        """Add the rewards [N]; return the finished transitions [K], oldest first within each environment.

        `next_values` are the fields [N, ...] of the true successors; rows that are not `valid` are ignored.
        """
        if self.n == 1:
            return self._complete_single(reward, terminated, valid, next_values)
        time = self.time
        age = (time - self._slots) % self.n  # [n, N]: steps since each slot was opened
        counts = (age <= time) & valid
        self._add_rewards(np.where(counts, self._powers[age] * reward, 0.0))
        full = np.flatnonzero(valid & (time >= self.n - 1))
        ages = [np.full(len(full), self.n - 1)]
        envs = [full]
        for env in np.flatnonzero(ended & valid):
            waiting = np.arange(min(self.n - 2, int(time[env])), -1, -1)
            ages.append(waiting)
            envs.append(np.full(len(waiting), env))
        finished = self._finished(np.concatenate(ages), np.concatenate(envs), terminated, next_values)
        time += valid
        time[ended & valid] = 0
        return finished

    def _add_rewards(self, discounted: Array) -> None:
        """Add to the sums [n, N]; raise an error if one does not fit their type."""
        sums = self.fields["rewards"]
        with np.errstate(over="ignore"):
            sums += discounted
        fits = np.isfinite(sums)
        if not fits.all():
            env = int(np.flatnonzero(~fits.all(axis=0))[0])
            raise EnvironmentFault(
                f"environment {env} returned rewards whose sum over {self.n} steps (n_step) does not fit "
                f"{sums.dtype}, at step {self.time[env] + 1} of its episode; fix the environment, or clip the reward "
                "in a wrapper"
            )

    def _complete_single(
        self, reward: Array, terminated: Array, valid: Array, next_values: dict[str, Array]
    ) -> Array:
        """Complete one-step returns: every valid row is finished at once."""
        self.fields["rewards"][0] = reward
        np.logical_not(terminated, out=self._bootstraps)
        np.multiply(self._bootstraps, self.gamma, out=self.fields["discounts"][0])
        for name, value in next_values.items():
            self.fields[name][0] = value
        rows: Array = self.rows[0]
        return rows if np.logical_and.reduce(valid) else rows[valid]

    def _finished(self, ages: Array, envs: Array, terminated: Array, next_values: dict[str, Array]) -> Array:
        rows: Array = self.rows[(self.time[envs] - ages) % self.n, envs]
        rows["discounts"] = self._powers[ages + 1] * ~terminated[envs]
        for name, value in next_values.items():
            rows[name] = value[envs]
        return rows

    def waiting(self) -> Array:
        """Return the rows [K] that are open between two steps: at most the last n - 1 of each episode."""
        age = (self.time - 1 - self._slots) % self.n  # [n, N]: 0 is the newest
        rows: Array = self.rows[age < np.minimum(self.time, self.n - 1)]
        return rows

    def forget(self, envs: Any) -> None:
        """Drop the open rows of these environments, whose episodes do not continue."""
        self.time[envs] = 0

    def state_dict(self) -> State:
        columns = {name: torch.from_numpy(column.copy()) for name, column in self.fields.items()}
        return {"columns": columns, "time": torch.from_numpy(self.time.copy())}

    def load_state_dict(self, state: State) -> None:
        """Restore the open rows; those of another number of environments are ignored."""
        if len(state["time"]) != len(self.time):
            return
        self.time[:] = state["time"].numpy()
        for name, column in self.fields.items():
            column[...] = state["columns"][name].numpy()
