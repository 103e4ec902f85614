"""Environments for the chaos run: importing this registers them, as `--env-id chaos_envs:Id` asks for."""

import gymnasium

from rl_training.envs.probe import NestedDictTarget


class LongNestedDict(NestedDictTarget):
    """Nested Dict observations, drawn anew at every step; the time limit below cuts its episodes."""

    episode_length = 10**9


gymnasium.register("LongNestedDict-v0", entry_point=LongNestedDict, max_episode_steps=37)
