"""One root seed, one independent random stream per consumer, all passed explicitly.

A stream is named by a number that never changes; it is the `spawn_key` of a NumPy `SeedSequence`.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import torch

EPISODES = 0
EVALUATION_EPISODES = 1
ACTIONS = 2
MINIBATCHES = 3
EVALUATION_ACTIONS = 4
ACTION_SPACES = 5
NATIVE_RESUMES = 6
REPLAY = 7
UPDATE_NOISE = 8
HISTORY_CHECK = 9

EPISODE_BLOCK = 64


def derived_seed(seed: int, *stream: int) -> int:
    """Return a 32-bit seed that depends on the root seed and the stream's numbers alone."""
    return int(np.random.SeedSequence(seed, spawn_key=stream).generate_state(1)[0])


def episode_seed(seed: int, env_index: int, episode: int, stream: int = EPISODES) -> int:
    """Return the reset seed of episode `episode` of environment `env_index`."""
    return _episode_seeds(seed, stream, env_index, episode // EPISODE_BLOCK)[episode % EPISODE_BLOCK]


@lru_cache(maxsize=1024)
def _episode_seeds(seed: int, *stream: int) -> list[int]:
    """Return the seeds of a block of episodes: making one costs as much as making all, and as much as a reset."""
    words = np.random.SeedSequence(seed, spawn_key=stream).generate_state(EPISODE_BLOCK)
    return [int(word) for word in words]


def numpy_generator(seed: int, stream: int) -> np.random.Generator:
    """Return the NumPy generator of one consumer."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(stream,))))


def torch_generator(seed: int) -> torch.Generator:
    """Return the CPU generator that initial weights are drawn from."""
    return torch.Generator().manual_seed(seed)


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """Return a NumPy generator's state as plain data."""
    return dict(generator.bit_generator.state)


def set_generator_state(generator: np.random.Generator, state: dict[str, Any]) -> None:
    """Continue a NumPy generator where `generator_state` left it."""
    generator.bit_generator.state = state
