"""LSTM and GRU layers over sequences with hand-written backpropagation through time, in NumPy.

Cores of one kind and size are batched: one step of all of them is one product and a dozen operations. The inputs'
contributions are computed for all steps at once, and so are the gradients of the weights. Buffers are reused, and those
of a step are contiguous: on arrays this small NumPy takes twice as long for strided views.
Letters: `C` cores, `L` steps, `B` rows, `I` inputs, `H` size, `G` gates, in torch's order.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rl_training.core.types import Array
from rl_training.models.autograd_network import GradientOf
from rl_training.models.fast.chain import KEPT_SIZES
from rl_training.models.fast.layers import CoreLayer

NEW = 2
"""The number of the gate that is a tanh, in LSTM and GRU; all others are sigmoids."""


class Starts:
    """Where episodes begin in sequences; the state is reset there."""

    def __init__(self, starts: Array, rows: int) -> None:
        """`starts` [L * B] are in time order."""
        self._begins = starts.reshape(-1, rows)
        self.length, self.rows = self._begins.shape
        self._any = np.logical_or.reduce(self._begins, axis=1).tolist()

    def forget(self, step: int, *parts: Array) -> None:
        """Set the rows of parts [C, B, H] to 0 where an episode begins at a step."""
        if self._any[step]:
            for part in parts:
                part[:, self._begins[step]] = 0.0


@dataclass(frozen=True)
class Weights:
    """Views of the parameters of one core's layer and of their gradients, in torch's layout."""

    w_in: Array
    w_on: Array
    b_in: Array
    b_on: Array
    by_w_in: Array
    by_w_on: Array
    by_b_in: Array
    by_b_on: Array

    @classmethod
    def of(cls, layer: CoreLayer, gradient_of: GradientOf) -> "Weights | None":
        """Return the views for a layer; None if one of its parameters is frozen."""
        parameters = (layer.weight_ih, layer.weight_hh, layer.bias_ih, layer.bias_hh)
        places = [place.numpy() for place in map(gradient_of, parameters) if place is not None]
        if len(places) < len(parameters):
            return None
        return cls(*(parameter.detach().numpy() for parameter in parameters), *places)


def sigmoids_of(gates: Array) -> list[Array]:
    """Return views of the gates of [G, ...] that are sigmoids."""
    return [part for part in (gates[:NEW], gates[NEW + 1 :]) if len(part)]


class Step:
    """The buffers of one step [C, B, H], each contiguous, and its views into the buffers of all steps."""

    def __init__(self, space: "Workspace", number: int) -> None:
        self.before, self.after = space.before[number : number + 2]
        self.cell, self.next_cell = space.cells[number : number + 2]
        self.remembered = (self.before, self.cell)[: space.num_parts]
        self.gates, self.squashed = space.gates[number], space.squashed[number]
        """The first is [G, C, B, H]."""
        self.gate, self.sigmoids = list(self.gates), sigmoids_of(self.gates)
        self.by_output = space.by_outputs[number]
        self.output, self.by_gates = space.outputs[:, number], space.by_gates[:, number]
        """The second is [C, B, G * H]."""
        cores, rows, _ = self.by_gates.shape
        self.by_gate = self.by_gates.reshape(cores, rows, -1, space.size).transpose(2, 0, 1, 3)
        """The same numbers [G, C, B, H]."""


class Workspace:
    """The buffers of one layer, for one number of steps and rows."""

    def __init__(self, steps: int, rows: int, weights: Array, num_parts: int) -> None:
        """`weights` [G, C, I, H] give the sizes; the state has `num_parts`."""
        gates, cores, inputs, self.size = weights.shape
        self.num_parts = num_parts

        def buffer(*shape: int) -> Array:
            return np.ones(shape, weights.dtype)

        def small() -> Array:
            return buffer(cores, rows, self.size)

        self.inputs = buffer(cores, steps, rows, inputs)
        """The last input is always 1, so that biases are weights."""
        self.before, self.cells = (buffer(steps + 1, cores, rows, self.size) for _ in range(2))
        """The state before each step, and after the last. A GRU keeps the contribution of its state to the new gate in
        the second."""
        self.gates = buffer(steps, gates, cores, rows, self.size)
        self.squashed, self.by_outputs = (buffer(steps, cores, rows, self.size) for _ in range(2))
        self.outputs, self.read = (buffer(cores, steps, rows, self.size) for _ in range(2))
        """The second is `before` in the layout that the gradient of the weights needs."""
        self.by_gates = buffer(cores, steps, rows, gates * self.size)
        """Gradients of the inputs of each gate."""
        self.product, self.slopes = (buffer(gates, cores, rows, self.size) for _ in range(2))
        self.slope, self.sigmoid_slopes = list(self.slopes), sigmoids_of(self.slopes)
        self.back, self.carry, self.spare = small(), small(), small()
        self.by_memory = (self.back, self.carry)[:num_parts]
        self.ones = buffer(1, steps * rows)
        self.steps = [Step(self, number) for number in range(steps)]


class UnrolledLayer(ABC):
    """One layer of C cores: inputs [L * B, I] of each to outputs [L * B, H], and back.

    sigmoid(x) is tanh(x / 2) / 2 + 1 / 2: with halved weights one tanh does for all gates, and none overflows.
    """

    num_gates: ClassVar[int]
    num_parts: ClassVar[int]
    """Parts of the state."""

    def __init__(self, weights: Sequence[Weights]) -> None:
        self._weights, self.num_cores = weights, len(weights)
        (width, self.size), (_, inputs) = weights[0].w_on.shape, weights[0].w_in.shape

        def buffer(*shape: int) -> Array:
            return np.empty((*shape, self.size), weights[0].w_on.dtype)

        self._w_in = buffer(self.num_gates, self.num_cores, inputs + 1)
        self._w_on = buffer(self.num_gates, self.num_cores, self.size)
        self._w_back = buffer(self.num_cores, width)
        self._b_on = buffer(self.num_cores, 1)
        self._by_in = np.empty((width, inputs + 1), self._w_on.dtype)
        self._spaces: dict[tuple[int, int], Workspace] = {}

    def forward(
        self, inputs: Sequence[Array], memory: Sequence[Sequence[Array]], starts: Starts
    ) -> list[Array]:
        """Return the outputs of each core, in buffers, for its inputs and its state, parts [B, H]."""
        self._starts, self._space = starts, self._workspace(starts.length, starts.rows)
        space = self._space
        for core, (features, parts) in enumerate(zip(inputs, memory, strict=True)):
            space.inputs[core, ..., :-1] = features.reshape(starts.length, starts.rows, -1)
            for into, part in zip(space.steps[0].remembered, parts, strict=True):
                into[core] = part
            self._copy_weights(core, self._weights[core])
        np.matmul(space.inputs.swapaxes(0, 1)[:, None], self._w_in, out=space.gates)
        for number, step in enumerate(space.steps):
            starts.forget(number, *step.remembered)
            np.matmul(step.before, self._w_on, out=space.product)
            self._step_forward(space, step)
            step.output[...] = step.after
        return [part.reshape(-1, self.size) for part in space.outputs]

    def backward(self, gradients: Sequence[Array]) -> None:
        """Write the gradients of the parameters, given those of each core's outputs."""
        space = self._space
        for core, gradient in enumerate(gradients):
            space.by_outputs[:, core] = gradient.reshape(len(space.steps), -1, self.size)
        space.back.fill(0.0)
        space.carry.fill(0.0)
        for number in range(len(space.steps) - 1, -1, -1):
            step = space.steps[number]
            step.by_output += space.back
            np.multiply(step.gates, step.gates, out=space.slopes)
            np.subtract(1.0, space.slope[NEW], out=space.slope[NEW])
            for gates, slopes in zip(step.sigmoids, space.sigmoid_slopes, strict=True):
                np.subtract(gates, slopes, out=slopes)
            self._step_backward(space, step)
            self._starts.forget(number, *space.by_memory)
        space.read[...] = space.before[:-1].swapaxes(0, 1)
        self._write_gradients(space)

    def input_gradients(self) -> list[Array]:
        """Return the gradients of each core's inputs; call after `backward`."""
        return [by_gates @ weights.w_in for by_gates, weights in self._by_core(self._space)]

    @abstractmethod
    def _step_forward(self, space: Workspace, step: Step) -> None:
        """Compute the state after a step from the contributions of inputs in `gates` and of the state in `product`."""

    @abstractmethod
    def _step_backward(self, space: Workspace, step: Step) -> None:
        """Turn `by_output` into the gradients of the gates, in `slopes`; then carry them to the step before."""

    def _carry_back(self, space: Workspace, step: Step) -> None:
        """Keep the gradients of the gates, and compute the gradient of the state before the step."""
        step.by_gate[...] = space.slopes
        np.matmul(step.by_gates, self._w_back, out=space.back)

    def _write_gradients(self, space: Workspace) -> None:
        self._write_for_memory(space)
        self._write_for_inputs(space)

    def _workspace(self, steps: int, rows: int) -> Workspace:
        if (steps, rows) not in self._spaces:
            if len(self._spaces) == KEPT_SIZES:
                self._spaces.clear()
            self._spaces[steps, rows] = Workspace(steps, rows, self._w_in, self.num_parts)
        return self._spaces[steps, rows]

    def _copy_weights(self, core: int, weights: Weights) -> None:
        """Copy the weights in the layout of the products; a product with a transposed view takes 1.5 times as long."""
        self._w_back[core] = weights.w_on
        for gate in range(self.num_gates):
            rows, scale = slice(gate * self.size, (gate + 1) * self.size), 1.0 if gate == NEW else 0.5
            np.multiply(weights.w_in[rows].T, scale, out=self._w_in[gate, core, :-1])
            np.multiply(weights.w_on[rows].T, scale, out=self._w_on[gate, core])
            self._w_in[gate, core, -1] = scale * (weights.b_in[rows] + weights.b_on[rows])

    def _by_core(self, space: Workspace) -> list[tuple[Array, Weights]]:
        """Return the gradients of the gates [L * B, G * H] of each core."""
        width = space.by_gates.shape[-1]
        return [
            (part.reshape(-1, width), own) for part, own in zip(space.by_gates, self._weights, strict=True)
        ]

    def _write_for_memory(self, space: Workspace) -> None:
        for (by_gates, weights), read in zip(self._by_core(space), space.read, strict=True):
            np.matmul(by_gates.T, read.reshape(-1, self.size), out=weights.by_w_on)
            np.matmul(space.ones, by_gates, out=weights.by_b_on[None])

    def _write_for_inputs(self, space: Workspace) -> None:
        for (by_gates, weights), features in zip(self._by_core(space), space.inputs, strict=True):
            np.matmul(by_gates.T, features.reshape(len(by_gates), -1), out=self._by_in)
            weights.by_w_in[...], weights.by_b_in[...] = self._by_in[:, :-1], self._by_in[:, -1]


