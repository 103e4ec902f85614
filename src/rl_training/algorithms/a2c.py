"""Advantage actor-critic, the synchronous form of arXiv:1602.01783: config, loss, learner and public face."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.on_policy import (
    ActorCriticConfig,
    OnPolicyLearner,
    build_actor_critic,
    build_rollouts,
    masked_mean,
    normalized,
)
from rl_training.algorithms.optim import FlatRMSprop
from rl_training.algorithms.parts import Actor, BuildContext
from rl_training.core.schedules import Schedule
from rl_training.core.spaces import ANY_ACTION
from rl_training.core.types import Metrics, Progress, UpdateResult
from rl_training.data.rollout_buffer import RolloutBatch
from rl_training.policies.actor_critic import ActorCriticPolicy


@dataclass(frozen=True, kw_only=True)
class A2CConfig(ActorCriticConfig):
    """Settings of A2C: one step of RMSprop per short rollout."""

    num_steps: int = 5
    """Steps per environment in one rollout."""
    learning_rate: float = 7e-4
    """Step size of RMSprop at the start."""
    learning_rate_schedule: Schedule = "constant"
    """How the learning rate moves over the run: constant, linear or cosine to 0, linear:0.1 to a tenth, a list of
    [fraction, factor] pairs, or module:function from the fraction to the factor."""
    gae_lambda: float = 1.0
    """Trace of the advantage estimate, in [0, 1]: 0 is one step, 1 is the whole rollout."""
    normalize_advantage: bool = False
    """Give the advantages of each rollout zero mean and unit deviation."""
    rms_prop_eps: float = 1e-5
    """Added to the root of the mean squared gradient."""

    def problems(self, num_envs: int) -> list[str]:
        """Return what is impossible, each naming key, value and remedy."""
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
    if ent_coef:  # otherwise the backward pass need not visit the entropy at all
        loss = loss + ent_coef * entropy_loss
    return {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "entropy_loss": entropy_loss}


class A2CLearner(OnPolicyLearner):
    """The update rule: one gradient step on one rollout. Knows no environment, file, logger or clock."""

    def __init__(self, config: A2CConfig, actor: Actor[ActorCriticPolicy]) -> None:
        self.config = config
        optimizer = FlatRMSprop(
            actor.policy.parameters(), max_grad_norm=config.max_grad_norm, eps=config.rms_prop_eps
        )
        super().__init__(config, actor, optimizer)

    def update(self, batch: RolloutBatch, progress: Progress) -> UpdateResult:
        """Train on one rollout [T * N]."""
        learning_rate = self.learning_rate(progress)
        with self.learning():
            metrics = self._train_batch(self.prepared(batch), learning_rate)
        metrics["learning_rate"] = learning_rate
        return self.finished(batch, metrics)

    def _train_batch(self, rows: RolloutBatch, learning_rate: Tensor) -> Metrics:
        """Loss, backward, clipping, optimizer: tensors in, tensors out; `rows` hold the network's inputs."""
        config, advantages = self.config, rows.advantages
        logprobs, entropy, new_values = self.policy.evaluate(rows)
        losses = a2c_loss(
            {
                "logprobs": logprobs,
                "advantages": normalized(advantages, rows.valid)
                if config.normalize_advantage
                else advantages,
                "returns": rows.returns,
                "new_values": new_values,
                "entropy": entropy,
                "valid": rows.valid,
            },
            ent_coef=config.ent_coef,
            vf_coef=config.vf_coef,
        )
        metrics = {name: value.detach() for name, value in losses.items()}
        metrics["grad_norm"] = self.optimizer.minimize(losses["loss"], learning_rate)
        return metrics


class A2C(Algorithm):
    """Advantage actor-critic: `A2C(config).learn()`."""

    name = "a2c"
    config_class = A2CConfig
    action_spaces = ANY_ACTION
    takes_action_masks = True

    build_actor = staticmethod(build_actor_critic)
    build_source = staticmethod(build_rollouts)

    @staticmethod
    def build_learner(
        settings: A2CConfig, context: BuildContext, actor: Actor[ActorCriticPolicy]
    ) -> A2CLearner:
        """Return the update rule."""
        return A2CLearner(settings, actor)
