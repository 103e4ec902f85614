"""TD3 with behavioural cloning, arXiv:2106.06860: TD3 from a dataset, whose actor stays near the recorded actions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self, Unpack

from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.components import Actor, BuildContext
from rl_training.algorithms.losses import Loss, named_parts
from rl_training.algorithms.off_policy import dataset_source
from rl_training.algorithms.td3 import (
    TD3_LOSSES,
    TD3Learner,
    TD3UpdateConfig,
    td3_critic_gradient,
    td3_critic_loss,
)
from rl_training.core.seeding import ACTIONS, UPDATE_NOISE, numpy_generator
from rl_training.core.types import Numbers, StepMetrics
from rl_training.data.dataset_source import DatasetSource
from rl_training.data.replay_buffer import Transitions
from rl_training.models.fast.backend import Backend
from rl_training.policies.continuous import DeterministicPolicy
from rl_training.policies.explorers import ContinuousExplorer

if TYPE_CHECKING:
    from rl_training.algorithms.keywords import ConfigOrEnv, TD3BCKeywords


@dataclass(frozen=True, kw_only=True)
class TD3BCConfig(TD3UpdateConfig):
    """Settings of TD3+BC."""

    needs_dataset: ClassVar[bool] = True

    gamma: float = 0.99
    """Discount factor, in [0, 1]."""
    alpha: float = 2.5
    """Weight of the critic's value against the squared distance to the recorded actions; values are divided by their
    mean size, so their scale does not matter. 0 imitates only."""

    def problems(self, num_envs: int) -> list[str]:
        return [*super().problems(num_envs), *self.outside("gamma", 0, 1), *self.negative("alpha")]


def td3_bc_actor_loss(minibatch: Mapping[str, Tensor], *, alpha: float) -> Tensor:
    """Return mean((new action - action)^2) - alpha * mean(value) / mean(abs(value)). Pure.

    `values` [1, B] are the first critic's for the `new_actions` [B, A]; `actions` [B, A] are the recorded ones. The
    mean size of the values is a constant: no gradient passes through it.
    """
    values = minibatch["values"]
    weight = alpha / values.abs().mean().detach()
    return (minibatch["new_actions"] - minibatch["actions"]).square().mean() - weight * values.mean()


def td3_bc_actor_gradient(
    minibatch: Mapping[str, Numbers], *, alpha: float, backend: Backend
) -> tuple[StepMetrics, Numbers, Numbers]:
    """Return the result of `td3_bc_actor_loss`, and its gradients with respect to `values` and `new_actions`."""
    values, differences = minibatch["values"], minibatch["new_actions"] - minibatch["actions"]
    count, numbers = values.shape[1], differences.shape[0] * differences.shape[1]
    weight = alpha * count / abs(values).sum()
    loss = (differences * differences).sum() / numbers - weight * values.sum() / count
    return {"loss": loss}, values * 0.0 - weight / count, differences * (2.0 / numbers)


TD3_BC_LOSSES = {
    "critic_loss": TD3_LOSSES["critic_loss"],
    "actor_loss": Loss(td3_bc_actor_loss, td3_bc_actor_gradient, of="994462b1fd52"),
}


class ImitatingLearner(TD3Learner):
    """TD3's update rule for a loss of the actor that also depends on the recorded actions."""

    takes_shards = False  # the mean size of the values is that of the whole batch

    def _imitate(self, rows: Transitions, **settings: float) -> StepMetrics:
        """Write the gradient of the actor; return the parts of its loss, which takes the settings."""
        new_actions = self.backend.xp.tanh(self.actor_run.forward(rows.obs))
        values = self.first_critic_run.forward(rows.obs, new_actions)
        parts, (by_values, by_distance) = self.losses["actor_loss"].differentiate(
            {"values": values, "new_actions": new_actions, "actions": rows.actions},
            ("values", "new_actions"),
            self.backend,
            **settings,
        )
        by_actions = self.first_critic_run.action_gradient(by_values) + by_distance
        self.actor_run.backward(by_actions * (1.0 - new_actions * new_actions))
        return parts


class TD3BCLearner(ImitatingLearner):
    """TD3's update rule with another loss of the actor."""

    config: TD3BCConfig

    def _actor_pass(self, rows: Transitions) -> StepMetrics:
        return named_parts("actor_loss", self._imitate(rows, alpha=self.config.alpha))


def offline_actor(settings: TD3UpdateConfig, context: BuildContext) -> Actor[DeterministicPolicy]:
    """Return the policy, and an explorer that adds no noise, as nothing is collected."""
    arguments = context.policy_settings(settings, shared=settings.share_encoder)
    policy = DeterministicPolicy(context.spec, **arguments).to(context.device)
    return Actor(
        policy, ContinuousExplorer(policy, numpy_generator(context.seed, ACTIONS), learning_starts=0)
    )


class TD3BC(Algorithm):
    """TD3 with behavioural cloning: `TD3BC(dataset="path").learn(total_updates=100_000)`."""

    name = "td3_bc"
    config_class = TD3BCConfig
    action_spaces = (spaces.Box,)
    bounded_actions = True
    critic_loss = staticmethod(td3_critic_loss)
    critic_loss_gradient = staticmethod(td3_critic_gradient)
    actor_loss = staticmethod(td3_bc_actor_loss)
    actor_loss_gradient = staticmethod(td3_bc_actor_gradient)

    if TYPE_CHECKING:  # the keywords of this algorithm

        def __init__(self, config: ConfigOrEnv = None, **settings: Unpack[TD3BCKeywords]) -> None: ...

        @classmethod
        def from_preset(cls, name: str, **settings: Unpack[TD3BCKeywords]) -> Self: ...  # type: ignore[override]

    @staticmethod
    def losses(settings: TD3BCConfig) -> dict[str, Loss]:
        return TD3_BC_LOSSES

    build_actor = staticmethod(offline_actor)

    @staticmethod
    def build_source(
        settings: TD3BCConfig, context: BuildContext, actor: Actor[DeterministicPolicy]
    ) -> DatasetSource:
        """Return batches of the dataset."""
        return dataset_source(settings, context, actor, gamma=settings.gamma)

    @staticmethod
    def build_learner(
        settings: TD3BCConfig, context: BuildContext, actor: Actor[DeterministicPolicy]
    ) -> TD3BCLearner:
        return TD3BCLearner(
            settings,
            actor,
            generator=context.weights,
            noise_rng=numpy_generator(context.seed, UPDATE_NOISE),
            losses={name: context.loss(name, built_in) for name, built_in in TD3_BC_LOSSES.items()},
            update_path=context.update_path,
        )
