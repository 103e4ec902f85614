"""Policies for continuous actions in [-1, 1]: a squashed Gaussian for SAC, a deterministic one for TD3."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.spaces.layout import action_layout, float_dtype
from rl_training.core.types import Array, EnvSpec, Numbers, Obs, ObsArray, PolicyState, StepMetrics, moved
from rl_training.models.encoded_network import Encoded
from rl_training.models.fast.backend import Backend
from rl_training.models.fast.heads import Sampled, squashed_gaussian
from rl_training.models.heads import (
    squashed_gaussian_act,
    squashed_gaussian_log_prob,
    squashed_gaussian_sample,
)
from rl_training.models.mlp import ActivationName, mlp_with_head
from rl_training.models.normalizer import RewardNormalizer
from rl_training.policies.base import FLAT, Encoding, NetworkPolicy


class ContinuousPolicy(NetworkPolicy):
    """A policy for actions [N, A] in [-1, 1]; its network has `outputs_per_action` outputs per action component."""

    outputs_per_action: int

    def __init__(
        self,
        spec: EnvSpec,
        *,
        hidden_sizes: tuple[int, ...],
        activation: ActivationName,
        encoding: Encoding = FLAT,
        normalize_obs: bool,
        reward_normalizer: RewardNormalizer | None,
        generator: torch.Generator,
    ) -> None:
        super().__init__(
            spec, encoding=encoding, normalize_obs=normalize_obs, reward_normalizer=reward_normalizer
        )
        (self.action_size,), _ = action_layout(spec.action_space)
        encoder = self.new_encoder(generator)
        network = self._new_layers((self.features_size(encoder), *hidden_sizes), activation, generator)
        # only the critics' loss trains a shared encoder
        self.network = network if encoder is None else Encoded(encoder, network, detach=encoding.shared)

    def _new_layers(
        self, sizes: tuple[int, ...], activation: ActivationName, generator: torch.Generator
    ) -> nn.Module:
        """Return the layers after the encoder, given the sizes of its features and of the hidden layers."""
        outputs = self.outputs_per_action * self.action_size
        return mlp_with_head((*sizes, outputs), activation, generator=generator)

    @property
    def head_parameters(self) -> tuple[nn.Parameter, ...]:
        """Parameters of the action distribution that are trained with the network."""
        return ()


class StochasticPolicy(ContinuousPolicy):
    """A policy with a distribution over actions, for SAC."""

    def log_prob(self, obs: Obs, actions: Tensor) -> Tensor:
        """Return log-probabilities [B] of actions [B, A] in [-1, 1] given observations [B, ...], with gradients."""
        outputs = self.network(self.prepare(moved(obs, self.device)))
        return self.outputs_log_prob(outputs, actions.to(self.device))

    def outputs_log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return log-probabilities [B] of actions [B, A] given the network's outputs."""
        raise NotImplementedError(f"{type(self).__name__} does not define outputs_log_prob")

    def draw(self, normal: Callable[..., Numbers], rows: int) -> tuple[Numbers, Numbers]:
        """Return the noise that `sampled` needs for actions and for next actions; `normal(*shape)` draws numbers."""
        raise NotImplementedError(f"{type(self).__name__} does not define draw")

    def noise_of(self, noise: Numbers, place: slice) -> Numbers:
        """Return the part of the noise from `draw` that belongs to some of the rows."""
        return noise[place]

    def sampled(self, params: Numbers, noise: Numbers, backend: Backend) -> Sampled:
        """Return actions [B, A], log-probabilities [B] and a pullback, for the network's outputs."""
        raise NotImplementedError(f"{type(self).__name__} does not define sampled")

    def metrics(self) -> StepMetrics:
        """Return metrics of the distribution."""
        return {}


class SquashedGaussianPolicy(StochasticPolicy):
    """tanh of a normal whose mean and deviation depend on the observation."""

    outputs_per_action = 2

    def act(
        self, obs: ObsArray, state: PolicyState, *, deterministic: bool, rng: np.random.Generator
    ) -> tuple[Array, PolicyState]:
        params = self.outputs(obs)
        size = (len(params), self.action_size)
        noise = None if deterministic else rng.standard_normal(size, dtype=float_dtype())
        return squashed_gaussian_act(params, noise), state

    def draw(self, normal: Callable[..., Numbers], rows: int) -> tuple[Numbers, Numbers]:
        noise = normal(2, rows, self.action_size)
        return noise[0], noise[1]

    def sampled(self, params: Numbers, noise: Numbers, backend: Backend) -> Sampled:
        return squashed_gaussian(params, noise, backend)

    def outputs_log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        return squashed_gaussian_log_prob(outputs, actions)

    def sample(self, inputs: Obs, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions [B, A] and log-probabilities [B], with gradients; `inputs` come from `prepare`."""
        return squashed_gaussian_sample(self.network(inputs), noise)


class DeterministicPolicy(ContinuousPolicy):
    """tanh of the network's output."""

    outputs_per_action = 1

    def act(
        self, obs: ObsArray, state: PolicyState, *, deterministic: bool, rng: np.random.Generator
    ) -> tuple[Array, PolicyState]:
        return np.tanh(self.outputs(obs)), state
