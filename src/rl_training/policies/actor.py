"""A policy without a value function, for algorithms that learn from recorded actions."""

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.core.spaces.masks import split_mask
from rl_training.core.types import (
    ActArrays,
    Array,
    EnvSpec,
    Numbers,
    Obs,
    ObsArray,
    PolicyState,
    Progress,
    moved,
)
from rl_training.models.encoded_network import Encoded
from rl_training.models.heads import ActionHead, make_head
from rl_training.models.mlp import ActivationName, mlp_with_head
from rl_training.models.normalizer import RewardNormalizer
from rl_training.policies.base import FLAT, Encoding, NetworkPolicy
from rl_training.policies.explorers import BaseExplorer


class ActorPolicy(NetworkPolicy):
    """Network outputs [N, P] to actions of any kind.

    Continuous actions are normal with a learned deviation; where they are bounded, the mean is the tanh of the
    outputs. Unlike a squashed normal, this gives recorded actions at the bounds a finite log-probability.
    """

    head: ActionHead

    def __init__(
        self,
        spec: EnvSpec,
        *,
        hidden_sizes: tuple[int, ...],
        activation: ActivationName,
        log_std_init: float = 0.0,
        encoding: Encoding = FLAT,
        normalize_obs: bool,
        reward_normalizer: RewardNormalizer | None = None,
        trains_encoder: bool = True,
        generator: torch.Generator,
    ) -> None:
        """Without `trains_encoder`, the losses of critics that share the encoder train it."""
        super().__init__(
            spec, encoding=encoding, normalize_obs=normalize_obs, reward_normalizer=reward_normalizer
        )
        space = spec.action_space
        self.continuous = isinstance(space, spaces.Box)
        self.bounded = isinstance(space, spaces.Box) and space.is_bounded()
        self.head = make_head(space, log_std_init)  # type: ignore[assignment]  # a module and an ActionHead
        encoder = self.new_encoder(generator)
        sizes = (self.features_size(encoder), *hidden_sizes, self.head.num_params)
        network = mlp_with_head(sizes, activation, generator=generator)
        self.network: nn.Module = (
            network if encoder is None else Encoded(encoder, network, detach=not trains_encoder)
        )

    @property
    def action_size(self) -> int:
        """Number of components of a continuous action."""
        return self.head.num_params

    @property
    def head_parameters(self) -> tuple[nn.Parameter, ...]:
        """Parameters of the action distribution that are trained with the network."""
        return tuple(self.head.parameters())  # type: ignore[attr-defined]  # a head is a module

    def action_params(self, outputs: Numbers, xp: object = torch) -> Numbers:
        """Return the parameters of the head [B, P] for outputs of the network."""
        return xp.tanh(outputs) if self.bounded else outputs  # type: ignore[attr-defined]  # torch or numpy

    def act(
        self, obs: ObsArray, state: PolicyState, *, deterministic: bool, rng: np.random.Generator
    ) -> tuple[Array, PolicyState]:
        seen, mask = split_mask(obs)
        params = self.head.masked(self.action_params(self.outputs(seen), np), mask)
        if deterministic:
            return self.head.mode(params), state
        actions, _ = self.head.sample(params, rng)
        return (actions.clip(-1.0, 1.0) if self.bounded else actions), state

    def log_prob(self, obs: Obs, actions: Tensor) -> Tensor:
        """Return log-probabilities [B] of actions [B, ...] given observations [B, ...], with gradients."""
        outputs = self.network(self.prepare(moved(obs, self.device)))
        return self.head.logprob_entropy(self.action_params(outputs), actions.to(self.device))[0]


class SamplingExplorer(BaseExplorer):
    """Samples from a policy."""

    def __init__(self, policy: NetworkPolicy, rng: np.random.Generator) -> None:
        self.policy, self.rng = policy, rng

    def act(self, obs: ObsArray, acted: ActArrays, progress: Progress) -> None:
        acted.action[:], _ = self.policy.act(obs, (), deterministic=False, rng=self.rng)
