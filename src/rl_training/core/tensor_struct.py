"""Frozen records of tensors that move, index and map as one. Used per batch, never per step."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from itertools import repeat
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from rl_training.core.types import Array


class TensorStruct:
    """Mix-in for frozen dataclasses whose fields are tensors, dicts or tuples of tensors, or None."""

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return the record with `function` applied to every tensor."""
        parts = {f.name: _map(getattr(self, f.name), function) for f in fields(self)}  # type: ignore[arg-type]  # mix-in
        return type(self)(**parts)

    @property
    def num_items(self) -> int:
        """The number of rows, or of whatever else `part` counts."""
        return len(self)  # type: ignore[arg-type]  # mix-in

    def part(self, place: slice) -> Self:
        """Return some of the rows in order, as views."""
        return self.map(lambda numbers: numbers[place])

    def take(self, index: Tensor | Array) -> Self:
        """Return the rows `index`, copied."""
        return self.map(lambda numbers: taken(numbers, index))

    def split(self, size: int) -> Iterator[Self]:
        """Yield the rows in order, `size` at a time, as views."""
        columns = [_split(getattr(self, f.name), size) for f in fields(self)]  # type: ignore[arg-type]  # mix-in
        for parts in zip(*columns, strict=False):  # a field that is None or empty repeats forever
            yield type(self)(*parts)

    def arrays(self) -> Self:
        """Return the record with arrays of the same memory in place of tensors on the CPU: for arithmetic in NumPy."""
        return self.map(Tensor.numpy)  # type: ignore[arg-type]  # arrays on purpose

    def tensors(self) -> Self:
        """Return the record with tensors of the same memory in place of arrays."""
        return self.map(torch.from_numpy)

    def to(self, device: Any) -> Self:
        return self.map(lambda tensor: tensor.to(device))


def taken(numbers: Any, index: Tensor | Array) -> Any:
    """Return rows of a tensor or an array, copied, as the same kind."""
    if isinstance(numbers, Tensor):
        return numbers[torch.as_tensor(index, device=numbers.device)]
    return numbers.take(np.asarray(index), axis=0)


def _map(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if value is None:
        return None
    if isinstance(value, dict):
        return {key: function(tensor) for key, tensor in value.items()}
    if isinstance(value, tuple):
        return tuple(function(tensor) for tensor in value)
    return function(value)


def _split(value: Any, size: int) -> Iterable[Any]:
    # not `value in (None, {}, ())`, as comparing a tensor with {} takes 20 µs
    if value is None or (isinstance(value, dict | tuple) and not value):
        return repeat(value)
    if isinstance(value, tuple):
        return zip(*(_pieces(tensor, size) for tensor in value), strict=True)
    if isinstance(value, dict):
        parts = zip(*(_pieces(tensor, size) for tensor in value.values()), strict=True)
        return (dict(zip(value, part, strict=True)) for part in parts)
    return _pieces(value, size)


def _pieces(rows: Any, size: int) -> Iterable[Any]:
    if isinstance(rows, Tensor):
        pieces: tuple[Tensor, ...] = rows.split(size)  # type: ignore[no-untyped-call]  # torch has no annotation
        return pieces
    return [rows[start : start + size] for start in range(0, len(rows), size)]
