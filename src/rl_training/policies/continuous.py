"""Policies for continuous actions in [-1, 1]: a squashed Gaussian for SAC, a deterministic one for TD3."""

from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from rl_training.core.errors import UserError
from rl_training.core.spaces import action_layout, float_dtype
from rl_training.core.types import Array, EnvSpec, ObsArray
from rl_training.models.heads import squashed_gaussian_act, squashed_gaussian_sample
from rl_training.models.mlp import ActivationName, mlp_with_head
from rl_training.models.normalizer import RewardNormalizer
from rl_training.policies.vector_policy import VectorPolicy


def bounded_action_size(space: Space[Any], algorithm: str) -> int:
    """Return the number of action components, or refuse a space without finite bounds on all of them."""
    if not isinstance(space, spaces.Box):
        others = "ppo, a2c or dqn" if isinstance(space, spaces.Discrete) else "ppo or a2c"
        raise UserError(
            f"{algorithm} needs continuous actions, but the action space is {type(space).__name__}; "
            f"use {others}, or an environment with Box actions"
        )
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise UserError(
            f"{algorithm} needs actions with finite bounds, but the action space is {space}; "
            "give its action space finite bounds, e.g. with gymnasium.wrappers.TransformAction, or use ppo"
        )
    shape, _ = action_layout(space)
    return shape[0]


class SquashedGaussianPolicy(VectorPolicy):
    """tanh of a normal whose mean and deviation depend on the observation."""

    def __init__(
        self,
        spec: EnvSpec,
        *,
        hidden_sizes: tuple[int, ...],
        activation: ActivationName,
        normalize_obs: bool,
        reward_normalizer: RewardNormalizer | None,
        generator: torch.Generator,
    ) -> None:
        super().__init__(spec, normalize_obs=normalize_obs, reward_normalizer=reward_normalizer)
        self.action_size = bounded_action_size(spec.action_space, "sac")
        self.activation = activation
        sizes = (self.encoder.size, *hidden_sizes, 2 * self.action_size)
        self.network = mlp_with_head(sizes, activation, generator=generator)

    def act(self, obs: ObsArray, *, deterministic: bool, rng: np.random.Generator) -> Array:
        """Return actions [N, A] in [-1, 1]."""
        params = self.outputs_numpy(obs)
        size = (len(params), self.action_size)
        noise = None if deterministic else rng.standard_normal(size, dtype=float_dtype())
        return squashed_gaussian_act(params, noise)

    def sample(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions [B, A] and log-probabilities [B], with gradients."""
        return squashed_gaussian_sample(self.network(features), noise)


class DeterministicPolicy(VectorPolicy):
    """tanh of the network's output."""

    def __init__(
        self,
        spec: EnvSpec,
        *,
        hidden_sizes: tuple[int, ...],
        activation: ActivationName,
        normalize_obs: bool,
        reward_normalizer: RewardNormalizer | None,
        generator: torch.Generator,
    ) -> None:
        super().__init__(spec, normalize_obs=normalize_obs, reward_normalizer=reward_normalizer)
        self.action_size = bounded_action_size(spec.action_space, "td3")
        self.activation = activation
        sizes = (self.encoder.size, *hidden_sizes, self.action_size)
        self.network = mlp_with_head(sizes, activation, generator=generator)

    def act(self, obs: ObsArray, *, deterministic: bool, rng: np.random.Generator) -> Array:
        """Return actions [N, A] in [-1, 1]; there is nothing random in them."""
        return np.tanh(self.outputs_numpy(obs))
