"""The networks of a policy in NumPy, for acting: the same layers, on views of the same parameters.

Acting runs on a few rows, where a torch call costs more than its arithmetic: for two 64x64 networks and 8 rows NumPy
takes a quarter of the time. Training changes the parameters in place, so the views stay valid; `current` is false
after the module was moved or cast to another type.
"""

from typing import TypeAlias

import numpy as np
from torch import nn

from rl_training.core.types import Array, PolicyState
from rl_training.models.cores import RecurrentCore
from rl_training.models.fast.activations import Activation
from rl_training.models.fast.layers import (
    Layers,
    LinearLayer,
    actor_critic_layers,
    core_layers,
    output_layers,
    recurrent_cores,
)
from rl_training.models.mlp import MLPActorCritic
from rl_training.models.q_network import QNetwork
from rl_training.models.recurrent import LSTMActorCritic

Step: TypeAlias = tuple[Array, Array, Activation | None]
"""Weight [I, O], bias [O] and activation of a layer."""


def numpy_twin(module: nn.Module) -> "Twin | None":
    """Return the module in NumPy; None if it is not on the CPU or `layers` does not know its architecture."""
    if any(parameter.device.type != "cpu" for parameter in module.parameters()):
        return None
    if type(module) is MLPActorCritic:
        return NumpyActorCritic(module)
    if type(module) is LSTMActorCritic:
        return None if recurrent_cores(module) is None else NumpyRecurrent(module)
    if type(module) is QNetwork and module.outputs_per_action > 1:
        return None  # torch computes the action values from these outputs
    layers = output_layers(module)
    return None if layers is None else NumpyMLP(layers, module)


class _Views:
    """Checks whether the views still show the parameters."""

    def __init__(self, module: nn.Module) -> None:
        *_, self._parameter = module.parameters()
        self._pointer = self._parameter.data_ptr()

    @property
    def current(self) -> bool:
        return self._parameter.data_ptr() == self._pointer


class NumpyMLP(_Views):
    """Linear layers with activations between them."""

    def __init__(self, layers: Layers, module: nn.Module) -> None:
        super().__init__(module)
        self._layers = _Chain(layers)

    def __call__(self, x: Array) -> Array:
        """Return outputs [N, P] for inputs [N, D]; with features [N, P + H] if the last layer appends its inputs."""
        return self._layers(x)


class NumpyActorCritic(_Views):
    """`MLPActorCritic`."""

    def __init__(self, network: MLPActorCritic) -> None:
        super().__init__(network)
        layers = actor_critic_layers(network)
        assert layers is not None, "MLPActorCritic is built from known layers"
        self._body = _Chain(layers.body) if layers.body else None
        self._actor, self._critic = _Chain(layers.actor), _Chain(layers.critic)

    def __call__(self, x: Array, critic_x: Array | None = None) -> tuple[Array, Array]:
        """Return action parameters [N, A] and values [N] for inputs [N, D]; the critic may read other inputs."""
        if self._body is not None:
            x, critic_x = self._body(x), None
        return self._actor(x), self._critic(x if critic_x is None else critic_x)[:, 0]

    def params(self, x: Array) -> Array:
        """Return action parameters [N, A] alone."""
        return self._actor(x if self._body is None else self._body(x))

    def value(self, x: Array) -> Array:
        return self._critic(x if self._body is None else self._body(x))[:, 0]


class NumpyRecurrent(_Views):
    """`LSTMActorCritic`, one step at a time."""

    def __init__(self, network: LSTMActorCritic) -> None:
        super().__init__(network)
        cores = recurrent_cores(network)
        assert cores is not None, "numpy_twin checks the cores"
        self._core, *others = (NumpyCore(core) for core in cores)
        self._critic_core = others[0] if others else None
        self._heads = NumpyActorCritic(network.network)

    def __call__(
        self, x: Array, memory: PolicyState, critic_x: Array | None = None
    ) -> tuple[Array, Array, PolicyState]:
        """Return action parameters [N, A], values [N] and the next state for inputs [N, D].

        A critic with a core of its own may read other inputs.
        """
        parts = self._core.num_parts
        actor, after = self._core(x, memory[:parts])
        if self._critic_core is None:
            return *self._heads(actor), after
        critic, critic_after = self._critic_core(x if critic_x is None else critic_x, memory[parts:])
        return *self._heads(actor, critic), after + critic_after

    def params(self, x: Array, memory: PolicyState) -> tuple[Array, PolicyState]:
        """Return action parameters [N, A] alone, and the next state, in which that of the critic is as before."""
        parts = self._core.num_parts
        actor, after = self._core(x, memory[:parts])
        return self._heads.params(actor), after + memory[parts:]


