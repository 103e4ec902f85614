"""Fitted Q evaluation, arXiv:2007.09055: the values of a fixed policy, by regression on recorded transitions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional as F  # torch's own name for it

from rl_training.algorithms.optimizers import FlatAdam
from rl_training.algorithms.target_networks import TargetNetwork
from rl_training.core.types import Array, Numbers, ObsArray, tensors_of
from rl_training.data.dataset_source import DatasetRows
from rl_training.datasets.dataset import ROWS_AT_ONCE, Dataset
from rl_training.models.autograd_network import AutogradCritics
from rl_training.models.encoded_network import Encoded
from rl_training.models.ensemble import EnsembleMLP
from rl_training.models.fast.backend import Backend, TorchBackend, fast_backend
from rl_training.models.fast.networks import explicit_critics
from rl_training.policies.base import NetworkPolicy

Act = Callable[[ObsArray], Array]
"""Observations [B, ...] to actions [B, ...] of the policy, in its units."""


@dataclass(frozen=True)
class FitSettings:
    """How the values are fitted."""

    num_updates: int = 20_000
    batch_size: int = 256
    learning_rate: float = 3e-4
    tau: float = 0.005
    hidden_sizes: tuple[int, ...] = (256, 256)


class FittedValues:
    """Values of the actions of a policy: one network per member, each fitted to its own weights of the episodes.

    Networks learn (value - center) / scale, with the mean and deviation of the recorded returns, and targets are
    limited to what rewards of the dataset can add up to. Neither changes the values that the regression seeks.
    """

    def __init__(
        self,
        policy: NetworkPolicy,
        act: Act,
        dataset: Dataset,
        weights: Array,
        *,
        gamma: float,
        settings: FitSettings,
        seed: int,
        deterministic: bool,
    ) -> None:
        """`weights` [M, E] say how often each member learns from each episode."""
        self.policy, self.act, self.dataset, self.settings = policy, act, dataset, settings
        self.rows, self.weights = DatasetRows(dataset, gamma=gamma), weights
        self.rng = np.random.default_rng(seed)
        self.space = dataset.action_space
        self._known_actions = _actions_of_all(dataset, act) if deterministic else None
        returns = returns_to_go(dataset, gamma)
        self.center, self.scale = float(returns.mean()), max(float(returns.std()), 1e-6)
        self._limits = _possible_values(dataset, gamma)
        generator = torch.Generator().manual_seed(seed)
        self.network = self._new_network(generator)
        self.optimizer = FlatAdam(self.network.parameters(), eps=1e-8)
        self.target = TargetNetwork(self.network, self.optimizer.flat)
        fast = fast_backend(policy.device)
        run = explicit_critics(self.network, self.optimizer.gradient_of, fast)
        target_run = explicit_critics(self.target.network, None, fast)
        explicit = run is not None and target_run is not None
        self.backend: Backend = fast if explicit else TorchBackend(policy.device)
        parameters, gradient_of = self.network.parameters(), self.optimizer.gradient_of
        self.run: Any = run if explicit else AutogradCritics(self.network, parameters, gradient_of)
        self.target_run: Any = target_run if explicit else self.target.network

    def _new_network(self, generator: torch.Generator) -> nn.Module:
        encoder = self.policy.new_encoder(generator)
        inputs = self.policy.features_size(encoder) + action_features_size(self.space)
        sizes = (inputs, *self.settings.hidden_sizes, 1)
        ensemble = EnsembleMLP(len(self.weights), sizes, "relu", generator=generator)
        return (ensemble if encoder is None else Encoded(encoder, ensemble)).to(self.policy.device)

    def fit(self) -> Iterator[float]:
        """Yield the loss after each update."""
        rate = torch.tensor(self.settings.learning_rate)
        for _ in range(self.settings.num_updates):
            steps = self.rng.integers(0, self.dataset.num_steps, self.settings.batch_size)
            yield self._update(steps, rate)

    def _update(self, steps: Array, rate: Tensor) -> float:
        episodes, xp = self.dataset.episode_of(steps), self.backend.xp
        batch = self.rows.transitions(steps, episodes)
        next_rows = steps + episodes + 1
        if self._known_actions is None:
            next_actions = self.act(self.dataset.observations(next_rows))
        else:
            next_actions = self._known_actions[next_rows]
        with torch.no_grad():
            next_values = self.target_run(*self._inputs(batch.next_obs, torch.from_numpy(next_actions)))
        next_values = next_values * self.scale + self.center
        rewards, discounts = (
            self.backend.from_numpy(part.numpy()) for part in (batch.rewards, batch.discounts)
        )
        targets = self.backend.clip(rewards + discounts * next_values, *self._limits)
        values = self.run.forward(*self._inputs(batch.obs, batch.actions))
        differences = values - (targets - self.center) / self.scale
        weighted = differences * self.backend.from_numpy(self.weights[:, episodes])
        self.run.backward(weighted * (2.0 / len(steps)))
        self.optimizer.descend(rate)
        self.target.follow(self.settings.tau)
        loss = float(xp.sum(weighted * differences))
        return loss / (len(self.weights) * len(steps))

    def values(self, obs: ObsArray, num_samples: int = 1) -> Array:
        """Return the values [M, B] of the policy's actions for observations [B, ...], averaged over samples."""
        total: Any = 0.0
        for _ in range(num_samples):
            with torch.no_grad():
                inputs = self._inputs(tensors_of(obs), torch.from_numpy(self.act(obs)))
                total = total + np.asarray(self.run.forward(*inputs), np.float64)
        found: Array = total / num_samples * self.scale + self.center
        return found

    def _inputs(self, obs: Any, actions: Tensor) -> tuple[Any, Numbers]:
        with torch.no_grad():
            seen = self.policy.inputs_of(obs)
        features = action_features(self.space, actions)
        if isinstance(self.backend, TorchBackend) or isinstance(seen, dict):
            return seen, features
        return self.backend.from_numpy(seen.numpy()), self.backend.from_numpy(features.numpy())


