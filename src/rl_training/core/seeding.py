"""One root seed, one independent random stream per consumer, all passed explicitly.

A stream is named by a number that never changes; it is the `spawn_key` of a NumPy `SeedSequence`.
"""

import contextlib
import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from rl_training.core.types import State

EPISODES, EVALUATION_EPISODES, ACTIONS, MINIBATCHES, EVALUATION_ACTIONS = range(5)
ACTION_SPACES, NATIVE_RESUMES, REPLAY, UPDATE_NOISE, HISTORY_CHECK = range(5, 10)
EVALUATION_GLOBALS, GROUPS, HELD_OUT, DATASET, TEAMS, OPPONENTS = range(10, 16)
RECORDED_EPISODES, RECORDED_ACTIONS = 20, 21
MATCH_PLAYERS, MATCH_OPENINGS = 22, 23

EPISODE_BLOCK = 64


def derived_seed(seed: int, *stream: int) -> int:
    """Return a 32-bit seed that depends only on the root seed and the numbers of the stream."""
    return int(np.random.SeedSequence(seed, spawn_key=stream).generate_state(1)[0])


def episode_seed(seed: int, env_index: int, episode: int, stream: int = EPISODES) -> int:
    """Return the reset seed of episode `episode` of environment `env_index`."""
    return _episode_seeds(seed, stream, env_index, episode // EPISODE_BLOCK)[episode % EPISODE_BLOCK]


@lru_cache(maxsize=1024)
def _episode_seeds(seed: int, *stream: int) -> list[int]:
    """Return the seeds of a block of episodes, which takes as long as for a single one."""
    words = np.random.SeedSequence(seed, spawn_key=stream).generate_state(EPISODE_BLOCK)
    return [int(word) for word in words]


def numpy_generator(seed: int, stream: int, group: int | None = None) -> np.random.Generator:
    """Return the NumPy generator of one consumer; each `group` of environments has an independent one."""
    key = (stream,) if group is None else (stream, group)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """Return a NumPy generator's state as plain data."""
    return dict(generator.bit_generator.state)


def set_generator_state(generator: np.random.Generator, state: dict[str, Any]) -> None:
    """Continue a NumPy generator where `generator_state` left it."""
    generator.bit_generator.state = state


def seed_global_generators(seed: int) -> None:
    """Seed the generators that environments, callbacks and encoders may use."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def global_generators() -> State:
    """Return the states of Python's, NumPy's and torch's global generators."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(words), gauss],
        "numpy": [str(kind), np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
    }


def set_global_generators(state: State) -> None:
    """Restore what `global_generators` returned."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])


@contextlib.contextmanager
def callers_generators_kept() -> Iterator[None]:
    """Restore the global generators of the caller at the end."""
    before = global_generators()
    try:
        yield
    finally:
        set_global_generators(before)


@contextlib.contextmanager
def evaluation_generators(seed: int) -> Iterator[None]:
    """Seed the global generators for an evaluation, and restore those of the caller at the end.

    So evaluations repeat their random numbers and leave those of training alone, also if an environment uses the global
    generators. Generators of other devices stay as they are, as torch cannot restore them cheaply.
    """
    own = derived_seed(seed, EVALUATION_GLOBALS)
    with callers_generators_kept():
        random.seed(own)
        np.random.seed(own)
        torch.default_generator.manual_seed(own)  # torch.manual_seed would also seed other devices
        yield