class NumpyCore:
    """One step of an LSTM or GRU.

    Internally, units are rows and environments are columns [H, N]: products take half the time, and each gate is
    contiguous.
    """

    def __init__(self, core: RecurrentCore) -> None:
        self.num_parts = len(core.memory_sizes)
        self._size = core.size
        self._step = _lstm_step if core.kind == "lstm" else _gru_step
        self._layers = []
        for layer in core_layers(core):
            parameters = (layer.weight_ih, layer.bias_ih, layer.weight_hh, layer.bias_hh)
            w_in, b_in, w_on, b_on = (parameter.detach().numpy() for parameter in parameters)
            self._layers.append((w_in, b_in[:, None], w_on, b_on[:, None]))

    def __call__(self, x: Array, memory: PolicyState) -> tuple[Array, PolicyState]:
        """Return outputs [N, H] and the next state, parts [N, layers * H], for inputs [N, D]."""
        after = tuple(np.empty_like(part) for part in memory)
        columns = x.T
        for number, (w_in, b_in, w_on, b_on) in enumerate(self._layers):
            place = slice(number * self._size, (number + 1) * self._size)
            before = [part[:, place].T for part in memory]
            seen, remembered = w_in @ columns, w_on @ before[0]
            seen += b_in
            remembered += b_on
            shape = (-1, self._size, len(x))
            news = self._step(seen.reshape(shape), remembered.reshape(shape), before)
            for part, new in zip(after, news, strict=True):
                part[:, place] = new.T
            columns = news[0]
        return columns.T, after


def _sigmoid(x: Array) -> Array:
    result: Array = 0.5 * (1.0 + np.tanh(0.5 * x))  # computed from tanh, it cannot overflow
    return result


def _lstm_step(seen: Array, remembered: Array, before: list[Array]) -> tuple[Array, ...]:
    """Return the next output and cell [H, N]; `seen` and `remembered` are the gates' inputs [4, H, N]."""
    seen += remembered
    enter, forget, _, leave = _sigmoid(seen)  # one call for all gates; the third is not used
    cell = forget * before[1] + enter * np.tanh(seen[2])
    return leave * np.tanh(cell), cell


def _gru_step(seen: Array, remembered: Array, before: list[Array]) -> tuple[Array, ...]:
    """Return the next output [H, N]; `seen` and `remembered` are the gates' inputs [3, H, N]."""
    reset, stays = _sigmoid(seen[:2] + remembered[:2])
    changed = np.tanh(seen[2] + reset * remembered[2])
    return (changed + stays * (before[0] - changed),)


class _Chain:
    """Linear layers; the outputs include the inputs of the last layer if it appends those."""

    def __init__(self, layers: Layers) -> None:
        appends = bool(layers) and layers[-1].appends_inputs
        self._steps = [_acting(layer) for layer in (layers[:-1] if appends else layers)]
        self._last = _acting(layers[-1]) if appends else None

    def __call__(self, x: Array) -> Array:
        for weight, bias, activation in self._steps:
            x = np.dot(x, weight)  # on few rows faster than @
            x += bias
            if activation is not None:
                activation.act(x)
        if self._last is None:
            return x
        outputs = np.dot(x, self._last[0])
        outputs += self._last[1]
        return np.concatenate([outputs, x], axis=1)


def _acting(layer: LinearLayer) -> Step:
    return layer.matrix(layer.weight.detach()).numpy(), layer.bias.detach().numpy(), layer.activation


Twin: TypeAlias = NumpyMLP | NumpyActorCritic | NumpyRecurrent
"""A network in NumPy that acts in place of its module."""
