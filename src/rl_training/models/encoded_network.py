"""Networks that read an encoder's features: all that has gradients, and all that a target network copies."""

from typing import Any

from torch import Tensor, nn

from rl_training.core.errors import RunFault
from rl_training.core.types import Obs
from rl_training.models.images import ScaledImages


class Encoded(nn.Module):
    """An encoder and the network that reads its features.

    With `detach` the network's loss does not reach the encoder, which then learns from another loss alone: that of the
    critics, where actor and critics share it.
    """

    def __init__(self, encoder: nn.Module, network: nn.Module, *, detach: bool = False) -> None:
        super().__init__()
        self.encoder, self.network = encoder, network
        self.detach = detach

    def forward(self, inputs: Obs, *others: Any, **named: Any) -> Any:
        """Return what the network makes of the features; it takes the other arguments as they are."""
        features = encode(self.encoder, inputs)
        return self.network(features.detach() if self.detach else features, *others, **named)


class EncodedPair(nn.Module):
    """An actor-critic network in which each side reads features of an encoder of its own."""

    def __init__(self, encoder: nn.Module, critic_encoder: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.encoder, self.critic_encoder, self.network = encoder, critic_encoder, network

    def forward(self, inputs: Obs, **named: Any) -> Any:
        """Return what the network makes of both features; it takes named arguments as they are."""
        return self.network(encode(self.encoder, inputs), encode(self.critic_encoder, inputs), **named)


def encode(encoder: nn.Module, inputs: Obs) -> Tensor:
    """Return an encoder's features [B, D]; if it fails, by its name: it may be somebody's own."""
    try:
        features: Tensor = encoder(inputs)
    except Exception as error:
        own = encoder.encoder if isinstance(encoder, ScaledImages) else encoder
        name = f"{type(own).__module__}:{type(own).__qualname__}"
        raise RunFault(f"encoder {name} failed: {type(error).__name__}: {error}") from error
    return features


def reader(network: nn.Module) -> nn.Module:
    """Return the layers after the encoder; a network without one is all of them."""
    return network.network if isinstance(network, Encoded | EncodedPair) else network
