"""NumPy or torch: the functions and conversions that hand-written passes need. A learner selects one at construction.

On the CPU, NumPy works on views of the tensors' memory and is faster on small arrays. On any other device, and for
networks that are left to autograd, everything stays in tensors.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from rl_training.core.tensor_struct import TensorStruct
from rl_training.core.types import Array, Numbers

StructT = TypeVar("StructT", bound=TensorStruct)


class Backend(ABC):
    """`xp` holds the functions that NumPy and torch share by name; the methods cover those that differ."""

    xp: Any

    @abstractmethod
    def view(self, tensor: Tensor) -> Numbers:
        """Return a tensor without gradients, as this backend reads it; the memory is the same."""

    @abstractmethod
    def from_numpy(self, array: Array) -> Numbers:
        """Return an array as this backend reads it."""

    @abstractmethod
    def rows(self, batch: StructT) -> StructT:
        """Return a batch of tensors as this backend reads it; the memory is the same."""

    @abstractmethod
    def tensors(self, batch: Any) -> Any:
        """Return a batch from `rows` with tensors again; the memory is the same."""

    @abstractmethod
    def scalar(self, tensor: Tensor) -> Numbers:
        """Return a 0-d tensor as a number. Tensors stay as they are, so that no device is waited for."""

    @abstractmethod
    def clip(self, numbers: Numbers, low: float, high: float) -> Numbers:
        """Return numbers within bounds."""

    @abstractmethod
    def cast(self, numbers: Numbers, like: Numbers) -> Numbers:
        """Return numbers in the type of others."""

    @abstractmethod
    def empty(self, shape: Sequence[int], like: Numbers) -> Numbers:
        """Return uninitialised memory in the type of other numbers."""

    @abstractmethod
    def arange(self, count: int) -> Numbers:
        """Return 0, 1, ..., count - 1."""

    @abstractmethod
    def transposed(self, matrix: Numbers) -> Numbers:
        """Return the transpose of a matrix, laid out as this backend reads it fastest."""


class NumpyBackend(Backend):
    """Arrays that share the memory of tensors on the CPU."""

    xp = np

    def view(self, tensor: Tensor) -> Numbers:
        """Return an array."""
        return tensor.numpy()

    def from_numpy(self, array: Array) -> Numbers:
        """Return the array itself."""
        return array

    def rows(self, batch: StructT) -> StructT:
        """Return the batch with arrays in place of tensors."""
        return batch.arrays()

    def tensors(self, batch: Any) -> Any:
        """Return the batch with tensors in place of arrays."""
        return batch.tensors()

    def scalar(self, tensor: Tensor) -> Numbers:
        """Return a Python number."""
        return tensor.item()

    def clip(self, numbers: Numbers, low: float, high: float) -> Numbers:
        """Return numbers within bounds; on small arrays `np.clip` takes twice as long."""
        return np.minimum(np.maximum(numbers, low), high)

    def cast(self, numbers: Numbers, like: Numbers) -> Numbers:
        """Return numbers in the type of others: NumPy turns an integer times a float32 into a float64."""
        return numbers.astype(like.dtype)

    def empty(self, shape: Sequence[int], like: Numbers) -> Numbers:
        """Return an array."""
        return np.empty(shape, like.dtype)

    def arange(self, count: int) -> Numbers:
        """Return an array."""
        return np.arange(count)

    def transposed(self, matrix: Numbers) -> Numbers:
        """Return a copy with rows in one piece."""
        return np.ascontiguousarray(matrix.T)


class TorchBackend(Backend):
    """Tensors on a device."""

    xp = torch

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = torch.device("cpu") if device is None else device

    def view(self, tensor: Tensor) -> Numbers:
        """Return the tensor itself."""
        return tensor

    def from_numpy(self, array: Array) -> Numbers:
        """Return a tensor on the device."""
        return torch.from_numpy(array).to(self.device)

    def rows(self, batch: StructT) -> StructT:
        """Return the batch itself."""
        return batch

    def tensors(self, batch: Any) -> Any:
        """Return the batch itself."""
        return batch

    def scalar(self, tensor: Tensor) -> Numbers:
        """Return the tensor itself."""
        return tensor

    def clip(self, numbers: Numbers, low: float, high: float) -> Numbers:
        """Return numbers within bounds."""
        return numbers.clamp(low, high)

    def cast(self, numbers: Numbers, like: Numbers) -> Numbers:
        """Return numbers in the type of others."""
        return numbers.to(like.dtype)

    def empty(self, shape: Sequence[int], like: Numbers) -> Numbers:
        """Return a tensor on the same device."""
        return like.new_empty(shape)

    def arange(self, count: int) -> Numbers:
        """Return a tensor on the device."""
        return torch.arange(count, device=self.device)

    def transposed(self, matrix: Numbers) -> Numbers:
        """Return a view."""
        return matrix.T


NUMPY = NumpyBackend()


def fast_backend(device: torch.device) -> Backend:
    """Return the backend of hand-written passes on a device: NumPy where it can see the memory, otherwise torch."""
    return NUMPY if device.type == "cpu" else TorchBackend(device)
