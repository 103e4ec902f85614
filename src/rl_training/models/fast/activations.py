"""Activations that work in place on buffers, forwards and backwards: what a chain of layers does besides its products.

Each is written with torch's own kernels, so that it runs on any device; `view` is the same memory as NumPy sees it, and
tanh of an array takes a sixth of the time that torch takes for it.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

kernel = torch.ops.aten


def computes_on_arrays(device: torch.device) -> bool:
    """Tell whether networks that know their backward take arrays there: where NumPy sees the memory."""
    return device.type == "cpu"


class Buffer:
    """Memory with two faces: `tensor`, and `view`, an array of the same numbers on the CPU (elsewhere the tensor)."""

    def __init__(self, tensor: Tensor, *, arrays: bool) -> None:
        self.tensor = tensor
        self.view: Any = tensor.numpy() if arrays else tensor

    def first(self, rows: int) -> "Buffer":
        """Return the first rows [..., B, D] of it."""
        return Buffer(self.tensor[..., :rows, :], arrays=isinstance(self.view, np.ndarray))


class Activation(ABC):
    """`forward` writes over what a layer gave; `backward` over the gradient, from what `forward` left in `after`.

    One that cannot be undone from its own outputs sets `keeps_inputs` and gets them as `before`.
    """

    keeps_inputs = False

    @abstractmethod
    def forward(self, before: Buffer, after: Buffer) -> None: ...
    @abstractmethod
    def backward(self, gradient: Buffer, before: Buffer, after: Buffer) -> None: ...


class Tanh(Activation):
    """1 - tanh^2 is its slope."""

    def forward(self, before: Buffer, after: Buffer) -> None:
        """In NumPy where that is possible."""
        if isinstance(after.view, np.ndarray):
            np.tanh(after.view, out=after.view)
        else:
            after.tensor.tanh_()

    def backward(self, gradient: Buffer, before: Buffer, after: Buffer) -> None:
        """From the outputs."""
        kernel.tanh_backward.grad_input(gradient.tensor, after.tensor, grad_input=gradient.tensor)


class ReLU(Activation):
    """What is positive passes."""

    def forward(self, before: Buffer, after: Buffer) -> None:
        """In place."""
        after.tensor.clamp_(min=0.0)

    def backward(self, gradient: Buffer, before: Buffer, after: Buffer) -> None:
        """From the outputs."""
        kernel.threshold_backward.grad_input(gradient.tensor, after.tensor, 0, grad_input=gradient.tensor)


class ELU(Activation):
    """x above 0, exp(x) - 1 below: there its slope is the output plus 1."""

    def forward(self, before: Buffer, after: Buffer) -> None:
        """In place."""
        nn.functional.elu_(after.tensor)

    def backward(self, gradient: Buffer, before: Buffer, after: Buffer) -> None:
        """From the outputs."""
        kernel.elu_backward.grad_input(
            gradient.tensor, 1.0, 1.0, 1.0, True, after.tensor, grad_input=gradient.tensor
        )


class SiLU(Activation):
    """x * sigmoid(x), which takes some values twice: its slope needs x."""

    keeps_inputs = True

    def forward(self, before: Buffer, after: Buffer) -> None:
        """Into another buffer."""
        kernel.silu.out(before.tensor, out=after.tensor)

    def backward(self, gradient: Buffer, before: Buffer, after: Buffer) -> None:
        """From the inputs."""
        kernel.silu_backward.grad_input(gradient.tensor, before.tensor, grad_input=gradient.tensor)


def activation_of(module: nn.Module) -> Activation | None:
    """Return the activation that a module is; None if it is none of these."""
    if isinstance(module, nn.ELU) and module.alpha != 1.0:
        return None
    known: dict[type[nn.Module], type[Activation]] = {
        nn.Tanh: Tanh,
        nn.ReLU: ReLU,
        nn.ELU: ELU,
        nn.SiLU: SiLU,
    }
    found = known.get(type(module))
    return None if found is None else found()
