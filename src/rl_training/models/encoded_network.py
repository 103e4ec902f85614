"""Networks on top of an encoder. They include the encoder, so that target networks copy both."""

from typing import Any

from torch import Tensor, nn

from rl_training.core.errors import RunFault
from rl_training.core.types import Obs
from rl_training.models.images import ScaledImages


class Encoded(nn.Module):
    """An encoder and the network that reads its features; with `detach` no gradient reaches the encoder.

    SAC and TD3 train a shared encoder with the critics' loss only.
    """

    def __init__(self, encoder: nn.Module, network: nn.Module, *, detach: bool = False) -> None:
        super().__init__()
        self.encoder, self.network = encoder, network
        self.detach = detach

    def forward(self, inputs: Obs, *others: Any, **named: Any) -> Any:
        """Return the network's outputs for the features and the other arguments."""
        features = encode(self.encoder, inputs)
        return self.network(features.detach() if self.detach else features, *others, **named)


class EncodedPair(nn.Module):
    """An actor-critic network with one encoder for the actor and one for the critic."""

    def __init__(self, encoder: nn.Module, critic_encoder: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.encoder, self.critic_encoder, self.network = encoder, critic_encoder, network

    def forward(self, inputs: Obs, **named: Any) -> Any:
        return self.network(encode(self.encoder, inputs), encode(self.critic_encoder, inputs), **named)


def encode(encoder: nn.Module, inputs: Obs) -> Tensor:
    """Return an encoder's features [B, D]; errors name the encoder, which may be a custom one."""
    try:
        return encoder(inputs)  # type: ignore[no-any-return]  # checked when it is built
    except Exception as error:
        own = encoder.encoder if isinstance(encoder, ScaledImages) else encoder
        name = f"{type(own).__module__}:{type(own).__qualname__}"
        raise RunFault(f"encoder {name} failed: {type(error).__name__}: {error}") from error


def layers_after_encoder(network: nn.Module) -> nn.Module:
    """Return the layers after the encoder; for a network without one, the network."""
    return network.network if isinstance(network, Encoded | EncodedPair) else network
