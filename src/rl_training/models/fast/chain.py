"""Networks that know their own backward: chains of linear layers, in buffers that are used again and again.

`forward` keeps what `backward` needs; `backward` takes the gradient of a loss by the outputs and writes those by the
parameters straight into the vector that the optimizer reads. No graph is built and nothing is allocated, which for
small networks is most of what autograd costs. On the CPU products are NumPy's, on views of the same memory: they are
as fast as torch's for large matrices, and up to eight times as fast for narrow ones.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.types import Numbers
from rl_training.models.ensemble import EnsembleMLP
from rl_training.models.fast.activations import Activation, Buffer, activation_of, computes_on_arrays
from rl_training.models.state_dependent import LinearAndFeatures

GradientOf: TypeAlias = Callable[[nn.Parameter], Tensor | None]
"""Where the gradient of a parameter is to be written: a view of its shape; None if nobody wants it."""
KEPT_SIZES = 4


@dataclass
class Layer:
    """Weights [..., I, O] and, the other way round, [..., O, I]; the dots are members of an ensemble."""

    weight: Numbers
    weight_back: Numbers
    bias: Tensor
    weight_gradient: Numbers | None = None
    """[..., I, O]"""
    bias_gradient: Numbers | None = None
    """[..., 1, O]"""
    activation: Activation | None = None


class Workspace:
    """Buffers [..., B, O] of every layer for one number of rows.

    What it gave before and after its activation (the same memory, unless both are needed), and the gradient by it.
    """

    def __init__(
        self, before: list[Buffer], after: list[Buffer], gradients: list[Buffer], ones: Buffer
    ) -> None:
        self.before, self.after, self.gradients, self.ones = before, after, gradients, ones
        self.rows = before[0].tensor.shape[-2]
        self._first: dict[int, Workspace] = {}

    @classmethod
    def allocated(cls, layers: Sequence[Layer], rows: int, *, arrays: bool) -> "Workspace":
        """Return new buffers for a chain."""

        def buffer(layer: Layer) -> Buffer:
            *members, _, size = layer.weight.shape
            return Buffer(layer.bias.new_empty(*members, rows, size), arrays=arrays)

        before = [buffer(layer) for layer in layers]
        after = [
            buffer(layer) if layer.activation is not None and layer.activation.keeps_inputs else same
            for layer, same in zip(layers, before, strict=True)
        ]
        ones = Buffer(layers[0].bias.new_ones(rows, 1), arrays=arrays)
        return cls(before, after, [buffer(layer) for layer in layers], ones)

    def first(self, rows: int) -> "Workspace":
        """Return the first so many rows of all of them."""
        if rows == self.rows:
            return self
        if rows not in self._first:
            if len(self._first) == KEPT_SIZES:
                self._first.clear()
            parts = (self.before, self.after, self.gradients)
            cut = [[buffer.first(rows) for buffer in part] for part in parts]
            self._first[rows] = Workspace(cut[0], cut[1], cut[2], self.ones.first(rows))
        return self._first[rows]


class Chain:
    """Linear layers, each with or without an activation; inputs [B, I] to outputs [..., B, O].

    `backward` is for the first rows of the last `forward`, as many as the gradient has: what comes after them does not
    count for the loss.
    """

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers
        self._arrays = isinstance(layers[0].weight, np.ndarray)
        self._matmul: Callable[..., Any] = np.matmul if self._arrays else torch.matmul
        self._multiply: Callable[..., Any] = np.multiply if self._arrays else torch.mul
        self._spaces: dict[int, Workspace] = {}
        self._space: Workspace | None = None
        self._inputs: Numbers = None

    def forward(self, inputs: Numbers) -> Numbers:
        """Return the outputs, in a buffer that the next call writes over."""
        space = self._spaces.get(len(inputs))
        if space is None:
            if len(self._spaces) == KEPT_SIZES:
                self._spaces.clear()
            space = Workspace.allocated(self.layers, len(inputs), arrays=self._arrays)
            self._spaces[len(inputs)] = space
        self._inputs, self._space = inputs, space
        x = inputs
        for layer, before, after in zip(self.layers, space.before, space.after, strict=True):
            self._matmul(x, layer.weight, out=before.view)
            before.tensor.add_(layer.bias)
            if layer.activation is not None:
                layer.activation.forward(before, after)
            x = after.view
        return x

    def backward(self, gradient: Numbers) -> None:
        """Write the parameters' gradients for that of the outputs [..., B, O], which may be written over."""
        self._back(gradient, parameters=True)

    def input_gradient(self, gradient: Numbers, inputs: slice = slice(None), *, parameters: bool) -> Numbers:
        """Return the gradient by some of the inputs [..., B, I]; the parameters' are written if they are asked for."""
        by_first = self._back(gradient, parameters=parameters)
        return self._matmul(by_first, self.layers[0].weight_back[..., inputs])

    def sparse_input_gradient(self, gradient: Numbers, inputs: slice) -> Numbers:
        """Return the gradient by some inputs [B, I], summed over members, for a gradient [M, B, 1] that is 0 mostly.

        Each member goes back for its own rows alone: where every row counts for one of two, that is half of the work.
        """
        assert self._space is not None, "nothing went forward"
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
                    layer.activation.backward(
                        *(Buffer(torch.from_numpy(part), arrays=True) for part in parts)
                    )
            total[rows] += np.matmul(by_outputs, first[member])
        return total

    def _back(self, gradient: Numbers, *, parameters: bool) -> Numbers:
        """Go from the last layer to the first; return the gradient by what the first one gave."""
        assert self._space is not None, "nothing went forward"
        rows = gradient.shape[-2]
        space, last = self._space.first(rows), len(self.layers) - 1
        for number in range(last, -1, -1):
            layer, into = self.layers[number], space.gradients[number]
            if number < last:
                above = self.layers[number + 1].weight_back  # [..., O, I]
                # of a single output the product is one of numbers, which takes a quarter of the time
                times = self._multiply if above.shape[-2] == 1 else self._matmul
                gradient = times(gradient, above, out=into.view)
            elif layer.activation is not None:
                into.view[...] = gradient
                gradient = into.view
            if layer.activation is not None:
                layer.activation.backward(into, space.before[number], space.after[number])
            if parameters:
                below = self._inputs[..., :rows, :] if number == 0 else space.after[number - 1].view
                self._matmul(below.swapaxes(-1, -2), gradient, out=layer.weight_gradient)
                self._matmul(space.ones.view.T, gradient, out=layer.bias_gradient)
        return gradient


