"""Hand-written activations: `act` on a few rows in NumPy, `forward` and `backward` on the buffers of a learner.

`forward` and `backward` use torch's own kernels, so they run on any device; tanh alone uses the backend, as NumPy takes
a sixth of torch's time for it.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.types import Array
from rl_training.models.fast.backend import Backend

kernel = torch.ops.aten
ZERO = np.float32(0.0)
"""NumPy would convert a Python number in every call."""


class Buffer:
    """Preallocated memory: `tensor`, and `view`, the same numbers as the backend reads them."""

    def __init__(self, tensor: Tensor, backend: Backend) -> None:
        self.tensor, self.backend = tensor, backend
        self.view: Any = backend.view(tensor)

    def first(self, rows: int) -> "Buffer":
        return Buffer(self.tensor[..., :rows, :], self.backend)


class Activation(ABC):
    """`act` and `forward` overwrite the outputs of a layer; `backward` overwrites the gradient.

    If the slope cannot be computed from the outputs, the activation sets `keeps_inputs`: its inputs are then `before`.
    """

    keeps_inputs = False

    @abstractmethod
    def act(self, x: Array) -> None: ...
    @abstractmethod
    def forward(self, before: Buffer, after: Buffer) -> None: ...
    @abstractmethod
    def backward(self, gradient: Buffer, before: Buffer, after: Buffer) -> None: ...


class Tanh(Activation):
    """Its slope is 1 - tanh^2."""

    def act(self, x: Array) -> None:
        np.tanh(x, out=x)

    def forward(self, before: Buffer, after: Buffer) -> None:
        after.backend.xp.tanh(after.view, out=after.view)

    def backward(self, gradient: Buffer, before: Buffer, after: Buffer) -> None:
        kernel.tanh_backward.grad_input(gradient.tensor, after.tensor, grad_input=gradient.tensor)


class ReLU(Activation):
    """max(x, 0)."""

    def act(self, x: Array) -> None:
        np.maximum(x, ZERO, out=x)

    def forward(self, before: Buffer, after: Buffer) -> None:
        after.tensor.clamp_(min=0.0)

    def backward(self, gradient: Buffer, before: Buffer, after: Buffer) -> None:
        kernel.threshold_backward.grad_input(gradient.tensor, after.tensor, 0, grad_input=gradient.tensor)


class ELU(Activation):
    """x above 0, exp(x) - 1 below 0, where the slope is the output plus 1."""

    def act(self, x: Array) -> None:
        np.copyto(x, np.where(x > 0, x, np.expm1(np.minimum(x, 0.0))))

    def forward(self, before: Buffer, after: Buffer) -> None:
        nn.functional.elu_(after.tensor)

    def backward(self, gradient: Buffer, before: Buffer, after: Buffer) -> None:
        kernel.elu_backward.grad_input(
            gradient.tensor, 1.0, 1.0, 1.0, True, after.tensor, grad_input=gradient.tensor
        )


class SiLU(Activation):
    """x * sigmoid(x). It is not monotonic, so its slope needs x."""

    keeps_inputs = True

    def act(self, x: Array) -> None:
        np.multiply(x, 0.5 * (1.0 + np.tanh(0.5 * x)), out=x)  # the sigmoid from tanh, which cannot overflow

    def forward(self, before: Buffer, after: Buffer) -> None:
        kernel.silu.out(before.tensor, out=after.tensor)

    def backward(self, gradient: Buffer, before: Buffer, after: Buffer) -> None:
        kernel.silu_backward.grad_input(gradient.tensor, before.tensor, grad_input=gradient.tensor)


ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.Tanh: Tanh(),
    nn.ReLU: ReLU(),
    nn.ELU: ELU(),
    nn.SiLU: SiLU(),
}


def activation_of(module: nn.Module) -> Activation | None:
    """Return the activation for a module; None if it is not one of these."""
    if isinstance(module, nn.ELU) and module.alpha != 1.0:
        return None
    return ACTIVATIONS.get(type(module))
