"""Columns on disk: arrays in an unnamed temporary file, of which a limited part is in memory.

A memory-mapped page stays in the memory of the process once it is read. Random sampling would soon have all of them
there, so a store counts what is touched and tells the system to drop its pages when that reaches a limit.
"""

import mmap
import os
import tempfile
from typing import Any

import numpy as np

from rl_training.core.errors import UserError
from rl_training.core.types import Array

PAGES_PER_FAULT = 2**16
"""Bytes that Linux maps around a page that is read."""


class MappedStore:
    """Allocates columns in a temporary file; at most about `max_memory` bytes of them stay in memory."""

    def __init__(self, max_memory: int) -> None:
        self.max_memory = max_memory
        self.touched = 0
        self._maps: list[mmap.mmap] = []

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array of this shape and type on disk."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if not size:
            return np.empty(shape, dtype)
        try:
            with tempfile.TemporaryFile(prefix="rl_training_dataset_") as file:
                # reserved at once: a full disk is an error here, and not a signal when a page is written
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                else:
                    file.truncate(size)
                mapped = mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise UserError(
                f"the dataset needs {size:,} more bytes in {tempfile.gettempdir()}: {error.strerror}; free some, set "
                "TMPDIR to another folder, or raise max_dataset_memory"
            ) from error
        self._maps.append(mapped)
        found = np.frombuffer(mapped, dtype).reshape(shape).view(MappedColumn)
        found.store = self
        return found

    def touch(self, size: int) -> None:
        """Count bytes that are about to be read or written; drop all pages from memory if it is time."""
        self.touched += size
        if self.touched > self.max_memory:
            self.drop()
            self.touched = size

    def drop(self) -> None:
        """Drop all pages from memory; what was written is in the file."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)


class MappedColumn(np.ndarray):
    """A column on disk. Rows that are read by an array of numbers are an ordinary array in memory.

    Reading rows or slices keeps the memory bounded; a function that takes the whole column reads all of it at once.
    """

    store: MappedStore | None = None

    def __getitem__(self, index: Any) -> Any:
        self._count(index)
        found = super().__getitem__(index)
        return found.view(np.ndarray) if isinstance(found, np.ndarray) else found

    def __setitem__(self, index: Any, values: Any) -> None:
        self._count(index)
        super().__setitem__(index, values)

    def _count(self, index: Any) -> None:
        if self.store is None or not self.ndim:
            return
        row = self.nbytes // max(len(self), 1)
        if isinstance(index, slice):
            self.store.touch(len(range(*index.indices(len(self)))) * row)
        elif isinstance(index, np.ndarray):
            self.store.touch(min(index.size * (row + PAGES_PER_FAULT), self.nbytes))
        else:
            self.store.touch(row + PAGES_PER_FAULT)
