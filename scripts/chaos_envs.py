"""Environments for the chaos run: importing this registers them, as `--env-id chaos_envs:Id` asks for."""

from typing import Any

import gymnasium
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from rl_training.envs.probe import NestedDictTarget


class LongNestedDict(NestedDictTarget):
    """Nested Dict observations, drawn anew at every step; the time limit below cuts its episodes."""

    episode_length = 10**9


def wrapped_pendulum(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    """A pendulum whose wrappers keep statistics over all episodes, which no seed and no actions bring back."""
    env = gymnasium.make("Pendulum-v1", max_episode_steps=50, **kwargs)
    return NormalizeReward(NormalizeObservation(env))


gymnasium.register("LongNestedDict-v0", entry_point=LongNestedDict, max_episode_steps=37)
gymnasium.register("WrappedPendulum-v0", entry_point=wrapped_pendulum)
