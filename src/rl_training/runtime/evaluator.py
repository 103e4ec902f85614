"""Plays a fixed number of episodes with a frozen policy, in separate environments."""

import numpy as np

from rl_training.core.protocols import EnvStepper, Policy
from rl_training.core.types import Array, EpisodeStats, Evaluation, PolicyState
from rl_training.runtime.episodes import RunningEpisodes


class Evaluator:
    """Gives every environment a fixed quota of episodes, so that short episodes are not over-counted."""

    def __init__(self, stepper: EnvStepper, policy: Policy) -> None:
        self.stepper = stepper
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

        An episode that has not ended after `max_episode_steps` is cut off and counted as such: in an environment
        without a time limit a policy may never reach an end.
        """
        stepper, running = self.stepper, RunningEpisodes(self.stepper.rows, self.stepper.out.info)
        n = stepper.rows.num_envs
        quota = np.full(n, num_episodes // n) + (np.arange(n) < num_episodes % n)
        finished: list[list[EpisodeStats]] = [[] for _ in range(n)]
        remaining, capped = num_episodes, 0
        stepper.reset()
        step, memory = stepper.out, self.policy.initial_state(len(stepper.rows))
        fresh = np.ones(len(stepper.rows), np.bool_)  # rows that have not acted yet in their episode
        while remaining:
            actions, memory = self.policy.act(step.obs, memory, deterministic=deterministic, rng=rng)
            stepper.step(actions)
            if step.num_valid < len(stepper.rows):  # a memory begins with the first own action
                _clear(memory, ~step.valid & fresh)
            fresh &= ~step.valid
            running.add(step)
            cut = None
            if max_episode_steps is not None and (running.lengths >= max_episode_steps).any():
                cut = (running.lengths >= max_episode_steps) & ~running.over
                if cut.any():
                    stepper.restart(cut)
            elif not step.any_ended:
                continue
            over = running.over.copy() if cut is None else running.over | cut
            for env in np.flatnonzero(over):
                if len(finished[env]) < quota[env]:
                    finished[env].append(running.stats(int(env)))
                    remaining -= 1
                    capped += cut is not None and bool(cut[env])
            running.restart(over)
            begins = stepper.rows.spread(over) | step.ended
            _clear(memory, begins)
            fresh |= begins
        return _evaluation([episode for episodes in finished for episode in episodes], capped)


def _evaluation(played: list[EpisodeStats], capped: int) -> Evaluation:
    return Evaluation(
        [episode.total_reward for episode in played],
        [episode.length for episode in played],
        [episode.success for episode in played if episode.success is not None],
        num_capped=capped,
        infos=[episode.info for episode in played],
        agents=[episode.agents for episode in played if episode.agents],
    )


def _clear(memory: PolicyState, rows: Array) -> None:
    """Start the memory of these rows again."""
    for part in memory:
        part[rows] = 0.0