def action_features(space: Space[Any], actions: Tensor) -> Tensor:
    """Return actions [B, ...] in a policy's units as numbers [B, D]: discrete ones as one-hot vectors."""
    if isinstance(space, spaces.Discrete):
        return F.one_hot(actions.long(), int(space.n)).to(torch.get_default_dtype())
    if isinstance(space, spaces.MultiDiscrete):
        parts = zip(actions.flatten(1).long().unbind(1), space.nvec.flatten(), strict=True)
        return torch.cat([F.one_hot(part, int(size)) for part, size in parts], 1).to(
            torch.get_default_dtype()
        )
    return actions.flatten(1).to(torch.get_default_dtype())


def action_features_size(space: Space[Any]) -> int:
    """Return D of `action_features`."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return int(np.prod(space.shape or ()))


def returns_to_go(dataset: Dataset, gamma: float) -> Array:
    """Return the discounted rewards [N] from each step to the end of its episode."""
    found = np.array(dataset.rewards, np.float64)
    last = np.zeros(len(found), np.bool_)
    last[dataset.ends - 1] = True
    for step in range(len(found) - 2, -1, -1):
        if not last[step]:
            found[step] += gamma * found[step + 1]
    return found


def _possible_values(dataset: Dataset, gamma: float) -> tuple[float, float]:
    """Return the smallest and the largest value that rewards of the dataset can add up to."""
    low, high = float(np.min(dataset.rewards)), float(np.max(dataset.rewards))
    if gamma == 1.0:
        return -np.inf, np.inf
    ends = 0.0 if dataset.terminated[dataset.ends - 1].any() else None
    bounds = [low, high, low / (1 - gamma), high / (1 - gamma)] + ([] if ends is None else [ends])
    return min(bounds), max(bounds)


def _actions_of_all(dataset: Dataset, act: Act) -> Array:
    """Return the actions [N + E, ...] for all observations."""
    total = dataset.num_steps + dataset.num_episodes
    parts = [
        act(dataset.observations(np.arange(start, min(start + ROWS_AT_ONCE, total))))
        for start in range(0, total, ROWS_AT_ONCE)
    ]
    return np.concatenate(parts)


__all__ = ["Act", "FitSettings", "FittedValues", "action_features", "returns_to_go"]
