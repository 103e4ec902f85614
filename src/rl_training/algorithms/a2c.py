"""Advantage actor-critic, the synchronous form of arXiv:1602.01783: config, loss, learner and algorithm."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self, Unpack

from torch import Tensor

from rl_training.algorithms.actor_critic_objective import masked_mean, row_weights
from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.components import Actor, BuildContext
from rl_training.algorithms.learner import as_metrics
from rl_training.algorithms.losses import Loss
from rl_training.algorithms.on_policy import (
    ActorCriticConfig,
    OnPolicyLearner,
    build_actor_critic,
    build_rollouts,
)
from rl_training.algorithms.optimizers import FlatRMSprop
from rl_training.config import UpdatePath
from rl_training.core.spaces.layout import ANY_ACTION
from rl_training.core.types import Numbers, Progress, StepMetrics, UpdateResult
from rl_training.data.rollout_buffer import RolloutBatch
from rl_training.models.fast.backend import Backend
from rl_training.policies.actor_critic import ActorCriticPolicy

if TYPE_CHECKING:
    from rl_training.algorithms.keywords import A2CKeywords, ConfigOrEnv


@dataclass(frozen=True, kw_only=True)
class A2CConfig(ActorCriticConfig):
    """Settings of A2C: one step of RMSprop per short rollout."""

    num_steps: int = 5
    """Steps per environment in one rollout."""
    learning_rate: float = 7e-4
    """Learning rate of RMSprop at the start."""
    gae_lambda: float = 1.0
    """Lambda of generalized advantage estimation, in [0, 1]: 0 uses one step, 1 the whole rollout."""
    normalize_advantage: bool = False
    """Normalize the advantages of each rollout to zero mean and unit standard deviation."""
    rms_prop_eps: float = 1e-5
    """Epsilon of RMSprop, added to the root of the mean squared gradient."""

    def problems(self, num_envs: int) -> list[str]:
        return [*super().problems(num_envs), *self.not_positive("rms_prop_eps")]


def a2c_loss(minibatch: Mapping[str, Tensor | None], *, ent_coef: float, vf_coef: float) -> dict[str, Tensor]:
    """Return the objective and its parts as 0-d tensors. Pure.

    `minibatch` maps to tensors [B]: `logprobs`, `advantages`, `returns`, `new_values`, `entropy`; optionally `valid`.
    loss = -mean(logprob * A) + vf_coef * mean((value - return)^2) - ent_coef * mean(entropy).
    """
    fields = {name: tensor for name, tensor in minibatch.items() if tensor is not None}
    valid = fields.get("valid")
    policy_loss = -masked_mean(fields["advantages"] * fields["logprobs"], valid)
    value_loss = masked_mean((fields["new_values"] - fields["returns"]).square(), valid)
    entropy_loss = -masked_mean(fields["entropy"], valid)
    loss = policy_loss + vf_coef * value_loss
    if ent_coef:  # otherwise the backward pass can skip the entropy
        loss = loss + ent_coef * entropy_loss
    return {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "entropy_loss": entropy_loss}


def a2c_gradient(
    minibatch: Mapping[str, Numbers], *, ent_coef: float, vf_coef: float, backend: Backend
) -> tuple[StepMetrics, Numbers, Numbers | None, Numbers]:
    """Return the result of `a2c_loss`, and its gradients with respect to `logprobs`, `entropy` and `new_values`.

    It replaces autograd while the loss is `a2c_loss`; tests/unit/algorithms/test_loss_gradients.py compares both.
    """
    share = row_weights(minibatch["returns"], minibatch.get("valid"), backend)
    by_logprobs = minibatch["advantages"] * -share
    error = minibatch["new_values"] - minibatch["returns"]
    losses = {
        "policy_loss": (by_logprobs * minibatch["logprobs"]).sum(),
        "value_loss": (error * error * share).sum(),
        "entropy_loss": -(minibatch["entropy"] * share).sum(),
    }
    loss = losses["policy_loss"] + vf_coef * losses["value_loss"] + ent_coef * losses["entropy_loss"]
    by_entropy = -ent_coef * share if ent_coef else None
    return {"loss": loss, **losses}, by_logprobs, by_entropy, error * (2 * vf_coef * share)


A2C_LOSS = Loss(a2c_loss, a2c_gradient, of="010c9cfe162d")


class A2CLearner(OnPolicyLearner):
    """The update rule: one gradient step on one rollout."""

    def __init__(
        self,
        config: A2CConfig,
        actor: Actor[ActorCriticPolicy],
        *,
        loss: Loss | None = None,
        update_path: UpdatePath = "auto",
    ) -> None:
        self.config = config
        optimizer = FlatRMSprop(
            actor.policy.parameters(), max_grad_norm=config.max_grad_norm, eps=config.rms_prop_eps
        )
        loss = loss or A2C_LOSS.current()
        super().__init__(config, actor, optimizer, loss=loss, update_path=update_path)

    def update(self, batch: RolloutBatch, progress: Progress) -> UpdateResult:
        config, learning_rate = self.config, self.learning_rate(progress)
        with self.learning():
            measured, gradients = self.objective.forward(
                self.prepared(batch), ent_coef=config.ent_coef, vf_coef=config.vf_coef
            )
            self.objective.backward(gradients)
            measured["grad_norm"] = self.optimizer.descend(learning_rate)
        metrics = as_metrics([measured])
        metrics["learning_rate"] = learning_rate
        return self.finished(batch, metrics)


class A2C(Algorithm):
    """Advantage actor-critic: `A2C("CartPole-v1").learn()`."""

    name = "a2c"
    config_class = A2CConfig
    action_spaces = ANY_ACTION
    takes_action_masks = True
    loss = staticmethod(a2c_loss)
    loss_gradient = staticmethod(a2c_gradient)

    if TYPE_CHECKING:  # the keywords of this algorithm

        def __init__(self, config: ConfigOrEnv = None, **settings: Unpack[A2CKeywords]) -> None: ...

        @classmethod
        def from_preset(cls, name: str, **settings: Unpack[A2CKeywords]) -> Self: ...  # type: ignore[override]

    @staticmethod
    def losses(settings: A2CConfig) -> dict[str, Loss]:
        return {"loss": A2C_LOSS}

    build_actor = staticmethod(build_actor_critic)
    build_source = staticmethod(partial(build_rollouts, by_vtrace=True))

    @staticmethod
    def build_learner(
        settings: A2CConfig, context: BuildContext, actor: Actor[ActorCriticPolicy]
    ) -> A2CLearner:
        loss = context.loss("loss", A2C_LOSS)
        return A2CLearner(settings, actor, loss=loss, update_path=context.update_path)
