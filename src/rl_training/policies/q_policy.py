"""The greedy policy of an action-value network."""

from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from rl_training.core.errors import UserError
from rl_training.core.types import Array, EnvSpec, ObsArray, leaves
from rl_training.models.mlp import ActivationName
from rl_training.models.normalizer import RewardNormalizer
from rl_training.models.numpy_forward import NumpyMLP
from rl_training.models.q_network import Noise, QNetwork
from rl_training.policies.vector_policy import VectorPolicy

Distribution: TypeAlias = Literal["none", "c51", "quantile"]


class QPolicy(VectorPolicy):
    """Takes the action with the largest value; knows how values follow from what the network says of each action.

    `none`: one number. `c51`: logits of `num_atoms` fixed values from v_min to v_max. `quantile`: quantiles.
    """

    network: QNetwork
    support: Tensor

    def __init__(
        self,
        spec: EnvSpec,
        *,
        hidden_sizes: tuple[int, ...],
        activation: ActivationName,
        dueling: bool,
        noisy: bool,
        distribution: Distribution,
        num_atoms: int,
        v_min: float,
        v_max: float,
        num_quantiles: int,
        normalize_obs: bool,
        reward_normalizer: RewardNormalizer | None,
        generator: torch.Generator,
    ) -> None:
        super().__init__(spec, normalize_obs=normalize_obs, reward_normalizer=reward_normalizer)
        self.num_actions = _num_actions(spec.action_space)
        self.activation = activation
        self.distribution: Distribution = distribution
        self.network = QNetwork(
            self.encoder.size,
            self.num_actions,
            hidden_sizes,
            outputs_per_action={"none": 1, "c51": num_atoms, "quantile": num_quantiles}[distribution],
            activation=activation,
            dueling=dueling,
            noisy=noisy,
            generator=generator,
        )
        self.register_buffer("support", torch.linspace(v_min, v_max, num_atoms), persistent=False)

    def values(self, outputs: Tensor) -> Tensor:
        """Return action values [B, A] of network outputs [B, A, K]."""
        if self.distribution == "none":
            return outputs.squeeze(-1)
        if self.distribution == "c51":
            return outputs.softmax(-1) @ self.support
        return outputs.mean(-1)

    def act(self, obs: ObsArray, *, deterministic: bool, rng: np.random.Generator) -> Array:
        """Return the best actions [N]; a noisy network draws its noise from `rng` unless deterministic."""
        noisy = self.network.noisy and not deterministic
        values = self._noisy_values(obs, rng) if noisy else self.outputs_numpy(obs)
        best: Array = values.argmax(axis=-1)
        return best

    def _noisy_values(self, obs: ObsArray, rng: np.random.Generator) -> Array:
        """Return values [N, A] with noise of its own for each row."""
        noise = self.network.draw_noise(rng, self.device, len(next(iter(leaves(obs)))[1]))
        return self._outputs_on_device(self.features_numpy(obs), noise)

    @torch.no_grad()
    def _outputs_on_device(self, features: Array, noise: list[Noise] | None = None) -> Array:
        outputs = self.network(torch.from_numpy(features).to(self.device), noise)
        values: Array = self.values(outputs).cpu().numpy()
        return values

    def _numpy_network(self) -> NumpyMLP | None:
        """The plain network is a chain of linear layers; the others act in torch."""
        chain = self.distribution == "none" and self.network.value is None and not self.network.noisy
        if self.device.type != "cpu" or not chain:
            return None
        return NumpyMLP(nn.Sequential(*self.network.body, *self.network.advantage.layers), self.activation)


def _num_actions(space: Space[Any]) -> int:
    if not isinstance(space, spaces.Discrete):
        others = "ppo, a2c, sac or td3" if isinstance(space, spaces.Box) else "ppo or a2c"
        raise UserError(
            f"dqn needs discrete actions, but the action space is {type(space).__name__}; "
            f"use {others}, or an environment with Discrete actions"
        )
    return int(space.n)
