"""Parses modules: the networks that hand-written passes support, described by their parameters.

Acting and learning use the same description, so they support the same networks. Every function returns None for any
other network, which then runs in torch.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from torch import Tensor, nn

from rl_training.models.cores import RecurrentCore
from rl_training.models.ensemble import EnsembleMLP
from rl_training.models.fast.activations import Activation, activation_of
from rl_training.models.mlp import MLPActorCritic
from rl_training.models.q_network import QNetwork
from rl_training.models.recurrent import LSTMActorCritic
from rl_training.models.state_dependent import LinearAndFeatures


@dataclass(frozen=True)
class LinearLayer:
    """A linear layer, or one of every member of an ensemble, and the activation after it."""

    weight: Tensor
    """[O, I], or [M, I, O] for M members."""
    bias: Tensor
    """[O], or [M, 1, O]."""
    activation: Activation | None = None
    norm: tuple[Tensor, Tensor] | None = None
    """Scale and shift [M, 1, O] of layer normalization before the activation."""
    appends_inputs: bool = False
    """Whether the layer also returns its inputs (`LinearAndFeatures`); only the last layer may."""

    def matrix(self, tensor: Tensor) -> Tensor:
        """Return the weight or its gradient as a matrix [..., I, O]."""
        return tensor if tensor.dim() == 3 else tensor.mT


Layers: TypeAlias = tuple[LinearLayer, ...]


@dataclass(frozen=True)
class ActorCriticLayers:
    """The layers of actor and critic after the ones they share."""

    body: Layers
    """Empty unless they share layers."""
    actor: Layers
    critic: Layers


@dataclass(frozen=True)
class CoreLayer:
    """The parameters of one layer of an LSTM or GRU, in torch's order of gates."""

    weight_ih: nn.Parameter
    weight_hh: nn.Parameter
    bias_ih: nn.Parameter
    bias_hh: nn.Parameter


def linear_layers(modules: Iterable[nn.Module]) -> Layers | None:
    """Return linear layers, each with the activation that follows it."""
    layers: list[LinearLayer] = []
    for module in modules:
        activation = activation_of(module)
        if layers and layers[-1].appends_inputs:
            return None
        if type(module) in (nn.Linear, LinearAndFeatures) and getattr(module, "bias", None) is not None:
            assert isinstance(module, nn.Linear)
            appends_inputs = type(module) is LinearAndFeatures
            layers.append(LinearLayer(module.weight, module.bias, appends_inputs=appends_inputs))
        elif activation is not None and layers and layers[-1].activation is None:
            layers[-1] = replace(layers[-1], activation=activation)
        else:
            return None
    return tuple(layers)


def output_layers(network: nn.Module) -> Layers | None:
    """Return the layers of a plain chain, or of a network of action values that is neither dueling nor noisy."""
    if type(network) is nn.Sequential:
        return linear_layers(network) or None
    if type(network) is QNetwork and network.value is None and not network.noisy:
        return linear_layers([*network.body, *network.advantage.interleaved()])
    return None


def actor_critic_layers(network: nn.Module) -> ActorCriticLayers | None:
    """Return the layers of our plain actor-critic network."""
    if type(network) is not MLPActorCritic:
        return None
    shared = network.critic_body is None
    body = linear_layers(network.actor_body) if shared else ()
    actor = linear_layers([*(() if shared else network.actor_body), network.actor_head])
    critic = linear_layers([*(network.critic_body or ()), network.critic_head])
    if body is None or actor is None or critic is None:
        return None
    return ActorCriticLayers(body, actor, critic)


def ensemble_layers(network: nn.Module) -> Layers | None:
    """Return the layers of our ensemble of critics; the last one has no activation."""
    activation = activation_of(network.activation) if type(network) is EnsembleMLP else None
    if activation is None or type(network) is not EnsembleMLP:
        return None
    pairs = zip(network.weights, network.biases, strict=True)
    *hidden, last = (LinearLayer(weight, bias) for weight, bias in pairs)
    pairs = zip(network.scales, network.shifts, strict=True)
    norms: list[tuple[Tensor, Tensor] | None] = [*pairs] or [None] * len(hidden)
    return *(
        replace(layer, activation=activation, norm=norm) for layer, norm in zip(hidden, norms, strict=True)
    ), last


def recurrent_cores(network: nn.Module) -> list[RecurrentCore] | None:
    """Return the cores of our recurrent network: one that actor and critic share, or the actor's and the critic's."""
    if type(network) is not LSTMActorCritic:
        return None
    cores = [core for core in (network.core, network.critic_core) if core is not None]
    known = [core for core in cores if type(core) is RecurrentCore]
    return known if len(known) == len(cores) else None


def core_layers(core: RecurrentCore) -> list[CoreLayer]:
    """Return the parameters of every layer of a core."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [
        CoreLayer(**{name: getattr(core.cells, f"{name}_l{number}") for name in names})
        for number in range(core.num_layers)
    ]
