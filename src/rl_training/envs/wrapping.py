"""What is put around a single environment because the config asks for it."""

from typing import Any

import gymnasium
from gymnasium.wrappers import TimeLimit

Env = gymnasium.Env[Any, Any]


def limited(env: Env, max_episode_steps: int) -> Env:
    """Return an environment whose episodes are truncated after so many steps.

    A time limit that is there is replaced where it stands, so that wrappers around it go on seeing one.
    """
    if isinstance(env, TimeLimit):
        return TimeLimit(env.env, max_episode_steps)
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer.env, TimeLimit):
            layer.env = TimeLimit(layer.env.env, max_episode_steps)
            return env
        layer = layer.env
    return TimeLimit(env, max_episode_steps)
