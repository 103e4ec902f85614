"""A policy with a value function, for the on-policy algorithms."""

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.spaces import action_layout
from rl_training.core.types import Array, EnvSpec, Obs, ObsArray
from rl_training.models.encoder import VectorEncoder
from rl_training.models.heads import ActionHead, make_head
from rl_training.models.mlp import ActivationName, MLPActorCritic
from rl_training.models.normalizer import ObservationNormalizer, RewardNormalizer
from rl_training.models.numpy_forward import NumpyActorCritic


class ActorCriticPolicy(nn.Module):
    """Encoder, optional normalisers, network and action head: all that acting needs, and all that is saved for it."""

    head: ActionHead

    def __init__(
        self,
        spec: EnvSpec,
        *,
        hidden_sizes: tuple[int, ...],
        activation: ActivationName,
        shared_network: bool,
        orthogonal_init: bool,
        log_std_init: float,
        normalize_obs: bool,
        reward_normalizer: RewardNormalizer | None,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.encoder = VectorEncoder(spec.observation_space)
        self.action_shape, self.action_dtype = action_layout(spec.action_space)
        self.head = make_head(spec.action_space, log_std_init)  # type: ignore[assignment]  # every head is an ActionHead
        self.network = MLPActorCritic(
            self.encoder.size,
            self.head.num_params,
            hidden_sizes,
            activation=activation,
            shared=shared_network,
            orthogonal=orthogonal_init,
            generator=generator,
        )
        self.normalizer = ObservationNormalizer(self.encoder.continuous) if normalize_obs else None
        self.reward_normalizer = reward_normalizer
        self._numpy: NumpyActorCritic | None = None

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return self.network.actor_head.weight.device

    def features(self, obs: Obs) -> Tensor:
        """Return network inputs [B, D]: encoded, normalised. Once per rollout, as statistics are frozen in it."""
        encoded = self.encoder.encode(obs)
        return encoded if self.normalizer is None else self.normalizer(encoded)

    def evaluate(self, features: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities, entropies and values, each [B], with gradients."""
        params, values = self.network(features)
        logprobs, entropy = self.head.logprob_entropy(params, actions)
        return logprobs, entropy, values

    def act(self, obs: ObsArray, *, deterministic: bool, rng: np.random.Generator) -> Array:
        """Return actions [N, ...] in the policy's units."""
        params, _ = self.forward_numpy(obs)
        return self.head.mode(params) if deterministic else self.head.sample(params, rng)[0]

    def forward_numpy(self, obs: ObsArray) -> tuple[Array, Array]:
        """Return action parameters [N, P] and values [N], without gradients."""
        features = self.encoder.encode_numpy(obs)
        network = self._numpy_network()
        if network is None:
            return self._forward_on_device(features)
        return network.forward(self._normalized(features))

    def values_numpy(self, obs: ObsArray) -> Array:
        """Return values [N], without gradients."""
        features = self.encoder.encode_numpy(obs)
        network = self._numpy_network()
        if network is None:
            return self._forward_on_device(features)[1]
        return network.value(self._normalized(features))

    def _normalized(self, features: Array) -> Array:
        return features if self.normalizer is None else self.normalizer.forward_numpy(features)

    def _numpy_network(self) -> NumpyActorCritic | None:
        """Return views of the parameters, renewed if they moved; None if they are not in main memory."""
        if self._numpy is not None and self._numpy.current:
            return self._numpy
        self._numpy = NumpyActorCritic(self.network) if self.device.type == "cpu" else None
        return self._numpy

    @torch.no_grad()
    def _forward_on_device(self, features: Array) -> tuple[Array, Array]:
        inputs = torch.from_numpy(features).to(self.device)
        params, values = self.network(inputs if self.normalizer is None else self.normalizer(inputs))
        return params.cpu().numpy(), values.cpu().numpy()
