"""Plays a fixed number of episodes with a frozen policy, in environments of its own."""

from typing import NamedTuple

import numpy as np

from rl_training.core.protocols import EnvStepper, Policy
from rl_training.core.types import Evaluation


class Played(NamedTuple):
    """One episode; `success` is nan where nobody says."""

    total: float
    length: int
    success: float


class Evaluator:
    """Gives every environment a fixed quota of episodes, so that short episodes are not over-counted."""

    def __init__(self, env: EnvStepper, policy: Policy) -> None:
        self.env = env
        self.policy = policy

    def evaluate(
        self,
        num_episodes: int,
        *,
        deterministic: bool,
        rng: np.random.Generator,
        max_episode_steps: int | None = None,
    ) -> Evaluation:
        """Return the raw returns and lengths of exactly `num_episodes` episodes, ordered by environment.

        An episode that has not ended after `max_episode_steps` is cut off and counted as such: a policy that walks in
        circles in an environment without a time limit would never be done.
        """
        n = self.env.spec.num_envs
        quota = np.full(n, num_episodes // n) + (np.arange(n) < num_episodes % n)
        finished: list[list[Played]] = [[] for _ in range(n)]
        returns, lengths = np.zeros(n), np.zeros(n, np.int64)
        remaining, capped = num_episodes, 0
        self.env.reset()
        step, memory = self.env.out, self.policy.initial_state(n)
        while remaining:
            actions, memory = self.policy.act(step.obs, memory, deterministic=deterministic, rng=rng)
            self.env.step(actions)
            if step.num_valid < n:  # what was seen in a dead row belongs to no episode
                for part in memory:
                    part[~step.valid] = 0.0
            returns += step.reward
            lengths += step.valid
            over = step.ended
            if max_episode_steps is not None and (lengths >= max_episode_steps).any():
                cut = (lengths >= max_episode_steps) & ~step.ended
                capped += sum(len(finished[row]) < int(quota[row]) for row in np.flatnonzero(cut))
                over = step.ended | cut
                if cut.any():
                    self.env.restart(cut)
            elif not step.any_ended:
                continue
            for row in np.flatnonzero(over):
                if len(finished[row]) < quota[row]:
                    success = float(step.success[row]) if step.ended[row] else np.nan
                    finished[row].append(Played(float(returns[row]), int(lengths[row]), success))
                    remaining -= 1
            returns[over] = 0.0
            lengths[over] = 0
            for part in memory:
                part[over] = 0.0
        played = [episode for episodes in finished for episode in episodes]
        successes = [episode.success for episode in played if not np.isnan(episode.success)]
        totals, steps = [episode.total for episode in played], [episode.length for episode in played]
        return Evaluation(totals, steps, successes, num_capped=capped)