class UnrolledLSTM(UnrolledLayer):
    """cell = forget * cell + enter * new; output = leave * tanh(cell)."""

    num_gates, num_parts = 4, 2

    def _step_forward(self, space: Workspace, step: Step) -> None:
        enter, forget, new, leave = step.gate
        step.gates += space.product
        np.tanh(step.gates, out=step.gates)
        for sigmoids in step.sigmoids:
            sigmoids *= 0.5
            sigmoids += 0.5
        np.multiply(forget, step.cell, out=step.next_cell)
        step.next_cell += np.multiply(enter, new, out=space.spare)
        np.tanh(step.next_cell, out=step.squashed)
        np.multiply(leave, step.squashed, out=step.after)

    def _step_backward(self, space: Workspace, step: Step) -> None:
        """`carry` is the gradient of the cell."""
        (enter, forget, new, leave), carry, spare = step.gate, space.carry, space.spare
        by_enter, by_forget, by_new, by_leave = space.slope
        np.multiply(step.squashed, step.squashed, out=spare)
        np.subtract(1.0, spare, out=spare)
        spare *= leave
        spare *= step.by_output
        carry += spare
        by_leave *= step.squashed
        by_leave *= step.by_output
        for slope, other in ((by_enter, new), (by_forget, step.cell), (by_new, enter)):
            slope *= other
            slope *= carry
        carry *= forget
        self._carry_back(space, step)


