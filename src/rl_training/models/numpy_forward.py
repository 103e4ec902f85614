"""The same network in NumPy, on views of the same parameters.

Acting happens on a handful of rows, where a torch call costs more than its arithmetic: for two 64x64 nets and
8 rows this takes a quarter of the time. Training writes the parameters in place, so the views never go stale;
`current` tells if a module was moved or recast.
"""

from collections.abc import Callable

import numpy as np
from torch import nn

from rl_training.core.types import Array
from rl_training.models.mlp import ActivationName, MLPActorCritic

Layer = tuple[Array, Array]


def _silu(x: Array, out: Array) -> None:
    np.multiply(x, 0.5 * (1.0 + np.tanh(0.5 * x)), out=out)  # the sigmoid by way of tanh cannot overflow


def _elu(x: Array, out: Array) -> None:
    np.copyto(out, np.where(x > 0, x, np.expm1(np.minimum(x, 0.0))))


ACTIVATIONS: dict[ActivationName, Callable[[Array, Array], object]] = {
    "tanh": lambda x, out: np.tanh(x, out=out),
    "relu": lambda x, out: np.maximum(x, 0.0, out=out),
    "elu": _elu,
    "silu": _silu,
}


class NumpyActorCritic:
    """`MLPActorCritic.forward` for the CPU, without torch."""

    def __init__(self, network: MLPActorCritic) -> None:
        self._weight = network.actor_head.weight
        self._pointer = self._weight.data_ptr()
        self._activate = ACTIVATIONS[network.activation]
        self._actor = _layers(network.actor_body)
        self._actor_head = _views(network.actor_head)
        self._critic = None if network.critic_body is None else _layers(network.critic_body)
        self._critic_head = _views(network.critic_head)

    @property
    def current(self) -> bool:
        """The parameters still live where the views look."""
        return self._weight.data_ptr() == self._pointer

    def forward(self, features: Array) -> tuple[Array, Array]:
        """Return action parameters [N, A] and values [N] for features [N, D]."""
        actor = self._body(self._actor, features)
        critic = actor if self._critic is None else self._body(self._critic, features)
        return _affine(actor, self._actor_head), _affine(critic, self._critic_head)[:, 0]

    def value(self, features: Array) -> Array:
        """Return values [N] alone."""
        body = self._actor if self._critic is None else self._critic
        return _affine(self._body(body, features), self._critic_head)[:, 0]

    def _body(self, layers: list[Layer], x: Array) -> Array:
        for layer in layers:
            x = _affine(x, layer)
            self._activate(x, x)
        return x


class NumpyMLP:
    """A `Sequential` of linear layers with one activation between them, for the CPU, without torch."""

    def __init__(self, network: nn.Sequential, activation: ActivationName) -> None:
        linear = [module for module in network if isinstance(module, nn.Linear)]
        self._weight = linear[-1].weight
        self._pointer = self._weight.data_ptr()
        self._activate = ACTIVATIONS[activation]
        self._hidden, self._last = [_views(layer) for layer in linear[:-1]], _views(linear[-1])

    @property
    def current(self) -> bool:
        """The parameters still live where the views look."""
        return self._weight.data_ptr() == self._pointer

    def forward(self, x: Array) -> Array:
        """Return outputs [N, P] for features [N, D]."""
        for layer in self._hidden:
            x = _affine(x, layer)
            self._activate(x, x)
        return _affine(x, self._last)


def _affine(x: Array, layer: Layer) -> Array:
    y = x @ layer[0]
    y += layer[1]
    return y


def _views(layer: nn.Linear) -> Layer:
    return layer.weight.detach().numpy().T, layer.bias.detach().numpy()


def _layers(body: nn.Sequential) -> list[Layer]:
    return [_views(module) for module in body if isinstance(module, nn.Linear)]
