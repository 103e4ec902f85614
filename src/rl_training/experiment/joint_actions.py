"""Actions for all agents of one game at once, from what a `JointEnv` shows."""

from typing import Any

import numpy as np

from rl_training.core.games import Game
from rl_training.core.protocols import Policy
from rl_training.core.types import Array, PolicyState
from rl_training.envs.games.joint_env import ACTS, FLAGS
from rl_training.envs.games.stepper import TeamColumns


class JointActions:
    """Plays one game, step by step, with the memory of all agents."""

    def __init__(self, game: Game, policy: Policy) -> None:
        self.policy = policy
        self._teams = [TeamColumns(game, number, 1) for number in range(len(game.teams))]
        self._names = [team.name for team in game.teams]
        self._memory: PolicyState
        self._fresh: Array
        self.restart()

    def restart(self) -> None:
        """Begin a new game, without memory."""
        rows = sum(columns.size for columns in self._teams)
        self._memory, self._fresh = self.policy.initial_state(rows), np.ones(rows, np.bool_)

    def act(self, obs: dict[str, Array], *, deterministic: bool, rng: np.random.Generator) -> Array:
        """Return the joint action for one observation of a `JointEnv`."""
        batch = {name: np.asarray(part)[None] for name, part in obs.items()}
        for columns in self._teams:
            columns.read(columns.obs, batch)
        seen = {name: columns.obs for name, columns in zip(self._names, self._teams, strict=True)}
        several = len(seen) > 1
        found: Any = seen if several else next(iter(seen.values()))
        chosen, self._memory = self.policy.act(found, self._memory, deterministic=deterministic, rng=rng)
        acts = obs[FLAGS][:, ACTS].astype(np.bool_)
        for part in self._memory:  # a memory begins with the first own action
            part[~acts & self._fresh] = 0.0
        self._fresh &= ~acts
        by_team = chosen if several else (chosen,)
        joined = [columns.joint(own)[0] for columns, own in zip(self._teams, by_team, strict=True)]
        return np.concatenate(joined)
