"""The same network in NumPy, on views of the same parameters.

Acting happens on a handful of rows, where a torch call costs more than its arithmetic: for two 64x64 nets and
8 rows this takes a quarter of the time. Training writes the parameters in place, so the views never go stale;
`current` tells if a module was moved or recast. A network with any layer that is not known here has no twin.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np
from torch import nn

from rl_training.core.types import Array, PolicyState
from rl_training.models.cores import RecurrentCore
from rl_training.models.mlp import MLPActorCritic
from rl_training.models.q_network import QNetwork
from rl_training.models.recurrent import LSTMActorCritic
from rl_training.models.state_dependent import LinearAndFeatures

Activation = Callable[[Array], object]
Layer = tuple[Array, Array, Activation | None]
"""Weights, transposed, biases, and what is done to the outputs in place."""
ZERO = np.float32(0.0)
"""A number of Python's would have to be converted by every call."""


def _silu(x: Array) -> None:
    np.multiply(x, 0.5 * (1.0 + np.tanh(0.5 * x)), out=x)  # the sigmoid by way of tanh cannot overflow


def _elu(x: Array) -> None:
    np.copyto(x, np.where(x > 0, x, np.expm1(np.minimum(x, 0.0))))


ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.Tanh: lambda x: np.tanh(x, out=x),
    nn.ReLU: lambda x: np.maximum(x, ZERO, out=x),
    nn.ELU: _elu,
    nn.SiLU: _silu,
}


def numpy_twin(module: nn.Module) -> "Twin | None":
    """Return the module in NumPy; None if its parameters are not in main memory or it has a layer not known here."""
    if any(parameter.device.type != "cpu" for parameter in module.parameters()):
        return None
    if type(module) is MLPActorCritic:
        return NumpyActorCritic(module)
    if type(module) is LSTMActorCritic:
        cores = (module.core, module.critic_core)
        return NumpyRecurrent(module) if all(type(c) in (RecurrentCore, type(None)) for c in cores) else None
    if type(module) is QNetwork:
        # one number per action is a plain chain; dueling, noisy and distributional networks act in torch
        plain = module.value is None and not module.noisy and module.outputs_per_action == 1
        layers = chain([*module.body, *module.advantage.interleaved()]) if plain else None
    else:
        layers = chain(module) if type(module) is nn.Sequential else None
        if layers and type([*module.children()][-1]) is LinearAndFeatures:
            return NumpyMLPAndFeatures(layers, module)
    return None if layers is None else NumpyMLP(layers, module)


def chain(modules: Iterable[nn.Module]) -> list[Layer] | None:
    """Return linear layers with the activations that follow them; None if there is anything else."""
    layers: list[Layer] = []
    for module in modules:
        known = type(module) is nn.Linear or type(module) is LinearAndFeatures
        if isinstance(module, nn.Linear) and known and module.bias is not None:
            layers.append((module.weight.detach().numpy().T, module.bias.detach().numpy(), None))
        elif layers and layers[-1][2] is None and type(module) in ACTIVATIONS:
            if isinstance(module, nn.ELU) and module.alpha != 1.0:
                return None
            layers[-1] = (*layers[-1][:2], ACTIVATIONS[type(module)])
        else:
            return None
    return layers


class _Views:
    """Knows whether the parameters still live where the views look."""

    def __init__(self, module: nn.Module) -> None:
        *_, self._parameter = module.parameters()
        self._pointer = self._parameter.data_ptr()

    @property
    def current(self) -> bool:
        """They do."""
        return self._parameter.data_ptr() == self._pointer


class NumpyMLP(_Views):
    """Linear layers with activations between them, for the CPU, without torch."""

    def __init__(self, layers: list[Layer], module: nn.Module) -> None:
        super().__init__(module)
        self._layers = layers

    def __call__(self, x: Array) -> Array:
        """Return outputs [N, P] for inputs [N, D]."""
        return _forward(self._layers, x)


class NumpyMLPAndFeatures(NumpyMLP):
    """The same with what the last layer reads beside its outputs."""

    def __call__(self, x: Array) -> Array:
        """Return outputs and features [N, P + H] for inputs [N, D]."""
        features = _forward(self._layers[:-1], x)
        return np.concatenate([_forward(self._layers[-1:], features), features], axis=1)