class ChainAndFeatures:
    """A chain whose last layer also hands on what it read: outputs and features side by side, [B, O + H]."""

    def __init__(self, below: Chain | None, last: Chain) -> None:
        """Without layers `below` the features are the inputs."""
        self._below, self._last = below, last
        self._size = last.layers[-1].weight.shape[-1]

    def forward(self, inputs: Numbers) -> Numbers:
        """Return both."""
        features = inputs if self._below is None else self._below.forward(inputs)
        parts = [self._last.forward(features), features]
        return np.concatenate(parts, 1) if isinstance(features, np.ndarray) else torch.cat(parts, 1)

    def backward(self, gradient: Numbers) -> None:
        """Write the parameters' gradients for that of both."""
        by_features = self._by_features(gradient, parameters=True)
        if self._below is not None:
            self._below.backward(by_features)

    def input_gradient(self, gradient: Numbers, *, parameters: bool) -> Numbers:
        """Return the gradient by the inputs [B, I]; the parameters' are written if they are asked for."""
        by_features = self._by_features(gradient, parameters=parameters)
        if self._below is None:
            return by_features
        return self._below.input_gradient(by_features, parameters=parameters)

    def _by_features(self, gradient: Numbers, *, parameters: bool) -> Numbers:
        by_outputs = self._last.input_gradient(gradient[:, : self._size], parameters=parameters)
        return by_outputs + gradient[:, self._size :]


def linear_chain(
    modules: Iterable[nn.Module], gradient_of: GradientOf | None = None
) -> Chain | ChainAndFeatures | None:
    """Return a chain of plain linear layers and activations; None if there is anything else among them."""
    known = [*modules]
    if not known or type(last := known[-1]) is not LinearAndFeatures:
        return plain_chain(known, gradient_of)
    layer = _layer(last.weight, last.bias, gradient_of, stored_as="OI")
    below = plain_chain(known[:-1], gradient_of)
    if layer is None or (below is None and len(known) > 1):
        return None
    return ChainAndFeatures(below, Chain([layer]))


def plain_chain(modules: Iterable[nn.Module], gradient_of: GradientOf | None = None) -> Chain | None:
    """Return a chain of layers that hand on nothing but what they give."""
    layers: list[Layer] = []
    for module in modules:
        activation = activation_of(module)
        if type(module) is nn.Linear and module.bias is not None:
            layer = _layer(module.weight, module.bias, gradient_of, stored_as="OI")
            if layer is None:
                return None
            layers.append(layer)
        elif activation is not None and layers and layers[-1].activation is None:
            layers[-1].activation = activation
        else:
            return None
    return Chain(layers) if layers else None


def ensemble_chain(
    network: EnsembleMLP, gradient_of: GradientOf | None = None, *, members: int | None = None
) -> Chain | None:
    """Return the members of an ensemble, or the first so many, as one chain of batched products."""
    activation = activation_of(network.activation)
    layers = [
        _layer(weight, bias, gradient_of, stored_as="IO", members=members)
        for weight, bias in zip(network.weights, network.biases, strict=True)
    ]
    known = [layer for layer in layers if layer is not None]
    if activation is None or len(known) < len(layers):
        return None
    for layer in known[:-1]:
        layer.activation = activation
    return Chain(known)


def _layer(
    weight: Tensor,
    bias: Tensor,
    gradient_of: GradientOf | None,
    *,
    stored_as: str,
    members: int | None = None,
) -> Layer | None:
    """Return a layer on views of its parameters; None if gradients are wanted and one of them has none."""
    parts = [weight.detach(), bias.detach()]
    if gradient_of is not None:
        gradients = [gradient_of(part) for part in (weight, bias)]  # type: ignore[arg-type]  # they are parameters
        if any(gradient is None for gradient in gradients):
            return None
        parts += gradients  # type: ignore[arg-type]  # none is missing
    turned = [part if index % 2 or stored_as == "IO" else part.mT for index, part in enumerate(parts)]
    if members is not None:
        turned = [part[:members] for part in turned]
    arrays = computes_on_arrays(weight.device)
    views: list[Numbers] = [part.numpy() if arrays else part for part in turned]
    found = Layer(views[0], views[0].swapaxes(-1, -2), turned[1])
    if gradient_of is not None:
        found.weight_gradient = views[2]
        found.bias_gradient = views[3].reshape(*found.weight.shape[:-2], 1, -1)
    return found
