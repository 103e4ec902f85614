"""A policy with a value function, for the on-policy algorithms."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.core.errors import UserError
from rl_training.core.spaces.layout import action_layout, space_text
from rl_training.core.spaces.masks import split_mask
from rl_training.core.spaces.stored import split_critic
from rl_training.core.types import Array, EnvSpec, Obs, ObsArray, PolicyState, moved, tensors_of
from rl_training.models.critic_entries import CriticEntries
from rl_training.models.encoded_network import (
    Encoded,
    EncodedPair,
    WithCriticEntries,
    encode,
    layers_after_encoder,
)
from rl_training.models.encoders import is_ours, make_encoder
from rl_training.models.fast.acting import NumpyActorCritic
from rl_training.models.heads import ActionHead, make_head
from rl_training.models.images import image_leaves
from rl_training.models.initialization import make_linear, make_orthogonal
from rl_training.models.mlp import HIDDEN_GAIN, ActivationName, MLPActorCritic
from rl_training.models.normalizer import RewardNormalizer
from rl_training.models.state_dependent import StateDependentHead, make_linear_and_features
from rl_training.policies.base import FLAT, Encoding, NetworkPolicy


class Rows(Protocol):
    """The columns of a batch that a policy reads: inputs of the network, actions, and masks if there are any."""

    @property
    def obs(self) -> Obs: ...
    @property
    def actions(self) -> Tensor: ...
    @property
    def action_masks(self) -> Tensor | None: ...


class ActorCriticPolicy(NetworkPolicy):
    """A network of action parameters and values, and the head that turns the parameters into actions.

    With `spec.critic_space`, the critic also reads entries that the actor does not get. They are reserved entries of
    observations and of the inputs from `prepare` (`core/spaces/stored.py`). Acting neither needs nor reads them.
    """

    head: ActionHead

    def __init__(
        self,
        spec: EnvSpec,
        *,
        hidden_sizes: tuple[int, ...],
        critic_hidden_sizes: tuple[int, ...] | None = None,
        activation: ActivationName,
        shared_network: bool,
        orthogonal_init: bool,
        log_std_init: float,
        use_sde: bool = False,
        encoding: Encoding = FLAT,
        entries_encoding: Encoding = FLAT,
        normalize_obs: bool,
        reward_normalizer: RewardNormalizer | None,
        generator: torch.Generator,
        make_network: Callable[..., nn.Module] = MLPActorCritic,
        memory_size: int | None = None,
    ) -> None:
        """`make_network` builds the layers after the encoder; it has the signature of `MLPActorCritic`.

        `memory_size` is the size of a recurrent core before them. `entries_encoding` reads what is for the critic only.
        """
        entries = _entries(spec, entries_encoding, normalize=normalize_obs)
        own = 0 if entries is None else entries.inputs.size
        common: dict[str, Any] = {"normalize_obs": normalize_obs, "reward_normalizer": reward_normalizer}
        super().__init__(spec, encoding=encoding, **common, other_numbers=own)
        self.entries, self.entries_encoding, self._orthogonal = entries, entries_encoding, orthogonal_init
        self.action_shape, self.action_dtype = action_layout(spec.action_space)
        encoder = self.new_encoder(generator)
        inputs = self.features_size(encoder)
        last_size = (memory_size or inputs, *hidden_sizes)[-1]
        self.head = self._new_head(log_std_init, last_size if use_sde else None)
        entries_encoder = self._new_entries_encoder(generator)
        network = make_network(
            inputs,
            self.head.num_params,
            hidden_sizes,
            critic_sizes=critic_hidden_sizes,
            critic_input_size=self._critic_size(inputs, entries_encoder),
            activation=activation,
            shared=shared_network,
            orthogonal=orthogonal_init,
            generator=generator,
            make_last=make_linear_and_features if use_sde else make_linear,
        )
        encoders = encoder, None if encoding.shared else self.new_encoder(generator)
        self.network = _encoded(network, *encoders)
        if self.entries is not None:
            self.network = WithCriticEntries(network, *encoders, entries_encoder)

    def new_encoder(self, generator: torch.Generator) -> nn.Module | None:
        """Return an encoder; one of ours is initialised like the layers after it."""
        encoder = super().new_encoder(generator)
        if self._orthogonal and encoder is not None and is_ours(self.encoding.encoder):
            make_orthogonal(encoder, HIDDEN_GAIN, generator)
        return encoder

    def _new_entries_encoder(self, generator: torch.Generator) -> nn.Module | None:
        """Return an encoder of the images among what only the critic reads; None if there are none."""
        encoding = self.entries_encoding
        if self.entries is None or encoding.encoder is None:
            return None
        encoder = make_encoder(
            encoding.encoder, self.entries.inputs, encoding.features_dim, encoding.arguments, generator
        )
        if self._orthogonal:
            make_orthogonal(encoder, HIDDEN_GAIN, generator)
        return encoder

    def _critic_size(self, actor_size: int, entries_encoder: nn.Module | None) -> int | None:
        """Return the number of features that the critic reads; None for those of the actor."""
        if self.entries is None:
            return None
        if entries_encoder is None:
            return actor_size + self.entries.inputs.size
        return actor_size + int(entries_encoder.features_dim)  # type: ignore[arg-type]  # ours

    def _new_head(self, log_std_init: float, num_features: int | None) -> ActionHead:
        """Return the head for the action space; with `num_features`, its noise depends on those features."""
        space = self.spec.action_space
        if num_features is None:
            head: ActionHead = make_head(space, log_std_init)  # type: ignore[assignment]  # all are
            return head
        if not isinstance(space, spaces.Box):
            raise UserError(
                f"use_sde is true, but action space {space_text(space)} is not continuous; set it to false"
            )
        return StateDependentHead(self.action_shape[0], num_features, log_std_init)

    def run(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return action parameters [B, P] and values [B], with gradients; `obs` comes from `prepare`."""
        params, values = self.network(rows.obs)
        return params, values

    def encoded(self, rows: Rows) -> tuple[Tensor, ...]:
        """Return features with gradients: one tensor [B, D], or one each for actor and critic."""
        if isinstance(self.network, WithCriticEntries):
            return self.network.features(rows.obs)
        if isinstance(self.network, EncodedPair):
            return encode(self.network.encoder, rows.obs), encode(self.network.critic_encoder, rows.obs)
        assert isinstance(self.network, Encoded), "without an encoder, the features are the inputs"
        return (encode(self.network.encoder, rows.obs),)

    def features(self, rows: Rows) -> tuple[Tensor, ...]:
        """Return the inputs of `last_layers`, with gradients."""
        return self.encoded(rows)

    @property
    def last_layers(self) -> nn.Module:
        """The layers after the encoder and the recurrent core; for a plain network, all of them."""
        return layers_after_encoder(self.network)

    def evaluate_actions(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities, entropies and values, each [B], with gradients."""
        params, values = self.run(rows)
        return *self.log_prob_entropy(params, rows.actions, rows.action_masks), values

    def log_prob_entropy(self, params: Tensor, actions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies [B] of actions given action parameters [B, P] and a mask, if any."""
        return self.head.logprob_entropy(self.head.masked(params, mask, torch), actions)

    def log_prob(self, obs: Obs, actions: Tensor) -> Tensor:
        """Return log-probabilities [B] of actions [B, ...] given observations [B, ...], with gradients.

        Actions are in the policy's units, as `act` returns them. A mask in the observation is applied.
        """
        seen, mask = split_mask(moved(obs, self.device))
        if isinstance(self.network, WithCriticEntries):
            params = self.network.params(self.prepare(split_critic(seen)[0]))
        else:
            params, _ = self.network(self.prepare(seen))
        return self.log_prob_entropy(params, actions.to(self.device), mask)[0]

    def outputs(self, obs: ObsArray) -> tuple[Array, Array]:
        """Return action parameters [N, P], with the mask applied, and values [N]."""
        seen, mask = split_mask(obs)
        params, values = super().outputs(seen) if self.entries is None else self._outputs_of_both(seen)
        return self.head.masked(params, mask), values

    def _outputs_of_both(self, obs: ObsArray) -> tuple[Array, Array]:
        """Return the outputs of actor and critic, where the critic reads more."""
        twin = self._current_twin()
        if isinstance(twin, NumpyActorCritic):
            found: tuple[Array, Array] = self._finite(twin(*self._read_both(obs)))
            return found
        params, values = self._outputs_on_device(obs)
        return params, values

    def _read_both(self, obs: ObsArray) -> tuple[Array, Array]:
        """Return the inputs of actor [N, D] and critic [N, D + C], where there is no encoder."""
        seen, entries = split_critic(obs)
        assert self.entries is not None
        assert entries is not None, "values need what the critic reads"
        actor = self._read_numpy(seen)
        return actor, np.concatenate([actor, self.entries.vector_numpy(entries)], axis=1)

    def _reads_numpy(self) -> bool:
        return super()._reads_numpy() and (self.entries is None or not self.entries.inputs.images)

    def params(self, obs: ObsArray) -> Array:
        """Return action parameters [N, P], with the mask applied, without what only the critic reads."""
        if self.entries is None:
            return self.outputs(obs)[0]
        seen, mask = split_mask(obs)
        seen, twin = split_critic(seen)[0], self._current_twin()
        if isinstance(twin, NumpyActorCritic):
            params: Array = self._finite(twin.params(self._read_numpy(seen)))
        else:
            assert isinstance(self.network, WithCriticEntries)
            with torch.no_grad():
                inputs = self.prepare(moved(tensors_of(seen), self.device))
                params = self._finite(self.network.params(inputs).cpu().numpy())
        found: Array = self.head.masked(params, mask)
        return found

    def act(
        self, obs: ObsArray, state: PolicyState, *, deterministic: bool, rng: np.random.Generator
    ) -> tuple[Array, PolicyState]:
        params = self.params(obs)
        return self.head.mode(params) if deterministic else self.head.sample(params, rng)[0], state

    def values(self, obs: ObsArray) -> Array:
        """Return values [N], without gradients."""
        twin = self._current_twin()
        if isinstance(twin, NumpyActorCritic):
            seen = split_mask(obs)[0]
            read = self._read_numpy(seen) if self.entries is None else self._read_both(seen)[1]
            values: Array = self._finite(twin.value(read))
            return values
        return self.outputs(obs)[1]


def _encoded(network: nn.Module, encoder: nn.Module | None, critic_encoder: nn.Module | None) -> nn.Module:
    """Return a network on top of no encoder, of a shared one, or of one for the actor and one for the critic."""
    if encoder is None:
        return network
    return (
        Encoded(encoder, network) if critic_encoder is None else EncodedPair(encoder, critic_encoder, network)
    )


def _entries(spec: EnvSpec, encoding: Encoding, *, normalize: bool) -> CriticEntries | None:
    """Return what only the critic reads, if there is anything."""
    if spec.critic_space is None:
        return None
    images = {} if encoding.encoder is None else image_leaves(spec.critic_space, encoding.images)
    return CriticEntries(spec.critic_space, images, normalize=normalize)
