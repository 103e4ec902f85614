"""The greedy policy of an action-value network."""

from typing import Literal, TypeAlias, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.core.spaces.masks import apply_mask, split_mask
from rl_training.core.types import Array, EnvSpec, ObsArray, PolicyState, leaves
from rl_training.models.encoded_network import Encoded, layers_after_encoder
from rl_training.models.fast.acting import NumpyMLP
from rl_training.models.mlp import ActivationName
from rl_training.models.normalizer import RewardNormalizer
from rl_training.models.q_network import Noise, QNetwork
from rl_training.policies.base import FLAT, Encoding, NetworkPolicy

Distribution: TypeAlias = Literal["none", "c51", "quantile"]


class QPolicy(NetworkPolicy):
    """Takes the action with the largest value, computed from the network's outputs for each action.

    `none`: the value. `c51`: logits of `num_atoms` fixed values from v_min to v_max. `quantile`: quantiles.
    """

    support: Tensor

    def __init__(
        self,
        spec: EnvSpec,
        *,
        hidden_sizes: tuple[int, ...],
        activation: ActivationName,
        dueling: bool = False,
        noisy: bool = False,
        distribution: Distribution = "none",
        num_atoms: int = 51,
        v_min: float = -10.0,
        v_max: float = 10.0,
        num_quantiles: int = 50,
        encoding: Encoding = FLAT,
        normalize_obs: bool,
        reward_normalizer: RewardNormalizer | None,
        generator: torch.Generator,
    ) -> None:
        super().__init__(
            spec, encoding=encoding, normalize_obs=normalize_obs, reward_normalizer=reward_normalizer
        )
        assert isinstance(spec.action_space, spaces.Discrete)
        self.num_actions = int(spec.action_space.n)
        self.distribution: Distribution = distribution
        encoder = self.new_encoder(generator)
        network: nn.Module = QNetwork(
            self.features_size(encoder),
            self.num_actions,
            hidden_sizes,
            outputs_per_action={"none": 1, "c51": num_atoms, "quantile": num_quantiles}[distribution],
            activation=activation,
            dueling=dueling,
            noisy=noisy,
            generator=generator,
        )
        self.network = network if encoder is None else Encoded(encoder, network)
        self.noisy = noisy
        self.register_buffer("support", torch.linspace(v_min, v_max, num_atoms), persistent=False)

    def action_values(self, outputs: Tensor) -> Tensor:
        """Return action values [B, A] of network outputs [B, A, K]."""
        if self.distribution == "none":
            return outputs.squeeze(-1)
        if self.distribution == "c51":
            return outputs.softmax(-1) @ self.support
        return outputs.mean(-1)

    def best(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        """Return the best actions [B] that a mask [B, A] allows, for outputs [B, A, K]."""
        best: Tensor = apply_mask(self.action_values(outputs), mask, -torch.inf, torch).argmax(-1)
        return best

    def draw_noise(self, rng: np.random.Generator, device: torch.device, rows: int = 1) -> list[Noise] | None:
        """Return noise for one pass of `rows` rows through a noisy network; None if the network is not noisy."""
        if not self.noisy:
            return None
        return cast(QNetwork, layers_after_encoder(self.network)).draw_noise(rng, device, rows)

    def act(
        self, obs: ObsArray, state: PolicyState, *, deterministic: bool, rng: np.random.Generator
    ) -> tuple[Array, PolicyState]:
        """Return the best allowed actions [N]; unless deterministic, a noisy network draws noise for each row."""
        noise = None
        if self.noisy and not deterministic:
            noise = self.draw_noise(rng, self.device, len(next(iter(leaves(obs)))[1]))
        seen, mask = split_mask(obs)
        best: Array = apply_mask(self._values(seen, noise), mask, -np.inf).argmax(axis=-1)
        return best, state

    def _values(self, obs: ObsArray, noise: list[Noise] | None) -> Array:
        """Return values [N, A]; in NumPy if there is no noise and the network is a plain chain of layers."""
        twin = self._current_twin() if noise is None else None
        if isinstance(twin, NumpyMLP):
            values: Array = self._finite(twin(self._read_numpy(obs)))
            return values
        outputs = torch.from_numpy(self._outputs_on_device(obs, noise)).to(self.device)
        with torch.no_grad():
            return self.action_values(outputs).cpu().numpy()
