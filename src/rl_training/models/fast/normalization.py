"""Layer normalization with a hand-written backward pass, between a layer of an ensemble and its activation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rl_training.core.types import Array
from rl_training.models.ensemble import NORM_EPS
from rl_training.models.fast.activations import Buffer, kernel
from rl_training.models.fast.backend import Backend


class NormBuffers:
    """What `backward` needs: inputs [M, B, O], and their mean and inverse deviation [M, B, 1]."""

    def __init__(self, inputs: Buffer, mean: Buffer, inverse: Buffer) -> None:
        self.inputs, self.mean, self.inverse = inputs, mean, inverse

    @classmethod
    def allocated(cls, like: Tensor, backend: Backend) -> "NormBuffers":
        """Return buffers for inputs of the shape of a tensor."""
        one = (*like.shape[:-1], 1)
        tensors = (torch.empty_like(like), like.new_empty(one), like.new_empty(one))
        return cls(*(Buffer(tensor, backend) for tensor in tensors))

    def first(self, rows: int) -> "NormBuffers":
        return NormBuffers(self.inputs.first(rows), self.mean.first(rows), self.inverse.first(rows))


@dataclass
class LayerNorm:
    """Scale and shift [M, 1, O] of every member, and where to write their gradients."""

    scale: Tensor
    shift: Tensor
    scale_gradient: Tensor | None = None
    shift_gradient: Tensor | None = None

    def forward(self, space: NormBuffers, outputs: Buffer) -> None:
        """Write outputs [M, B, O] for the inputs in the buffers."""
        for member, into in enumerate(outputs.tensor):
            kernel.native_layer_norm.out(
                space.inputs.tensor[member],
                into.shape[-1:],
                self.scale[member, 0],
                self.shift[member, 0],
                NORM_EPS,
                out0=into,
                out1=space.mean.tensor[member],
                out2=space.inverse.tensor[member],
            )

    def backward(self, gradient: Buffer, space: NormBuffers, *, parameters: bool) -> None:
        """Replace the gradient of the outputs by that of the inputs; with `parameters`, write theirs."""
        kept = (space.inputs.tensor, space.mean.tensor, space.inverse.tensor)
        for member, by_outputs in enumerate(gradient.tensor):
            by_inputs, by_scale, by_shift = self._back(
                member, by_outputs, *(part[member] for part in kept), parameters=parameters
            )
            by_outputs.copy_(by_inputs)
            if parameters:
                assert self.scale_gradient is not None
                assert self.shift_gradient is not None
                self.scale_gradient[member, 0].copy_(by_scale)
                self.shift_gradient[member, 0].copy_(by_shift)

    def rows_backward(self, member: int, by_outputs: Array, rows: Array, space: NormBuffers) -> Array:
        """Return the gradient [R, O] of the inputs of some rows, given that of a member's outputs."""
        kept = (part.view[member].take(rows, axis=0) for part in (space.inputs, space.mean, space.inverse))
        tensors = (torch.from_numpy(part) for part in (by_outputs, *kept))
        by_inputs: Array = self._back(member, *tensors, parameters=False)[0].numpy()
        return by_inputs

    def _back(
        self,
        member: int,
        by_outputs: Tensor,
        inputs: Tensor,
        mean: Tensor,
        inverse: Tensor,
        *,
        parameters: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        scale, shift = self.scale[member, 0], self.shift[member, 0]
        wanted = [True, parameters, parameters]
        found: tuple[Tensor, Tensor, Tensor] = kernel.native_layer_norm_backward(
            by_outputs, inputs, inputs.shape[-1:], mean, inverse, scale, shift, wanted
        )
        return found
