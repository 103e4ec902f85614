"""Networks with a hand-written backward pass; each has the methods of `AutogradNetwork` for its module.

The functions `explicit_...` return such a network for a module, or None if `layers` does not know it or a parameter is
frozen; the learner then uses autograd. Without `gradient_of` a network only runs `forward`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.recurrent_state import EPISODE_STARTS
from rl_training.core.spaces.stored import split_critic
from rl_training.core.timing import lap
from rl_training.core.types import Array, Numbers
from rl_training.models.autograd_network import AutogradNetwork, GradientOf
from rl_training.models.encoded_network import Encoded, EncodedPair
from rl_training.models.fast.backend import NUMPY, Backend
from rl_training.models.fast.chain import Chain, ChainAndFeatures, learning_chain
from rl_training.models.fast.convolutions import ExplicitEncoder, explicit_encoder
from rl_training.models.fast.layers import (
    actor_critic_layers,
    core_layers,
    ensemble_layers,
    output_layers,
    recurrent_cores,
)
from rl_training.models.fast.recurrent_layers import Starts, UnrolledGRU, UnrolledLayer, UnrolledLSTM, Weights
from rl_training.models.recurrent import LSTMActorCritic

ROWS_AT_ONCE = 512


class ExplicitMLP:
    """Inputs [B, I] to outputs [B, O]. Noisy networks are not supported, so `noise` is always None."""

    def __init__(self, chain: Chain | ChainAndFeatures, backend: Backend) -> None:
        self._chain, self._backend = chain, backend
        self._stacked: Numbers = None

    def forward(self, inputs: Numbers, noise: Any = None) -> Numbers:
        return self._chain.forward(inputs)

    __call__ = forward

    def forward_both(self, inputs: Numbers, others: Numbers) -> tuple[Callable[[], Numbers], Numbers]:
        """Return outputs for two batches of B rows, computed in one pass; `backward` covers the first batch."""
        rows = len(inputs)
        if self._stacked is None or len(self._stacked) != 2 * rows:
            self._stacked = self._backend.empty((2 * rows, inputs.shape[1]), inputs)
        self._stacked[:rows], self._stacked[rows:] = inputs, others
        outputs = self._chain.forward(self._stacked)
        return (lambda: outputs[:rows]), outputs[rows:]

    def backward(self, gradient: Numbers) -> None:
        lap("forward")
        self._chain.backward(gradient)

    def input_gradient(self, gradient: Numbers) -> Numbers:
        """Write the gradients of the parameters; return that of the inputs [B, I]."""
        return self._chain.input_gradient(gradient, parameters=True)


class ExplicitCritics:
    """Inputs [B, I] and actions [B, A] to values [M, B]; see `AutogradCritics`."""

    def __init__(self, chain: Chain, backend: Backend) -> None:
        self._chain, self._backend = chain, backend
        self._pairs: Numbers = None
        self._size = 0

    def forward(self, inputs: Numbers, actions: Numbers) -> Numbers:
        rows, self._size = inputs.shape
        if self._pairs is None or len(self._pairs) != rows:
            self._pairs = self._backend.empty((rows, self._size + actions.shape[1]), inputs)
        self._pairs[:, : self._size] = inputs
        self._pairs[:, self._size :] = actions
        return self._chain.forward(self._pairs)[..., 0]

    __call__ = forward

    def backward(self, gradient: Numbers) -> None:
        lap("forward")
        self._chain.backward(gradient[..., None])

    def action_gradient(self, gradient: Numbers) -> Numbers:
        actions = slice(self._size, None)
        if self._backend is NUMPY and np.count_nonzero(gradient) <= gradient.shape[1] < gradient.size:
            return self._chain.sparse_input_gradient(gradient[..., None], actions)
        return self._chain.input_gradient(gradient[..., None], actions, parameters=False).sum(0)


class ExplicitActorCritic:
    """Rows to action parameters [B, P] and values [B], with or without layers that actor and critic share."""

    def __init__(self, actor: Chain | ChainAndFeatures, critic: Chain, body: Chain | None) -> None:
        self._actor, self._critic, self._body = actor, critic, body

    def forward(self, rows: Any) -> tuple[Numbers, Numbers]:
        return self.read(rows, rows.obs, rows.obs)

    def read(self, rows: Any, features: Numbers, critic_features: Numbers) -> tuple[Numbers, Numbers]:
        """Run on features [B, I]; the critic may read others, unless both share layers."""
        if self._body is not None:
            features = critic_features = self._body.forward(features)
        return self._actor.forward(features), self._critic.forward(critic_features)[:, 0]

    def backward(self, params_gradient: Numbers, values_gradient: Numbers) -> None:
        lap("forward")
        if self._body is None:
            self._actor.backward(params_gradient)
            self._critic.backward(values_gradient[:, None])
        else:
            self._body.backward(sum(self._input_gradients(params_gradient, values_gradient)))

    def feature_gradients(self, params_gradient: Numbers, values_gradient: Numbers) -> list[Numbers]:
        """Write the gradients of the parameters; return those of the actor's and critic's features."""
        found = self._input_gradients(params_gradient, values_gradient)
        return found if self._body is None else [self._body.input_gradient(sum(found), parameters=True)]

    def _input_gradients(self, params_gradient: Numbers, values_gradient: Numbers) -> list[Numbers]:
        return [
            self._actor.input_gradient(params_gradient, parameters=True),
            self._critic.input_gradient(values_gradient[:, None], parameters=True),
        ]


class ExplicitWithEntries:
    """Vectors to the outputs of `WithCriticEntries`: the critic reads the actor's inputs and its own entries."""

    def __init__(self, network: ExplicitActorCritic, backend: Backend) -> None:
        self._network, self._backend = network, backend

    def forward(self, rows: Any) -> tuple[Numbers, Numbers]:
        seen, entries = split_critic(rows.obs)
        both = self._backend.xp.concatenate([seen, entries], 1)
        return self._network.read(rows, seen, both)

    def backward(self, params_gradient: Numbers, values_gradient: Numbers) -> None:
        self._network.backward(params_gradient, values_gradient)


