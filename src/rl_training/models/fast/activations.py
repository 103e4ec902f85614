"""Activations by hand: `act` on a few rows in NumPy, `forward` and `backward` in place on the buffers of a learner.

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
"""A Python number would be converted in every call."""


class Buffer:
    """Preallocated memory: `tensor`, and `view`, the same numbers as the backend reads them."""

    def __init__(self, tensor: Tensor, backend: Backend) -> None:
        self.tensor, self.backend = tensor, backend
        self.view: Any = backend.view(tensor)

    def first(self, rows: int) -> "Buffer":
        """Return the first rows [..., B, D] of it."""
        return Buffer(self.tensor[..., :rows, :], self.backend)


class Activation(ABC):
    """`forward` overwrites the outputs of a layer; `backward` overwrites the gradient, given what `forward` left.

    An activation whose slope does not follow from its outputs sets `keeps_inputs` and gets its inputs as `before`.
    """

    keeps_inputs = False

    @abstractmethod
    def act(self, x: Array) -> None:
        """Overwrite outputs of a layer while acting."""

    @abstractmethod
    def forward(self, before: Buffer, after: Buffer) -> None: ...
    @abstractmethod
    def backward(self, gradient: Buffer, before: Buffer, after: Buffer) -> None: ...


class Tanh(Activation):
    """Its slope is 1 - tanh^2."""

    def act(self, x: Array) -> None:
        """In place."""
        np.tanh(x, out=x)

    def forward(self, before: Buffer, after: Buffer) -> None:
        """In place."""
        after.backend.xp.tanh(after.view, out=after.view)

    def backward(self, gradient: Buffer, before: Buffer, after: Buffer) -> None:
        """From the outputs."""
        kernel.tanh_backward.grad_input(gradient.tensor, after.tensor, grad_input=gradient.tensor)


class ReLU(Activation):
    """max(x, 0)."""

    def act(self, x: Array) -> None:
        """In place."""
        np.maximum(x, ZERO, out=x)

    def forward(self, before: Buffer, after: Buffer) -> None:
        """In place."""
        after.tensor.clamp_(min=0.0)

    def backward(self, gradient: Buffer, before: Buffer, after: Buffer) -> None:
        """From the outputs."""
        kernel.threshold_backward.grad_input(gradient.tensor, after.tensor, 0, grad_input=gradient.tensor)


class ELU(Activation):
    """x above 0, exp(x) - 1 below, where the slope is the output plus 1."""

    def act(self, x: Array) -> None:
        """In place."""
        np.copyto(x, np.where(x > 0, x, np.expm1(np.minimum(x, 0.0))))

    def forward(self, before: Buffer, after: Buffer) -> None:
        """In place."""
        nn.functional.elu_(after.tensor)

    def backward(self, gradient: Buffer, before: Buffer, after: Buffer) -> None:
        """From the outputs."""
        kernel.elu_backward.grad_input(
            gradient.tensor, 1.0, 1.0, 1.0, True, after.tensor, grad_input=gradient.tensor
        )


class SiLU(Activation):
    """x * sigmoid(x). It is not monotonic, so its slope needs x."""

    keeps_inputs = True

    def act(self, x: Array) -> None:
        """In place; the sigmoid is computed from tanh, which cannot overflow."""
        np.multiply(x, 0.5 * (1.0 + np.tanh(0.5 * x)), out=x)

    def forward(self, before: Buffer, after: Buffer) -> None:
        """Into another buffer."""
        kernel.silu.out(before.tensor, out=after.tensor)

    def backward(self, gradient: Buffer, before: Buffer, after: Buffer) -> None:
        """From the inputs."""
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
