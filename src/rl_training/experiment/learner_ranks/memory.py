"""Memory that processes of one machine share. It has no name, so nothing is left when the processes end."""

import mmap
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.core.tensor_struct import TensorStruct
from rl_training.core.types import Array

ALIGNMENT = 64
_LOCK = threading.Lock()


def fence() -> None:
    """Order the writes before this call before those after it, and reads likewise, on every kind of processor."""
    for _ in range(2):
        _LOCK.acquire()
        _LOCK.release()


class SharedBlock:
    """Bytes behind a file descriptor, which a child process inherits. Only one process makes it larger."""

    def __init__(self, descriptor: int | None = None) -> None:
        """Without a descriptor, create an empty block."""
        if descriptor is not None:
            self.descriptor = descriptor
        elif hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create("rl_training")
        else:
            with tempfile.TemporaryFile() as file:
                self.descriptor = os.dup(file.fileno())
        self._map: mmap.mmap | None = None

    def reserve(self, size: int) -> int:
        """Make the block at least this large; return its size."""
        found = os.fstat(self.descriptor).st_size
        if found < size:
            found = max(size, 2 * found)
            os.ftruncate(self.descriptor, found)
        return found

    def array(self, offset: int, shape: Iterable[int], dtype: Any) -> Array:
        """Return a view of a part of the block."""
        shape, dtype = tuple(shape), np.dtype(dtype)
        end = offset + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        if self._map is None or len(self._map) < end:
            # an older mapping lives as long as its views
            self._map = mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size)
        return np.ndarray(shape, dtype, self._map, offset)

    def write(self, content: bytes) -> int:
        """Replace the content; return its size."""
        self.reserve(len(content))
        self.array(0, (len(content),), np.uint8)[:] = np.frombuffer(content, np.uint8)
        return len(content)

    def read(self, size: int) -> bytes:
        return self.array(0, (size,), np.uint8).tobytes()

    def close(self) -> None:
        self._map = None
        os.close(self.descriptor)


class Board:
    """Counters of all ranks: shards that are ready, updates that are finished, digests after them, signs of life."""

    def __init__(self, block: SharedBlock, shards: int, ranks: int) -> None:
        block.reserve(8 * (shards + 3 * ranks))
        starts = (shards + ranks * number for number in range(3))
        found = [block.array(0, (shards,), np.int64)]
        found += [block.array(8 * start, (ranks,), np.int64) for start in starts]
        # reading a number from a memoryview takes a third of the time
        self.ready, self.finished, self.digests, self.alive = (part.data for part in found)


Part = tuple[str, str | int | None]
"""Where a tensor is in a batch: the field, and the key or the index in it."""
Layout = tuple[type[TensorStruct], list[tuple[Part, str, tuple[int, ...], int]]]
"""The class of a batch, and for each of its tensors the part, type, shape and offset."""


def write_batch(batch: TensorStruct, block: SharedBlock) -> Layout:
    """Copy the tensors of a batch into a block; return where they are."""
    arrays, offset = list[tuple[int, Array]](), 0
    places: list[tuple[Part, str, tuple[int, ...], int]] = []
    for part, array in batch_parts(batch):
        places.append((part, array.dtype.str, array.shape, offset))
        arrays.append((offset, array))
        offset += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    block.reserve(max(offset, 1))
    for start, array in arrays:
        block.array(start, array.shape, array.dtype)[...] = array
    return type(batch), places


def read_batch(layout: Layout, block: SharedBlock) -> Any:
    """Return a batch whose tensors are views of a block."""
    kind, places = layout
    return joined_batch(
        kind, ((part, block.array(offset, shape, dtype)) for part, dtype, shape, offset in places)
    )


def batch_parts(batch: TensorStruct) -> Iterator[tuple[Part, Array]]:
    """Yield the parts of a batch as arrays of the same memory."""
    for item in fields(batch):  # type: ignore[arg-type]  # a mix-in of dataclasses
        for key, tensor in _tensors(getattr(batch, item.name)):
            yield (item.name, key), tensor.numpy()


def joined_batch(kind: type[TensorStruct], parts: Iterable[tuple[Part, Array]]) -> Any:
    """Return a batch with tensors of the same memory as the arrays of its parts."""
    found: dict[str, Any] = {}
    for (name, key), array in parts:
        tensor = torch.from_numpy(array)
        if key is None:
            found[name] = tensor
        elif isinstance(key, int):
            found[name] = (*found.get(name, ()), tensor)
        else:
            found.setdefault(name, {})[key] = tensor
    return kind(**found)


def _tensors(value: Any) -> list[tuple[str | int | None, Tensor]]:
    if value is None:
        return []
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, tuple) else [(None, value)]
