"""Advantage-weighted actor-critic, arXiv:2006.09359: config, learner and algorithm."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self, Unpack

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.advantage_weighting import (
    WEIGHTED_ACTOR_LOSS,
    build_weighted_actor,
    weighted_actor_gradient,
    weighted_actor_loss,
)
from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.components import Actor, BuildContext
from rl_training.algorithms.continuous_critics import ContinuousConfig, ContinuousLearner
from rl_training.algorithms.losses import Loss, named_parts
from rl_training.algorithms.off_policy import build_replay
from rl_training.algorithms.recorded_actions import RecordedActions
from rl_training.algorithms.td3 import TD3_LOSSES, td3_critic_gradient, td3_critic_loss, td3_targets
from rl_training.config import UpdatePath
from rl_training.core.seeding import UPDATE_NOISE, numpy_generator
from rl_training.core.types import Numbers, StepMetrics
from rl_training.data.replay_buffer import Transitions
from rl_training.policies.actor import ActorPolicy

if TYPE_CHECKING:
    from rl_training.algorithms.keywords import AWACKeywords, ConfigOrEnv


@dataclass(frozen=True, kw_only=True)
class AWACConfig(ContinuousConfig):
    """Settings of AWAC."""

    needs_dataset: ClassVar[bool] = True

    batch_size: int = 1024
    """Transitions in one update."""
    temperature: float = 1.0
    """How little the actor prefers better actions: it imitates an action with weight exp(advantage / temperature)."""
    max_weight: float = 100.0
    """Maximum of this weight."""

    def problems(self, num_envs: int) -> list[str]:
        return [*super().problems(num_envs), *self.not_positive("temperature", "max_weight")]


AWAC_LOSSES = {"critic_loss": TD3_LOSSES["critic_loss"], "actor_loss": WEIGHTED_ACTOR_LOSS}


class AWACLearner(ContinuousLearner):
    """The update rule: one step each on the losses of critics and actor, both at the same weights.

    The critics learn the value of the current policy, from one action that it samples for each next observation. The
    advantage of a recorded action is its value less that of one sampled action.
    """

    def __init__(
        self,
        config: AWACConfig,
        actor: Actor[ActorPolicy],
        *,
        generator: torch.Generator,
        noise_rng: np.random.Generator,
        losses: Mapping[str, Loss] | None = None,
        update_path: UpdatePath = "auto",
    ) -> None:
        losses = losses or {name: loss.current() for name, loss in AWAC_LOSSES.items()}
        super().__init__(
            config, actor, generator=generator, noise_rng=noise_rng, losses=losses, update_path=update_path
        )
        self.config, self.policy = config, actor.policy
        by_autograd = self.update_path == "autograd"
        self.recorded = RecordedActions(actor.policy, self.backend, autograd=by_autograd)

    def _train_batch(
        self, rows: Transitions, updates: int, learning_rate: Tensor
    ) -> tuple[StepMetrics, Numbers | None]:
        xp = self.backend.xp
        noise = self.draw_noise(2, len(rows), self.action_size)
        next_outputs = self.next_actor_outputs(rows)
        outputs = self.actor_outputs(rows)
        with torch.no_grad():
            next_values = self.target_run(rows.next_obs, self.recorded.sampled(next_outputs, noise[1]))
            state_values = xp.amin(
                self.critics_run.forward(rows.obs, self.recorded.sampled(outputs, noise[0])), axis=0
            )
        values = self.critics_run.forward(rows.obs, rows.actions)
        advantages = xp.amin(values, axis=0) - state_values
        metrics = {
            "q_value": values.sum() / (len(values) * len(rows)),
            **self._actor_pass(rows, outputs, advantages),
            **self._critic_pass(values, td3_targets(rows, next_values, xp)),
        }
        metrics["critic_grad_norm"] = self.critic_optimizer.descend(learning_rate)
        metrics["actor_grad_norm"] = self.actor_optimizer.descend(learning_rate)
        self.target_critics.follow(self.config.tau)
        return metrics, None

    def _critic_pass(self, values: Numbers, targets: Numbers) -> StepMetrics:
        """Write the gradient of the critics; return the parts of their loss."""
        parts, (by_values,) = self.losses["critic_loss"].differentiate(
            {"values": values, "targets": targets}, ("values",), self.backend
        )
        self.critics_run.backward(by_values)
        return named_parts("critic_loss", parts)

    def _actor_pass(self, rows: Transitions, outputs: Numbers, advantages: Numbers) -> StepMetrics:
        """Write the gradient of the actor; return the parts of its loss."""
        logprobs, back = self.recorded.log_probs(outputs, rows.actions)
        parts, (by_logprobs,) = self.losses["actor_loss"].differentiate(
            {"logprobs": logprobs, "advantages": advantages},
            ("logprobs",),
            self.backend,
            inverse_temperature=1.0 / self.config.temperature,
            max_weight=self.config.max_weight,
        )
        self.backward_actor(*back(by_logprobs))
        return named_parts("actor_loss", parts)


class AWAC(Algorithm):
    """Advantage-weighted actor-critic: `AWAC(dataset="path").learn(total_updates=10_000)`."""

    name = "awac"
    config_class = AWACConfig
    action_spaces = (spaces.Box,)
    bounded_actions = True
    critic_loss = staticmethod(td3_critic_loss)
    critic_loss_gradient = staticmethod(td3_critic_gradient)
    actor_loss = staticmethod(weighted_actor_loss)
    actor_loss_gradient = staticmethod(weighted_actor_gradient)

    if TYPE_CHECKING:  # the keywords of this algorithm

        def __init__(self, config: ConfigOrEnv = None, **settings: Unpack[AWACKeywords]) -> None: ...

        @classmethod
        def from_preset(cls, name: str, **settings: Unpack[AWACKeywords]) -> Self: ...  # type: ignore[override]

    @staticmethod
    def losses(settings: AWACConfig) -> dict[str, Loss]:
        return AWAC_LOSSES

    build_actor = staticmethod(build_weighted_actor)
    build_source = staticmethod(build_replay)

    @staticmethod
    def build_learner(settings: AWACConfig, context: BuildContext, actor: Actor[ActorPolicy]) -> AWACLearner:
        return AWACLearner(
            settings,
            actor,
            generator=context.weights,
            noise_rng=numpy_generator(context.seed, UPDATE_NOISE),
            losses={name: context.loss(name, built_in) for name, built_in in AWAC_LOSSES.items()},
            update_path=context.update_path,
        )
