"""Environments and an encoder for the chaos run: importing this registers what `--env-id chaos_envs:Id` asks for."""

from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from torch import Tensor, nn

from rl_training.envs.tasks.probes import NestedDictTarget


class LongNestedDict(NestedDictTarget):
    """Nested Dict observations, drawn anew at every step; the time limit below cuts its episodes."""

    episode_length = 10**9


def wrapped_pendulum(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    """A pendulum whose wrappers keep statistics over all episodes, which no seed and no actions bring back."""
    env = gymnasium.make("Pendulum-v1", max_episode_steps=50, **kwargs)
    return NormalizeReward(NormalizeObservation(env))


class Forgetful(nn.Module):
    """An encoder that draws random numbers while it learns, and counts what it has seen."""

    def __init__(self, observation_space: spaces.Box, features_dim: int) -> None:
        super().__init__()
        self.features_dim = features_dim
        linear = nn.Linear(observation_space.shape[0], features_dim)
        self.layers = nn.Sequential(linear, nn.BatchNorm1d(features_dim), nn.Dropout(0.1), nn.ReLU())

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features [B, features_dim]."""
        features: Tensor = self.layers(inputs)
        return features


gymnasium.register("LongNestedDict-v0", entry_point=LongNestedDict, max_episode_steps=37)
gymnasium.register("WrappedPendulum-v0", entry_point=wrapped_pendulum)
