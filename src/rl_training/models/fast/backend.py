"""NumPy or torch: the functions and conversions that hand-written passes need. A learner selects one at construction.

On the CPU, NumPy works on views of the tensors' memory and is faster on small arrays. On any other device, and for
networks that autograd differentiates, everything stays in tensors.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from rl_training.core.tensor_struct import TensorStruct
from rl_training.core.types import Array, Numbers

StructT = TypeVar("StructT", bound=TensorStruct)


class Backend(Protocol):
    """`xp` holds the functions that NumPy and torch share by name; the methods cover those that differ."""

    xp: Any

    # the tensor has no gradients; the memory is shared, as it is for `rows` and `tensors`
    def view(self, tensor: Tensor) -> Numbers: ...
    def from_numpy(self, array: Array) -> Numbers: ...
    # a batch of tensors as this backend reads it, and the inverse
    def rows(self, batch: StructT) -> StructT: ...
    def tensors(self, batch: Any) -> Any: ...
    # the value of a 0-d tensor; torch keeps the tensor, so that nothing waits for the device
    def scalar(self, tensor: Tensor) -> Numbers: ...
    def clip(self, numbers: Numbers, low: float, high: float) -> Numbers: ...
    # `cast` converts to the type of `like`; `empty` is uninitialised memory of that type
    def cast(self, numbers: Numbers, like: Numbers) -> Numbers: ...
    def empty(self, shape: Sequence[int], like: Numbers) -> Numbers: ...
    def arange(self, count: int) -> Numbers: ...
    # in the memory layout that this backend reads fastest
    def transposed(self, matrix: Numbers) -> Numbers: ...


class NumpyBackend(Backend):
    """Arrays that share the memory of tensors on the CPU."""

    xp = np

    def view(self, tensor: Tensor) -> Numbers:
        return tensor.numpy()

    def from_numpy(self, array: Array) -> Numbers:
        return array

    def rows(self, batch: StructT) -> StructT:
        return batch.arrays()

    def tensors(self, batch: Any) -> Any:
        return batch.tensors()

    def scalar(self, tensor: Tensor) -> Numbers:
        return tensor.item()

    def clip(self, numbers: Numbers, low: float, high: float) -> Numbers:
        return np.minimum(np.maximum(numbers, low), high)  # on small arrays np.clip takes twice as long

    def cast(self, numbers: Numbers, like: Numbers) -> Numbers:
        return numbers.astype(like.dtype)

    def empty(self, shape: Sequence[int], like: Numbers) -> Numbers:
        return np.empty(shape, like.dtype)

    def arange(self, count: int) -> Numbers:
        return np.arange(count)

    def transposed(self, matrix: Numbers) -> Numbers:
        return np.ascontiguousarray(matrix.T)


class TorchBackend(Backend):
    """Tensors on a device."""

    xp = torch

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = torch.device("cpu") if device is None else device

    def view(self, tensor: Tensor) -> Numbers:
        return tensor

    def from_numpy(self, array: Array) -> Numbers:
        return torch.from_numpy(array).to(self.device)

    def rows(self, batch: StructT) -> StructT:
        return batch

    def tensors(self, batch: Any) -> Any:
        return batch

    def scalar(self, tensor: Tensor) -> Numbers:
        return tensor

    def clip(self, numbers: Numbers, low: float, high: float) -> Numbers:
        return numbers.clamp(low, high)

    def cast(self, numbers: Numbers, like: Numbers) -> Numbers:
        return numbers.to(like.dtype)

    def empty(self, shape: Sequence[int], like: Numbers) -> Numbers:
        return like.new_empty(shape)

    def arange(self, count: int) -> Numbers:
        return torch.arange(count, device=self.device)

    def transposed(self, matrix: Numbers) -> Numbers:
        return matrix.T


NUMPY = NumpyBackend()


def fast_backend(device: torch.device) -> Backend:
    """Return the backend of hand-written passes on a device: NumPy on the CPU, otherwise torch."""
    return NUMPY if device.type == "cpu" else TorchBackend(device)
