"""Frozen records of tensors that move, index and map as one. Used per batch, never per step."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Self

from torch import Tensor


class TensorStruct:
    """Mix-in for frozen dataclasses whose fields are tensors, dicts of tensors, or None."""

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return the record with `function` applied to every tensor."""
        parts = {f.name: _map(getattr(self, f.name), function) for f in fields(self)}  # type: ignore[arg-type]  # mix-in
        return type(self)(**parts)

    def take(self, index: Tensor) -> Self:
        """Return the rows `index`, copied."""
        return self.map(lambda tensor: tensor[index])

    def to(self, device: Any) -> Self:
        """Return the record on `device`."""
        return self.map(lambda tensor: tensor.to(device))


def _map(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if value is None:
        return None
    if isinstance(value, dict):
        return {key: function(tensor) for key, tensor in value.items()}
    return function(value)
