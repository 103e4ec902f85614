"""Networks on top of an encoder. They include the encoder, so that target networks copy both."""

from typing import Any

import torch
from torch import Tensor, nn

from rl_training.core.errors import RunFault
from rl_training.core.spaces.stored import split_critic
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


class WithCriticEntries(nn.Module):
    """An actor-critic network whose critic reads the actor's observation and entries that the actor does not get.

    Inputs are those of the actor, with the critic's as reserved entries. Both are vectors, unless an encoder turns them
    into features: without `critic_encoder`, actor and critic share the encoder of the observation.
    """

    def __init__(
        self,
        network: nn.Module,
        encoder: nn.Module | None,
        critic_encoder: nn.Module | None,
        entries_encoder: nn.Module | None,
    ) -> None:
        super().__init__()
        self.encoder, self.critic_encoder, self.entries_encoder = encoder, critic_encoder, entries_encoder
        self.network = network

    @property
    def reads_vectors(self) -> bool:
        """Whether there is no encoder."""
        return self.encoder is None and self.entries_encoder is None

    def forward(self, inputs: Obs, **named: Any) -> Any:
        """Return the outputs of actor and critic."""
        return self.network(*self.features(inputs), **named)

    def params(self, inputs: Obs, **named: Any) -> Any:
        """Return the outputs of the actor, for inputs with or without the critic's entries."""
        return self.network.params(_features(self.encoder, split_critic(inputs)[0]), **named)  # type: ignore[operator]  # ours

    def features(self, inputs: Obs) -> tuple[Tensor, Tensor]:
        """Return the features of the actor [B, D], and those of the critic [B, D + C]."""
        seen, entries = split_critic(inputs)
        assert entries is not None, "learning needs what the critic reads"
        actor = _features(self.encoder, seen)
        critic = actor if self.critic_encoder is None else encode(self.critic_encoder, seen)
        return actor, torch.cat([critic, _features(self.entries_encoder, entries)], dim=1)


def _features(encoder: nn.Module | None, inputs: Obs) -> Tensor:
    if encoder is not None:
        return encode(encoder, inputs)
    assert isinstance(inputs, Tensor)
    return inputs


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
    return network.network if isinstance(network, Encoded | EncodedPair | WithCriticEntries) else network