class NumpyActorCritic(_Views):
    """`MLPActorCritic` for the CPU, without torch."""

    def __init__(self, network: MLPActorCritic) -> None:
        super().__init__(network)
        self._actor, self._actor_head = _known(network.actor_body), _known([network.actor_head])
        self._critic = None if network.critic_body is None else _known(network.critic_body)
        self._critic_head = _known([network.critic_head])
        self._keeps_features = type(network.actor_head) is LinearAndFeatures

    def __call__(self, x: Array, critic_x: Array | None = None) -> tuple[Array, Array]:
        """Return action parameters [N, A] and values [N] for inputs [N, D]; the critic may have others."""
        actor = _forward(self._actor, x)
        critic = (
            actor if self._critic is None else _forward(self._critic, x if critic_x is None else critic_x)
        )
        params = _forward(self._actor_head, actor)
        if self._keeps_features:
            params = np.concatenate([params, actor], axis=1)
        return params, _forward(self._critic_head, critic)[:, 0]

    def value(self, x: Array) -> Array:
        """Return values [N] alone."""
        body = self._actor if self._critic is None else self._critic
        return _forward(self._critic_head, _forward(body, x))[:, 0]


class NumpyRecurrent(_Views):
    """`LSTMActorCritic` for the CPU, without torch, one step at a time."""

    def __init__(self, network: LSTMActorCritic) -> None:
        super().__init__(network)
        assert isinstance(network.core, RecurrentCore), "anything else has no twin"
        self._core = NumpyCore(network.core)
        critic = network.critic_core
        self._critic_core = NumpyCore(critic) if isinstance(critic, RecurrentCore) else None
        self._heads = NumpyActorCritic(network.network)

    def __call__(self, x: Array, memory: PolicyState) -> tuple[Array, Array, PolicyState]:
        """Return action parameters [N, A], values [N] and the next memory for inputs [N, D]."""
        parts = self._core.num_parts
        actor, after = self._core(x, memory[:parts])
        if self._critic_core is None:
            return *self._heads(actor), after
        critic, critic_after = self._critic_core(x, memory[parts:])
        return *self._heads(actor, critic), after + critic_after


class NumpyCore:
    """One step of an LSTM or GRU, on views of its parameters.

    Inside, units lie below each other and rows side by side [H, N]: products take half of the time, and each gate lies
    in one piece.
    """

    def __init__(self, core: RecurrentCore) -> None:
        self.num_parts = len(core.memory_sizes)
        self._size = core.size
        self._step = _lstm_step if core.kind == "lstm" else _gru_step
        views = {name: parameter.detach().numpy() for name, parameter in core.cells.named_parameters()}
        self._layers = [
            (views[f"weight_ih_l{i}"], views[f"bias_ih_l{i}"][:, None],
             views[f"weight_hh_l{i}"], views[f"bias_hh_l{i}"][:, None])
            for i in range(core.num_layers)
        ]  # fmt: skip

    def __call__(self, x: Array, memory: PolicyState) -> tuple[Array, PolicyState]:
        """Return outputs [N, H] and the next memory, parts [N, layers * H], for inputs [N, D]."""
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
    result: Array = 0.5 * (1.0 + np.tanh(0.5 * x))  # by way of tanh it cannot overflow
    return result


def _lstm_step(seen: Array, remembered: Array, before: list[Array]) -> tuple[Array, ...]:
    """Return the next output and cell [H, N] for the sums of both sides [4, H, N]: in, forget, new, out."""
    seen += remembered
    enter, forget, _, leave = _sigmoid(seen)  # of all at once, though one is not asked for
    cell = forget * before[1] + enter * np.tanh(seen[2])
    return leave * np.tanh(cell), cell


def _gru_step(seen: Array, remembered: Array, before: list[Array]) -> tuple[Array, ...]:
    """Return the next output [H, N] for the sums of both sides [3, H, N]: reset, update, new."""
    reset, stays = _sigmoid(seen[:2] + remembered[:2])
    changed = np.tanh(seen[2] + reset * remembered[2])
    return (changed + stays * (before[0] - changed),)


def _known(modules: Iterable[nn.Module]) -> list[Layer]:
    layers = chain(modules)
    assert layers is not None, "these are built here, of linear layers and activations"
    return layers


def _forward(layers: list[Layer], x: Array) -> Array:
    for weight, bias, activate in layers:
        x = np.dot(x, weight)  # on few rows quicker than @
        x += bias
        if activate is not None:
            activate(x)
    return x


Twin: TypeAlias = NumpyMLP | NumpyActorCritic | NumpyRecurrent
"""What acts in the place of a network."""
