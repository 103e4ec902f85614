"""Advantage actor-critic, the synchronous form of arXiv:1602.01783: config, loss, learner and public face."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Parts
from rl_training.algorithms.on_policy import (
    ActorCriticConfig,
    build_actor_critic,
    explained_variance,
    masked_mean,
    normalized,
)
from rl_training.algorithms.optim import FlatRMSprop
from rl_training.core.schedules import ScheduleName, scheduled
from rl_training.core.seeding import ACTIONS, numpy_generator
from rl_training.core.types import EnvSpec, Metrics, Progress, State, UpdateResult
from rl_training.data.rollout_buffer import RolloutBatch
from rl_training.policies.actor_critic import ActorCriticPolicy
from rl_training.policies.explorers import ActorCriticExplorer

if TYPE_CHECKING:
    from rl_training.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class A2CConfig(ActorCriticConfig):
    """Settings of A2C: one step of RMSprop per short rollout."""

    num_steps: int = 5
    """Steps per environment in one rollout."""
    learning_rate: float = 7e-4
    """Step size of RMSprop at the start."""
    learning_rate_schedule: ScheduleName = "constant"
    """How the learning rate falls to 0 over the run."""
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


class A2CLearner:
    """The update rule: one gradient step on one rollout. Knows no environment, file, logger or clock."""

    def __init__(
        self, config: A2CConfig, policy: ActorCriticPolicy, *, action_rng: np.random.Generator
    ) -> None:
        self.config = config
        self.policy = policy
        self.optimizer = FlatRMSprop(
            policy.parameters(), max_grad_norm=config.max_grad_norm, eps=config.rms_prop_eps
        )
        self.explorer = ActorCriticExplorer(policy, action_rng)

    def update(self, batch: RolloutBatch, progress: Progress) -> UpdateResult:
        """Train on one rollout [T * N]."""
        config = self.config
        learning_rate = torch.tensor(
            scheduled(config.learning_rate, config.learning_rate_schedule, progress.fraction)
        )
        batch = batch.to(self.policy.device)
        with torch.no_grad():
            encoded = self.policy.encoder.encode(batch.obs)
            features = encoded if self.policy.normalizer is None else self.policy.normalizer(encoded)
        metrics = self._train_batch(
            features, batch.actions, batch.advantages, batch.returns, batch.valid, learning_rate
        )
        if self.policy.normalizer is not None:  # only now: acting and learning saw the same statistics
            self.policy.normalizer.update(encoded if batch.valid is None else encoded[batch.valid])
        metrics["explained_variance"] = explained_variance(batch)
        metrics["learning_rate"] = learning_rate
        if isinstance(log_std := getattr(self.policy.head, "log_std", None), Tensor):
            metrics["std"] = log_std.detach().exp().mean()
        return UpdateResult(metrics)

    def _train_batch(
        self,
        features: Tensor,
        actions: Tensor,
        advantages: Tensor,
        returns: Tensor,
        valid: Tensor | None,
        learning_rate: Tensor,
    ) -> Metrics:
        """Loss, backward, clipping, optimizer: tensors in, tensors out; the unit of compilation."""
        logprobs, entropy, new_values = self.policy.evaluate(features, actions)
        losses = a2c_loss(
            {
                "logprobs": logprobs,
                "advantages": normalized(advantages, valid)
                if self.config.normalize_advantage
                else advantages,
                "returns": returns,
                "new_values": new_values,
                "entropy": entropy,
                "valid": valid,
            },
            ent_coef=self.config.ent_coef,
            vf_coef=self.config.vf_coef,
        )
        metrics = {name: value.detach() for name, value in losses.items()}
        metrics["grad_norm"] = self.optimizer.minimize(losses["loss"], learning_rate)
        return metrics

    def state_dict(self) -> dict[str, State]:
        """Return what acting needs (`model`), the optimizer's averages and the random state."""
        return {
            "model": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "learner": {"explorer": self.explorer.state_dict()},
        }

    def load_state_dict(self, state: dict[str, State]) -> None:
        """Restore everything in place."""
        self.policy.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.explorer.load_state_dict(state["learner"]["explorer"])


class A2C(Algorithm):
    """Advantage actor-critic: `A2C(config).learn()`."""

    name = "a2c"
    config_class = A2CConfig

    @staticmethod
    def build(config: "TrainConfig", spec: EnvSpec, device: torch.device) -> Parts:
        """Return the learner and its experience source for environments of `spec`."""
        settings = config.algorithm
        assert isinstance(settings, A2CConfig)
        policy, source = build_actor_critic(config, spec, device)
        learner = A2CLearner(settings, policy, action_rng=numpy_generator(config.seed, ACTIONS))
        return Parts(learner, source)