class ExplicitRecurrent:
    """Rows [L * B] of sequences to action parameters and values: recurrent layers, then the layers after them."""

    def __init__(self, layers: Sequence[UnrolledLayer], network: ExplicitActorCritic) -> None:
        self.layers, self._network = layers, network

    def forward(self, rows: Any) -> tuple[Numbers, Numbers]:
        return self.read(rows, rows.obs, rows.obs)

    def read(self, rows: Any, features: Array, critic_features: Array) -> tuple[Numbers, Numbers]:
        """Run on features [L * B, I]; the critic's core may read others."""
        memory, each = rows.memory, self.layers[0].num_parts
        starts = Starts(rows.extra[EPISODE_STARTS], len(memory[0]))
        read: Sequence[Array] = [features, critic_features][: len(memory) // each]
        for number, layer in enumerate(self.layers):
            place = slice(number * layer.size, (number + 1) * layer.size)
            own = [part[:, place] for part in memory]
            cores = [own[start : start + each] for start in range(0, len(own), each)]
            read = layer.forward(read, cores, starts)
        return self._network.read(rows, read[0], read[-1])

    def backward(self, params_gradient: Numbers, values_gradient: Numbers) -> None:
        lap("forward")
        self._back(params_gradient, values_gradient)

    def feature_gradients(self, params_gradient: Numbers, values_gradient: Numbers) -> list[Numbers]:
        """Write the gradients of the parameters; return those of the features of each core."""
        self._back(params_gradient, values_gradient)
        return self.layers[0].input_gradients()

    def _back(self, params_gradient: Numbers, values_gradient: Numbers) -> None:
        found = self._network.feature_gradients(params_gradient, values_gradient)
        if self.layers[0].num_cores < len(found):
            found = [sum(found)]
        for number in range(len(self.layers) - 1, -1, -1):
            self.layers[number].backward(found)
            if number:
                found = self.layers[number].input_gradients()


class ExplicitEncoded:
    """Images [B, C, H, W] to outputs [B, O]."""

    def __init__(self, encoder: ExplicitEncoder, network: ExplicitMLP) -> None:
        self._encoder, self._network = encoder, network

    def forward(self, images: Numbers, noise: Any = None) -> Numbers:
        return self._network.forward(self._encoder.forward(torch.as_tensor(images)).numpy())

    __call__ = forward

    def backward(self, gradient: Numbers) -> None:
        lap("forward")
        self._encoder.backward(torch.as_tensor(self._network.input_gradient(gradient)))


class ExplicitFeatures:
    """Features of known encoders: one tensor [B, D] for actor and critic, or one for each."""

    def __init__(self, encoders: Sequence[ExplicitEncoder]) -> None:
        self._encoders = encoders
        self.num_outputs = len(encoders)

    def forward(self, rows: Any) -> tuple[Tensor, ...]:
        return tuple(encoder.forward(rows.obs) for encoder in self._encoders)

    def continue_backward(self, *gradients: Tensor) -> None:
        for encoder, gradient in zip(self._encoders, gradients, strict=True):
            encoder.backward(gradient)


class ExplicitReader:
    """Features from any encoder, and a hand-written network that reads them."""

    def __init__(
        self,
        features: ExplicitFeatures | AutogradNetwork,
        network: ExplicitActorCritic | ExplicitRecurrent,
        backend: Backend,
    ) -> None:
        self._below, self._network, self._backend = features, network, backend

    def forward(self, rows: Any) -> tuple[Numbers, Numbers]:
        features = self._below.forward(self._backend.tensors(rows))
        read = [self._backend.view(part) for part in features]
        return self._network.read(rows, read[0], read[-1])

    def backward(self, params_gradient: Numbers, values_gradient: Numbers) -> None:
        lap("forward")
        found = self._network.feature_gradients(params_gradient, values_gradient)
        if self._below.num_outputs < len(found):
            found = [sum(found)]
        self._below.continue_backward(*(torch.as_tensor(part) for part in found))


def explicit_mlp(
    network: nn.Module, gradient_of: GradientOf | None = None, backend: Backend = NUMPY
) -> ExplicitMLP | None:
    """Return a plain chain of layers, or a plain network of action values."""
    chain = learning_chain(output_layers(network), gradient_of, backend)
    return None if chain is None else ExplicitMLP(chain, backend)


def explicit_outputs(
    network: nn.Module, gradient_of: GradientOf | None = None, backend: Backend = NUMPY
) -> ExplicitMLP | ExplicitEncoded | None:
    """Return a network with one row of outputs, with or without an encoder."""
    if type(network) is not Encoded:
        return explicit_mlp(network, gradient_of, backend)
    encoder = explicit_encoder(network.encoder, gradient_of, backend)
    layers = explicit_mlp(network.network, gradient_of, backend)
    return None if encoder is None or layers is None or network.detach else ExplicitEncoded(encoder, layers)


def explicit_critics(
    network: nn.Module,
    gradient_of: GradientOf | None = None,
    backend: Backend = NUMPY,
    *,
    members: int | None = None,
) -> ExplicitCritics | None:
    """Return an ensemble of critics, or its first members."""
    chain = learning_chain(ensemble_layers(network), gradient_of, backend, members=members)
    return ExplicitCritics(chain, backend) if isinstance(chain, Chain) else None


def explicit_actor_critic(
    network: nn.Module, gradient_of: GradientOf, backend: Backend = NUMPY
) -> ExplicitActorCritic | None:
    """Return our plain network of action parameters and values."""
    layers = actor_critic_layers(network)
    if layers is None:
        return None
    parts = (layers.actor, layers.critic, layers.body)
    actor, critic, body = (learning_chain(part, gradient_of, backend) for part in parts)
    if actor is None or not isinstance(critic, Chain) or (layers.body and body is None):
        return None
    assert not isinstance(body, ChainAndFeatures), "only a last layer appends its inputs"
    return ExplicitActorCritic(actor, critic, body)


def explicit_recurrent(
    network: nn.Module, gradient_of: GradientOf, backend: Backend = NUMPY
) -> ExplicitRecurrent | None:
    """Return our recurrent network, in NumPy only."""
    cores = recurrent_cores(network)
    if cores is None or backend is not NUMPY:
        return None
    if len({core.cells.input_size for core in cores}) > 1:  # the cores run as one
        return None
    assert isinstance(network, LSTMActorCritic)
    after = explicit_actor_critic(network.network, gradient_of, backend)
    layers: list[UnrolledLayer] = []
    for batched in zip(*(core_layers(core) for core in cores), strict=True):
        found = [Weights.of(layer, gradient_of) for layer in batched]
        weights = [own for own in found if own is not None]
        if len(weights) < len(cores):
            return None
        layers.append(UnrolledLSTM(weights) if cores[0].kind == "lstm" else UnrolledGRU(weights))
    return None if after is None else ExplicitRecurrent(layers, after)


def explicit_features(
    network: nn.Module, gradient_of: GradientOf, backend: Backend
) -> ExplicitFeatures | None:
    """Return the encoders of a network, if all of them are known."""
    if type(network) is Encoded:
        encoders = [network.encoder]
    elif type(network) is EncodedPair:
        encoders = [network.encoder, network.critic_encoder]
    else:
        return None
    found = [explicit_encoder(encoder, gradient_of, backend) for encoder in encoders]
    known = [encoder for encoder in found if encoder is not None]
    return ExplicitFeatures(known) if len(known) == len(found) else None


def in_parts(run: Callable[[Numbers], Numbers], inputs: Numbers, backend: Backend) -> Numbers:
    """Return outputs for any number of rows, in parts whose intermediate results fit into the cache."""
    first = run(inputs[:ROWS_AT_ONCE])
    if len(inputs) <= ROWS_AT_ONCE:
        return first
    outputs = backend.empty((len(inputs), *first.shape[1:]), first)
    outputs[:ROWS_AT_ONCE] = first
    for start in range(ROWS_AT_ONCE, len(inputs), ROWS_AT_ONCE):
        outputs[start : start + ROWS_AT_ONCE] = run(inputs[start : start + ROWS_AT_ONCE])
    return outputs
