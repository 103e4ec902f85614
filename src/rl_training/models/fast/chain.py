"""Chains of linear layers with a hand-written backward pass, in buffers that are allocated once.

`forward` keeps what `backward` needs; `backward` takes the gradient of a loss with respect to the outputs and writes
the gradients of the parameters directly into the optimizer's vector. It builds no graph and allocates nothing, which
for small networks is most of the cost of autograd. On the CPU, NumPy computes the products on views of the same memory:
as fast as torch for large matrices, and up to eight times as fast for narrow ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.core.types import Numbers
from rl_training.models.autograd_network import GradientOf
from rl_training.models.fast.activations import Activation, Buffer
from rl_training.models.fast.backend import NUMPY, Backend
from rl_training.models.fast.layers import Layers, LinearLayer
from rl_training.models.fast.normalization import LayerNorm, NormBuffers

KEPT_SIZES = 4
"""Number of batch sizes whose buffers are kept."""


@dataclass
class Layer:
    """Views of the weights [..., I, O] and of their transpose [..., O, I]; `...` are the members of an ensemble."""

    weight: Numbers
    weight_back: Numbers
    bias: Tensor
    weight_gradient: Numbers | None = None
    """[..., I, O]"""
    bias_gradient: Numbers | None = None
    """[..., 1, O]"""
    norm: LayerNorm | None = None
    activation: Activation | None = None


class Workspace:
    """Buffers [..., B, O] of every layer for one number of rows.

    The outputs before and after the activation (in the same memory, unless both are needed), and their gradient; where
    a layer normalizes, `norms` keeps what enters the normalization.
    """

    def __init__(
        self,
        before: list[Buffer],
        after: list[Buffer],
        gradients: list[Buffer],
        norms: list[NormBuffers | None],
        ones: Buffer,
    ) -> None:
        self.before, self.after, self.gradients, self.ones = before, after, gradients, ones
        self.norms = norms
        self.rows = before[0].tensor.shape[-2]
        self._first: dict[int, Workspace] = {}

    @classmethod
    def allocated(cls, layers: Sequence[Layer], rows: int, backend: Backend) -> "Workspace":
        def buffer(layer: Layer) -> Buffer:
            *members, _, size = layer.weight.shape
            return Buffer(layer.bias.new_empty(*members, rows, size), backend)

        before = [buffer(layer) for layer in layers]
        after = [
            buffer(layer) if layer.activation is not None and layer.activation.keeps_inputs else same
            for layer, same in zip(layers, before, strict=True)
        ]
        norms = [
            None if layer.norm is None else NormBuffers.allocated(outputs.tensor, backend)
            for layer, outputs in zip(layers, before, strict=True)
        ]
        ones = Buffer(layers[0].bias.new_ones(rows, 1), backend)
        return cls(before, after, [buffer(layer) for layer in layers], norms, ones)

    def first(self, rows: int) -> "Workspace":
        if rows == self.rows:
            return self
        if rows not in self._first:
            if len(self._first) == KEPT_SIZES:
                self._first.clear()
            parts = (self.before, self.after, self.gradients)
            cut = [[buffer.first(rows) for buffer in part] for part in parts]
            norms = [None if norm is None else norm.first(rows) for norm in self.norms]
            self._first[rows] = Workspace(cut[0], cut[1], cut[2], norms, self.ones.first(rows))
        return self._first[rows]


class Chain:
    """Linear layers, each with or without an activation; inputs [B, I] to outputs [..., B, O].

    `backward` covers as many of the first rows of the last `forward` as the gradient has.
    """

    def __init__(self, layers: list[Layer], backend: Backend) -> None:
        self.layers, self.backend = layers, backend
        self._matmul: Callable[..., Any] = backend.xp.matmul
        self._multiply: Callable[..., Any] = backend.xp.multiply
        self._spaces: dict[int, Workspace] = {}
        self._space: Workspace | None = None
        self._inputs: Numbers = None

    def forward(self, inputs: Numbers) -> Numbers:
        """Return the outputs, in a buffer that the next call overwrites."""
        space = self._spaces.get(len(inputs))
        if space is None:
            if len(self._spaces) == KEPT_SIZES:
                self._spaces.clear()
            space = Workspace.allocated(self.layers, len(inputs), self.backend)
            self._spaces[len(inputs)] = space
        self._inputs, self._space = inputs, space
        x = inputs
        spaces = zip(self.layers, space.before, space.after, space.norms, strict=True)
        for layer, before, after, norm in spaces:
            linear = before if norm is None else norm.inputs
            self._matmul(x, layer.weight, out=linear.view)
            linear.tensor.add_(layer.bias)
            if layer.norm is not None and norm is not None:
                layer.norm.forward(norm, before)
            if layer.activation is not None:
                layer.activation.forward(before, after)
            x = after.view
        return x

    def backward(self, gradient: Numbers) -> None:
        """Write the gradients of the parameters, given that of the outputs [..., B, O], which may be overwritten."""
        self._back(gradient, parameters=True)

    def input_gradient(self, gradient: Numbers, inputs: slice = slice(None), *, parameters: bool) -> Numbers:
        """Return the gradient of some inputs [..., B, I]; with `parameters`, also write the gradients of those."""
        by_first = self._back(gradient, parameters=parameters)
        return self._matmul(by_first, self.layers[0].weight_back[..., inputs])

    def sparse_input_gradient(self, gradient: Numbers, inputs: slice) -> Numbers:
        """Return the gradient of some inputs [B, I], summed over members, for a gradient [M, B, 1] that is mostly 0.

        Each member covers only the rows where its gradient is not 0: if each row has one of two members, that halves
        the work.
        """
        assert self._space is not None, "forward comes first"
        first = self.layers[0].weight_back[..., inputs]
        total = np.zeros((gradient.shape[1], first.shape[-1]), gradient.dtype)
        for member, column in enumerate(gradient):
            rows = np.flatnonzero(column)
            by_outputs = column[rows]
            for number in range(len(self.layers) - 2, -1, -1):
                layer, above = self.layers[number], self.layers[number + 1].weight_back[member]
                times = np.multiply if len(above) == 1 else np.matmul
                by_outputs = times(by_outputs, above)
                if layer.activation is not None:
                    kept = (self._space.before[number], self._space.after[number])
                    parts = [by_outputs, *(buffer.view[member].take(rows, axis=0) for buffer in kept)]
                    layer.activation.backward(*(Buffer(torch.from_numpy(part), NUMPY) for part in parts))
                norm = self._space.norms[number]
                if layer.norm is not None and norm is not None:
                    by_outputs = layer.norm.rows_backward(member, by_outputs, rows, norm)
            total[rows] += np.matmul(by_outputs, first[member])
        return total

    def _back(self, gradient: Numbers, *, parameters: bool) -> Numbers:
        """Run from the last layer to the first; return the gradient of the first layer's outputs."""
        assert self._space is not None, "forward comes first"
        rows = gradient.shape[-2]
        space, last = self._space.first(rows), len(self.layers) - 1
        for number in range(last, -1, -1):
            layer, into = self.layers[number], space.gradients[number]
            if number < last:
                above = self.layers[number + 1].weight_back  # [..., O, I]
                # with a single output, elementwise multiplication takes a quarter of the time
                times = self._multiply if above.shape[-2] == 1 else self._matmul
                gradient = times(gradient, above, out=into.view)
            elif layer.activation is not None:
                into.view[...] = gradient
                gradient = into.view
            if layer.activation is not None:
                layer.activation.backward(into, space.before[number], space.after[number])
            norm = space.norms[number]
            if layer.norm is not None and norm is not None:
                layer.norm.backward(into, norm, parameters=parameters)
            if parameters:
                below = self._inputs[..., :rows, :] if number == 0 else space.after[number - 1].view
                self._matmul(below.swapaxes(-1, -2), gradient, out=layer.weight_gradient)
                self._matmul(space.ones.view.T, gradient, out=layer.bias_gradient)
        return gradient


