"""Rows and their owners: which environment, and which agent in it, each row of a step belongs to."""

from collections.abc import Iterable, Sequence

import numpy as np

from rl_training.core.types import Array


class Rows:
    """The owners of the rows [N] of a step: `envs` numbers their environments, `agents` the agents within these.

    An environment with a single agent has one row. One with several agents has a row for each of them, and its episode
    is over when the episodes of all its rows are.

    >>> rows = Rows(envs=[0, 0, 1], agents=[0, 1, 0])
    >>> rows.num_envs, rows.of([0])
    (2, [0, 1])
    """

    def __init__(self, envs: Sequence[int], agents: Sequence[int], names: Sequence[str] = ()) -> None:
        """`names` are those of the agents, by number; environments with a single agent have none."""
        self.names = tuple(names)
        self.envs, self.agents = np.array(envs, np.int64), np.array(agents, np.int64)
        self.num_envs = int(self.envs.max(initial=-1)) + 1
        self._is_one_per_env = np.array_equal(self.envs, np.arange(self.num_envs))
        self._of: list[list[int]] = [[] for _ in range(self.num_envs)]
        for row, env in enumerate(envs):
            self._of[env].append(row)
        if len(self.envs) != len(self.agents):
            raise ValueError(f"{len(self.envs)} rows have an environment and {len(self.agents)} an agent")
        if set(envs) != set(range(self.num_envs)):
            raise ValueError(f"environments are numbered {sorted(set(envs))}; use 0, 1, 2, ...")

    @classmethod
    def one_per_env(cls, num_envs: int) -> "Rows":
        """Return the rows of `num_envs` environments with a single agent each."""
        return cls(range(num_envs), [0] * num_envs)

    def __len__(self) -> int:
        return len(self.envs)

    def of(self, envs: Iterable[int]) -> list[int]:
        return [row for env in envs for row in self._of[env]]

    def spread(self, by_env: Array) -> Array:
        """Return the value of each row's environment: [E] becomes [N]."""
        return by_env if self._is_one_per_env else by_env[self.envs]

    def total(self, by_row: Array) -> Array:
        """Return the sum over the rows of each environment: [N] becomes [E]."""
        return by_row if self._is_one_per_env else np.bincount(self.envs, weights=by_row)

    def any(self, by_row: Array) -> Array:
        """Return whether any row of each environment is true: [N] becomes [E]."""
        return by_row if self._is_one_per_env else self.total(by_row) > 0

    def all(self, by_row: Array) -> Array:
        """Return whether all rows of each environment are true: [N] becomes [E]."""
        return by_row if self._is_one_per_env else self.total(~by_row) == 0
