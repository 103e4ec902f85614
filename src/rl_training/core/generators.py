"""The global random generators of Python, NumPy and torch: environments, callbacks and dropout may use them."""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch

from rl_training.core.types import State


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
    """Give the caller the generators back as they were."""
    before = global_generators()
    try:
        yield
    finally:
        set_global_generators(before)
