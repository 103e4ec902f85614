"""Algorithms as a user would write them, right and wrong, for the tests of all folders."""

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from rl_training import PPO
from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.losses import Loss
from rl_training.algorithms.ppo import PPOConfig, ppo_loss


@dataclass(frozen=True, kw_only=True)
class ScaledConfig(PPOConfig):
    scale: float = 1.0
    """Factor of the initial weights."""
    unexplained: int = 3

    def problems(self, num_envs: int) -> list[str]:
        return [*super().problems(num_envs), *self.not_positive("scale")]


class ScaledPPO(PPO):
    """PPO with one more setting, under the inherited name."""

    config_class = ScaledConfig
    scales: ClassVar[list[float]] = []
    """What its actors were built with."""

    @staticmethod
    def build_actor(settings: Any, context: Any) -> Any:
        actor = PPO.build_actor(settings, context)
        ScaledPPO.scales.append(settings.scale)
        with torch.no_grad():
            for parameter in actor.policy.parameters():
                parameter.mul_(settings.scale)
        return actor


@dataclass(frozen=True, kw_only=True)
class WeightedConfig(PPOConfig):
    weight: float = 1.0
    """Factor of the loss."""


def weighted_loss(minibatch: Any, *, weight: float, **settings: Any) -> Any:
    """PPO's loss times a factor."""
    return weight * ppo_loss(minibatch, **settings)["loss"]


class WeightedPPO(PPO):
    """Its loss depends on a setting of its own."""

    config_class = WeightedConfig

    @staticmethod
    def losses(settings: Any) -> dict[str, Loss]:
        def loss(minibatch: Any, **others: Any) -> Any:
            return weighted_loss(minibatch, weight=settings.weight, **others)

        return {"loss": Loss(loss)}


class Renamed(PPO):
    """Changes nothing."""


class NotAnAlgorithm:
    """Has nothing to do with the package."""


class NoBuilders(Algorithm):
    """Abstract: it builds nothing."""

    config_class = PPOConfig
    action_spaces = PPO.action_spaces


class AbstractPPO(PPO, abc.ABC):
    """Abstract in Python's own sense."""

    @abc.abstractmethod
    def bonus(self) -> float:
        """Return a bonus."""


class Forgotten(PPOConfig):
    """Its author forgot the decorator, so that `bonus` is not a setting."""

    bonus: float = 1.0


class ForgottenPPO(PPO):
    config_class = Forgotten


@dataclass
class Changeable:
    scale: float = 1.0


class ChangeablePPO(PPO):
    config_class = Changeable  # type: ignore[assignment]  # wrong on purpose


@dataclass(frozen=True, kw_only=True)
class WithoutDefault(PPOConfig):
    bonus: float


class WithoutDefaultPPO(PPO):
    config_class = WithoutDefault


@dataclass(frozen=True, kw_only=True)
class Clashing(PPOConfig):
    num_envs: int = 3


class ClashingPPO(PPO):
    config_class = Clashing


@dataclass(frozen=True, kw_only=True)
class Unsaveable(PPOConfig):
    bonus: Any = len


class UnsaveablePPO(PPO):
    config_class = Unsaveable
