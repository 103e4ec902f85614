"""Columns on disk: what does not fit into the memory of a dataset is in unnamed temporary files.

Rows are read with `pread`, not by mapping the file: the system maps up to two megabytes around each row that is
touched, so random rows of a mapped file would soon all be in the memory of the process. Here nothing stays there. The
system caches what was read, and takes that memory back when someone needs it.
"""

import os
import tempfile
import weakref
from math import prod
from typing import Any, cast

import numpy as np

from rl_training.core.errors import UserError
from rl_training.core.types import Array


class ColumnStore:
    """Allocates columns in memory while they fit into `max_memory` bytes, and the others on disk."""

    def __init__(self, max_memory: int | None = None) -> None:
        self._left = max_memory

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array of this shape and type, or a `DiskColumn`, which is read like one."""
        size: int = prod(shape) * np.dtype(dtype).itemsize
        if self._left is None or size <= self._left:
            self._left = None if self._left is None else self._left - size
            array: Array = np.empty(shape, dtype)
            return array
        return cast(Array, DiskColumn(shape, dtype))  # it has what readers of a dataset use


class DiskColumn:
    """A column in a temporary file, which is deleted with it. Reading rows returns an array in memory."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._row: int = prod(shape[1:]) * self.dtype.itemsize
        try:
            with tempfile.TemporaryFile(prefix="rl_training_dataset_") as file:
                self._file = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._file)
            if self.nbytes and hasattr(os, "posix_fallocate"):  # a full disk is an error now, and not later
                os.posix_fallocate(self._file, 0, self.nbytes)
        except OSError as error:
            raise UserError(
                f"the dataset needs {self.nbytes:,} more bytes in {tempfile.gettempdir()}: {error.strerror}; free "
                "some, set TMPDIR to another folder, or raise max_dataset_memory"
            ) from error

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return self._row * len(self)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Array:
        """Return the rows of a slice, of an array of numbers or of flags, or one row; all are copies."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            found: Array = self._read(np.arange(start, stop, step))
            return found
        wanted = np.asarray(index)
        if wanted.dtype == np.bool_:
            wanted = np.flatnonzero(wanted)
        numbers = np.where(wanted < 0, wanted + len(self), wanted).reshape(-1)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < len(self)):
            raise IndexError(f"rows {numbers.min()} to {numbers.max()} of a column of {len(self)}")
        return self._read(numbers).reshape(*wanted.shape, *self.shape[1:])

    def _read(self, numbers: Array) -> Array:
        """Return rows by number; neighbours are read together."""
        found = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        if not found.nbytes:
            return found
        into, file, row = memoryview(found.reshape(-1).view(np.uint8).data), self._file, self._row
        first = np.concatenate(([0], np.flatnonzero(np.diff(numbers) != 1) + 1))
        ends = np.append(first[1:], len(numbers))
        for start, stop, number in zip(first.tolist(), ends.tolist(), numbers[first].tolist(), strict=True):
            place, end, offset = start * row, stop * row, number * row
            while place < end:
                count = os.preadv(file, [into[place:end]], offset)
                if not count:
                    raise OSError(f"the file of a dataset ends after {offset:,} bytes")
                place, offset = place + count, offset + count
        return found

    def __setitem__(self, rows: slice, values: Any) -> None:
        start, stop, _ = rows.indices(len(self))
        given = np.ascontiguousarray(np.broadcast_to(values, (stop - start, *self.shape[1:])), self.dtype)
        data, offset = memoryview(given.reshape(-1).view(np.uint8).data), start * self._row
        while data:
            count = os.pwrite(self._file, data, offset)
            data, offset = data[count:], offset + count

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the whole column in memory."""
        whole = self[:]
        return whole if dtype is None else whole.astype(dtype)
