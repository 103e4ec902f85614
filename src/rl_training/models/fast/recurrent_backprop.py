"""A network with a memory as learners run it, where its cores know their own backward through time."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from rl_training.core.recurrent_state import EPISODE_STARTS
from rl_training.core.timing import lap
from rl_training.core.types import Array, Numbers
from rl_training.models.cores import RecurrentCore
from rl_training.models.fast.activations import computes_on_arrays
from rl_training.models.fast.backprop import ExplicitActorCritic, explicit_actor_critic
from rl_training.models.fast.chain import GradientOf
from rl_training.models.fast.recurrent_cores import Starts, UnrolledGRU, UnrolledLayer, UnrolledLSTM, Weights
from rl_training.models.recurrent import LSTMActorCritic


class ExplicitRecurrent:
    """Rows [L * B] of sequences to action parameters and values: cores, layer by layer, then what reads them."""

    explicit = True

    def __init__(self, layers: Sequence[UnrolledLayer], network: ExplicitActorCritic) -> None:
        self.layers, self._network = layers, network

    def forward(self, rows: Any) -> tuple[Numbers, Numbers]:
        """Return action parameters and values."""
        return self.read(rows, rows.obs, rows.obs)

    def read(self, rows: Any, features: Array, critic_features: Array) -> tuple[Numbers, Numbers]:
        """The same for features [L * B, I], which may be others for the critic's core."""
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
        """Write the parameters' gradients."""
        lap("forward")
        self._back(params_gradient, values_gradient)

    def by_features(self, params_gradient: Numbers, values_gradient: Numbers) -> list[Numbers]:
        """Write the parameters' gradients; return those by the features of each core."""
        self._back(params_gradient, values_gradient)
        return self.layers[0].input_gradients()

    def _back(self, params_gradient: Numbers, values_gradient: Numbers) -> None:
        found = self._network.by_features(params_gradient, values_gradient)
        if self.layers[0].num_cores < len(found):
            found = [sum(found)]
        for number in range(len(self.layers) - 1, -1, -1):
            self.layers[number].backward(found)
            if number:
                found = self.layers[number].input_gradients()


def explicit_recurrent(network: nn.Module, gradient_of: GradientOf) -> ExplicitRecurrent | None:
    """Return a network with a memory that knows its backward; None for any but ours, and where there are no arrays."""
    if type(network) is not LSTMActorCritic:
        return None
    cores = [core for core in (network.core, network.critic_core) if core is not None]
    plain = [core for core in cores if type(core) is RecurrentCore]
    after = explicit_actor_critic(network.network, gradient_of)
    on_arrays = computes_on_arrays(next(network.parameters()).device)
    if after is None or len(plain) < len(cores) or not on_arrays:
        return None
    layers: list[UnrolledLayer] = []
    for number in range(plain[0].num_layers):
        found = [Weights.of(core.cells, number, gradient_of) for core in plain]
        weights = [own for own in found if own is not None]
        if len(weights) < len(plain):
            return None
        layers.append(UnrolledLSTM(weights) if plain[0].kind == "lstm" else UnrolledGRU(weights))
    return ExplicitRecurrent(layers, after)
