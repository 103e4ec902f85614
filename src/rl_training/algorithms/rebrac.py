"""ReBRAC, arXiv:2305.09836: TD3+BC whose actor and critics have separate penalties. Config, losses and learner."""

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
    TD3UpdateConfig,
    td3_critic_gradient,
    td3_critic_loss,
    td3_targets,
)
from rl_training.algorithms.td3_bc import ImitatingLearner, offline_actor
from rl_training.core.seeding import UPDATE_NOISE, numpy_generator
from rl_training.core.types import Numbers, StepMetrics
from rl_training.data.dataset_source import HAS_NEXT_ACTION, NEXT_ACTIONS, DatasetSource
from rl_training.data.replay_buffer import Transitions
from rl_training.models.fast.backend import Backend
from rl_training.policies.continuous import DeterministicPolicy

if TYPE_CHECKING:
    from rl_training.algorithms.keywords import ConfigOrEnv, ReBRACKeywords


@dataclass(frozen=True, kw_only=True)
class ReBRACConfig(TD3UpdateConfig):
    """Settings of ReBRAC. The paper tunes both penalties for each dataset."""

    needs_dataset: ClassVar[bool] = True

    learning_rate: float = 1e-3
    """Learning rate of Adam at the start."""
    batch_size: int = 1024
    """Transitions in one update."""
    hidden_sizes: tuple[int, ...] = (256, 256, 256)
    """Widths of the hidden layers."""
    critic_layer_norm: bool = True
    """Normalize the inputs of each activation of the critics (arXiv:1607.06450)."""
    gamma: float = 0.99
    """Discount factor, in [0, 1]."""
    actor_penalty: float = 0.01
    """Weight of the squared distance between the actor's and the recorded action in the actor's loss; the paper's
    beta_1."""
    critic_penalty: float = 0.01
    """Weight of the same distance for the next actions, which lowers the critics' targets; the paper's beta_2."""

    def problems(self, num_envs: int) -> list[str]:
        return [
            *super().problems(num_envs),
            *self.outside("gamma", 0, 1),
            *self.negative("actor_penalty", "critic_penalty"),
        ]


def rebrac_actor_loss(minibatch: Mapping[str, Tensor], *, penalty: float) -> Tensor:
    """Return penalty * mean(|new action - action|^2) - mean(value) / mean(abs(value)). Pure.

    `values` [1, B] are the first critic's for the `new_actions` [B, A]; `actions` [B, A] are the recorded ones. The
    mean size of the values is a constant: no gradient passes through it.
    """
    values = minibatch["values"]
    distances = (minibatch["new_actions"] - minibatch["actions"]).square().sum(-1)
    return penalty * distances.mean() - values.mean() / values.abs().mean().detach()


def rebrac_actor_gradient(
    minibatch: Mapping[str, Numbers], *, penalty: float, backend: Backend
) -> tuple[StepMetrics, Numbers, Numbers]:
    """Return the result of `rebrac_actor_loss`, and its gradients with respect to `values` and `new_actions`."""
    values, differences = minibatch["values"], minibatch["new_actions"] - minibatch["actions"]
    count, size = values.shape[1], abs(values).sum()
    loss = (differences * differences).sum() * (penalty / count) - values.sum() / size
    return {"loss": loss}, values * 0.0 - 1.0 / size, differences * (2.0 * penalty / count)


REBRAC_LOSSES = {
    "critic_loss": TD3_LOSSES["critic_loss"],
    "actor_loss": Loss(rebrac_actor_loss, rebrac_actor_gradient, of="9b3f05611436"),
}


class ReBRACLearner(ImitatingLearner):
    """TD3's update rule with a penalty in the actor's loss, and one in the critics' targets."""

    config: ReBRACConfig

    def _actor_pass(self, rows: Transitions) -> StepMetrics:
        return named_parts("actor_loss", self._imitate(rows, penalty=self.config.actor_penalty))

    def _targets(self, rows: Transitions, next_actions: Numbers, next_values: Numbers) -> Numbers:
        """Return TD3's targets [B], lowered where the next action is far from the recorded one.

        After the last step of an episode no action is recorded, so there is no penalty.
        """
        differences = next_actions - rows.extra[NEXT_ACTIONS]
        distances = (differences * differences).sum(-1) * rows.extra[HAS_NEXT_ACTION]
        return td3_targets(rows, next_values - self.config.critic_penalty * distances, self.backend.xp)


class ReBRAC(Algorithm):
    """TD3+BC with separate penalties: `ReBRAC(dataset="path").learn(total_updates=100_000)`."""

    name = "rebrac"
    config_class = ReBRACConfig
    action_spaces = (spaces.Box,)
    bounded_actions = True
    critic_loss = staticmethod(td3_critic_loss)
    critic_loss_gradient = staticmethod(td3_critic_gradient)
    actor_loss = staticmethod(rebrac_actor_loss)
    actor_loss_gradient = staticmethod(rebrac_actor_gradient)

    if TYPE_CHECKING:  # the keywords of this algorithm

        def __init__(self, config: ConfigOrEnv = None, **settings: Unpack[ReBRACKeywords]) -> None: ...

        @classmethod
        def from_preset(cls, name: str, **settings: Unpack[ReBRACKeywords]) -> Self: ...  # type: ignore[override]

    @staticmethod
    def losses(settings: ReBRACConfig) -> dict[str, Loss]:
        return REBRAC_LOSSES

    build_actor = staticmethod(offline_actor)

    @staticmethod
    def build_source(
        settings: ReBRACConfig, context: BuildContext, actor: Actor[DeterministicPolicy]
    ) -> DatasetSource:
        """Return batches of the dataset, with the next actions."""
        return dataset_source(settings, context, actor, gamma=settings.gamma, next_actions=True)

    @staticmethod
    def build_learner(
        settings: ReBRACConfig, context: BuildContext, actor: Actor[DeterministicPolicy]
    ) -> ReBRACLearner:
        return ReBRACLearner(
            settings,
            actor,
            generator=context.weights,
            noise_rng=numpy_generator(context.seed, UPDATE_NOISE),
            losses={name: context.loss(name, built_in) for name, built_in in REBRAC_LOSSES.items()},
            update_path=context.update_path,
        )