class UnrolledGRU(UnrolledLayer):
    """output = new + update * (before - new), where reset scales the contribution of the state to the new gate."""

    num_gates, num_parts = 3, 1

    def _step_forward(self, space: Workspace, step: Step) -> None:
        (reset, update, new), (sigmoids,), heard = step.gate, step.sigmoids, step.cell
        sigmoids += space.product[:NEW]
        np.tanh(sigmoids, out=sigmoids)
        sigmoids *= 0.5
        sigmoids += 0.5
        np.add(space.product[NEW], self._b_on, out=heard)
        new += np.multiply(reset, heard, out=space.spare)
        np.tanh(new, out=new)
        np.subtract(step.before, new, out=step.after)
        step.after *= update
        step.after += new

    def _step_backward(self, space: Workspace, step: Step) -> None:
        """`squashed` stores the gradient of the inputs' part of the new gate; `carry` is what the update gate keeps."""
        (reset, update, new), carry, by_seen = step.gate, space.carry, step.squashed
        by_reset, by_update, by_new = space.slope
        np.multiply(step.by_output, update, out=carry)
        np.subtract(step.by_output, carry, out=by_seen)
        by_seen *= by_new
        np.multiply(by_seen, reset, out=by_new)
        by_reset *= step.cell
        by_reset *= by_seen
        by_update *= np.subtract(step.before, new, out=space.spare)
        by_update *= step.by_output
        self._carry_back(space, step)
        space.back += carry

    def _write_gradients(self, space: Workspace) -> None:
        """Reset does not scale the inputs' contribution to the new gate, so its gradient is separate."""
        self._write_for_memory(space)
        space.by_gates[..., NEW * self.size :] = space.squashed.swapaxes(0, 1)
        self._write_for_inputs(space)

    def _copy_weights(self, core: int, weights: Weights) -> None:
        """Reset also scales the state's bias of the new gate, so the inputs' bias must be separate."""
        super()._copy_weights(core, weights)
        new = slice(NEW * self.size, None)
        self._w_in[NEW, core, -1], self._b_on[core] = weights.b_in[new], weights.b_on[new]