class ChainAndFeatures:
    """A chain whose last layer also returns its inputs: outputs and features side by side, [B, O + H]."""

    def __init__(self, below: Chain | None, last: Chain) -> None:
        """Without layers `below` the features are the inputs."""
        self._below, self._last = below, last
        self._size = last.layers[-1].weight.shape[-1]

    def forward(self, inputs: Numbers) -> Numbers:
        features = inputs if self._below is None else self._below.forward(inputs)
        parts = [self._last.forward(features), features]
        return self._last.backend.xp.concatenate(parts, 1)

    def backward(self, gradient: Numbers) -> None:
        by_features = self._by_features(gradient, parameters=True)
        if self._below is not None:
            self._below.backward(by_features)

    def input_gradient(self, gradient: Numbers, *, parameters: bool) -> Numbers:
        by_features = self._by_features(gradient, parameters=parameters)
        if self._below is None:
            return by_features
        return self._below.input_gradient(by_features, parameters=parameters)

    def _by_features(self, gradient: Numbers, *, parameters: bool) -> Numbers:
        by_outputs = self._last.input_gradient(gradient[:, : self._size], parameters=parameters)
        return by_outputs + gradient[:, self._size :]


def learning_chain(
    layers: Layers | None, gradient_of: GradientOf | None, backend: Backend, *, members: int | None = None
) -> Chain | ChainAndFeatures | None:
    """Return layers as a chain; None if there are none, or if gradients are wanted and a parameter is frozen.

    Without `gradient_of` the chain only runs `forward`. `members` limits an ensemble to its first members.
    """
    if not layers:
        return None
    found = [_layer(layer, gradient_of, backend, members) for layer in layers]
    known = [layer for layer in found if layer is not None]
    if len(known) < len(found):
        return None
    if not layers[-1].appends_inputs:
        return Chain(known, backend)
    return ChainAndFeatures(Chain(known[:-1], backend) if known[:-1] else None, Chain(known[-1:], backend))


def _layer(
    layer: LinearLayer, gradient_of: GradientOf | None, backend: Backend, members: int | None
) -> Layer | None:
    """Return a layer on views of its parameters; None if gradients are wanted and one of them is frozen."""

    def first(tensor: Tensor) -> Tensor:
        return tensor if members is None else tensor[:members]

    matrix = backend.view(first(layer.matrix(layer.weight.detach())))
    bias = first(layer.bias.detach())
    norm = None
    if layer.norm is not None:
        norm = LayerNorm(*(first(part.detach()) for part in layer.norm))
    found = Layer(matrix, matrix.swapaxes(-1, -2), bias, norm=norm, activation=layer.activation)
    if gradient_of is None:
        return found
    by_weight, by_bias = gradient_of(layer.weight), gradient_of(layer.bias)
    if by_weight is None or by_bias is None:
        return None
    found.weight_gradient = backend.view(first(layer.matrix(by_weight)))
    found.bias_gradient = backend.view(first(by_bias)).reshape(*matrix.shape[:-2], 1, -1)
    if norm is not None and layer.norm is not None:
        norm.scale_gradient, norm.shift_gradient = (gradient_of(part) for part in layer.norm)
        if norm.scale_gradient is None or norm.shift_gradient is None:
            return None
    return found
