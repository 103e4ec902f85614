"""Plays a fixed number of episodes with a frozen policy, in environments of its own."""

import numpy as np

from rl_training.core.protocols import EnvStepper, Policy
from rl_training.core.types import Evaluation


class Evaluator:
    """Gives every environment a fixed quota of episodes, so that short episodes are not over-counted."""

    def __init__(self, env: EnvStepper, policy: Policy) -> None:
        self.env = env
        self.policy = policy

    def evaluate(self, num_episodes: int, *, deterministic: bool, rng: np.random.Generator) -> Evaluation:
        """Return the raw returns and lengths of exactly `num_episodes` episodes, ordered by environment."""
        n = self.env.spec.num_envs
        quota = np.full(n, num_episodes // n) + (np.arange(n) < num_episodes % n)
        finished: list[list[tuple[float, int]]] = [[] for _ in range(n)]
        returns, lengths = np.zeros(n), np.zeros(n, np.int64)
        remaining = num_episodes
        self.env.reset()
        step = self.env.out
        while remaining:
            self.env.step(self.policy.act(step.obs, deterministic=deterministic, rng=rng))
            returns += step.reward
            lengths += step.valid
            if not step.any_ended:
                continue
            for row in np.flatnonzero(step.ended):
                if len(finished[row]) < quota[row]:
                    finished[row].append((float(returns[row]), int(lengths[row])))
                    remaining -= 1
            returns[step.ended] = 0.0
            lengths[step.ended] = 0
        played = [episode for episodes in finished for episode in episodes]
        return Evaluation([total for total, _ in played], [length for _, length in played])
