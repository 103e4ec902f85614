"""Arrays in memory that several processes share. It has no name, so nothing is left when they end."""

import mmap
import os
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from rl_training.core.errors import UserError
from rl_training.core.types import Array

ALIGNMENT = 64


class SharedArrays:
    """Named arrays in one block of anonymous memory; pages are allocated when they are first written."""

    def __init__(
        self, layout: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]], descriptor: int | None = None
    ) -> None:
        """`layout` is shape and type by name; `descriptor` is that of another process, whose arrays these are."""
        starts, size = {}, 0
        for name, (shape, dtype) in layout.items():
            starts[name] = size
            size += -(-prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        self.descriptor, self._map = _mapped(size, descriptor)
        self._arrays = {
            name: np.frombuffer(self._map, dtype, prod(shape), starts[name]).reshape(shape)
            for name, (shape, dtype) in layout.items()
        }

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def under(self, prefix: str) -> dict[str, Array]:
        """Return the arrays whose names begin with `prefix/`, without it."""
        start = f"{prefix}/"
        return {
            name.removeprefix(start): array for name, array in self._arrays.items() if name.startswith(start)
        }

    def close(self) -> None:
        """Release the memory, as soon as no array is used any more."""
        self._arrays = {}
        os.close(self.descriptor)


def _mapped(size: int, descriptor: int | None) -> tuple[int, mmap.mmap]:
    """Map memory of this size, that of a descriptor or new one."""
    new = descriptor is None
    try:
        if descriptor is None:
            descriptor = os.memfd_create("rl_training")
            os.ftruncate(descriptor, max(size, 1))
        return descriptor, mmap.mmap(descriptor, max(size, 1))
    except (OSError, OverflowError, ValueError, AttributeError) as error:
        if new and descriptor is not None:
            os.close(descriptor)
        raise UserError(
            f"{size:,} bytes of shared memory cannot be allocated ({error}); use fewer num_envs or steps per rollout, "
            "or engine 'local'"
        ) from error
