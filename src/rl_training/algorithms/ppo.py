"""Proximal policy optimization, arXiv:1707.06347: config, loss, learner and public face."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from rl_training.algorithms.optim import FlatAdam
from rl_training.core.schedules import ScheduleName, scheduled
from rl_training.core.seeding import (
    ACTIONS,
    MINIBATCHES,
    generator_state,
    numpy_generator,
    set_generator_state,
)
from rl_training.core.types import EnvSpec, Metrics, Progress, State, UpdateResult
from rl_training.data.rollout_buffer import RolloutBatch
from rl_training.policies.actor_critic import ActorCriticPolicy
from rl_training.policies.explorers import ActorCriticExplorer

if TYPE_CHECKING:
    from rl_training.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class PPOConfig(ActorCriticConfig):
    """Settings of PPO."""

    batch_size: int = 64
    """Rows in one minibatch; at most num_steps * num_envs."""
    update_epochs: int = 10
    """Passes over each rollout."""
    clip_coef: float = 0.2
    """How far the probability ratio may move from 1 before its gradient is cut."""
    clip_coef_schedule: ScheduleName = "constant"
    """How clip_coef falls to 0 over the run."""
    clip_vloss: bool = False
    """Also clip the value's change to clip_coef, and take the larger of both errors."""
    target_kl: float | None = None
    """Stop the epochs before a step on a minibatch whose approximate KL divergence exceeds this; none: never."""

    def problems(self, num_envs: int) -> list[str]:
        """Return what is impossible, each naming key, value and remedy."""
        rows = self.num_steps * num_envs
        found = [
            *super().problems(num_envs),
            *self.not_positive("batch_size", "update_epochs", "clip_coef"),
        ]
        if self.target_kl is not None:
            found += self.not_positive("target_kl")
        if self.num_steps >= 1 and num_envs >= 1 and self.batch_size > rows:
            found.append(
                f"batch_size is {self.batch_size}, but a rollout has only num_steps * num_envs = "
                f"{self.num_steps} * {num_envs} = {rows} rows; use batch_size <= {rows} or longer rollouts"
            )
        return found


def ppo_loss(
    minibatch: Mapping[str, Tensor | None],
    *,
    clip_coef: float | Tensor,
    ent_coef: float,
    vf_coef: float,
    clip_vloss: bool = False,
) -> dict[str, Tensor]:
    """Return the clipped PPO objective and its parts as 0-d tensors. Pure.

    `minibatch` maps to tensors [B]: `logprobs` and `old_logprobs` of the actions, `advantages`, `returns`,
    `new_values` and, as recorded, `values`, `entropy`; optionally `valid` (bool): rows outside do not count.

    loss = policy_loss + vf_coef * value_loss + ent_coef * entropy_loss, with
    policy_loss = -mean(min(ratio * A, clip(ratio, 1 - clip_coef, 1 + clip_coef) * A)),
    value_loss = mean((new_values - returns)^2), no factor of one half, and entropy_loss = -mean(entropy).
    With `clip_vloss` each row takes the larger of the clipped and the unclipped squared error.
    """
    fields = {name: tensor for name, tensor in minibatch.items() if tensor is not None}
    advantages, returns, new_values = fields["advantages"], fields["returns"], fields["new_values"]
    valid = fields.get("valid")

    def mean(rows: Tensor) -> Tensor:
        return masked_mean(rows, valid)

    log_ratio = fields["logprobs"] - fields["old_logprobs"]
    bound = torch.as_tensor(clip_coef, dtype=log_ratio.dtype)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - bound, 1 + bound)
    policy_loss = -mean(torch.minimum(advantages * ratio, advantages * clipped))

    error = (new_values - returns).square()
    if clip_vloss:
        old_values = fields["values"]
        clipped_values = old_values + (new_values - old_values).clamp(-bound, bound)
        error = torch.maximum(error, (clipped_values - returns).square())
    value_loss = mean(error)
    entropy_loss = -mean(fields["entropy"])
    loss = policy_loss + vf_coef * value_loss
    if ent_coef:  # otherwise the backward pass need not visit the entropy at all
        loss = loss + ent_coef * entropy_loss
    with torch.no_grad():
        change = ratio - 1
        approx_kl = mean(change - log_ratio)
        clip_fraction = mean((change.abs() > bound).to(change.dtype))
    return {
        "loss": loss,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy_loss": entropy_loss,
        "approx_kl": approx_kl,
        "clip_fraction": clip_fraction,
    }


class PPOLearner:
    """The update rule: epochs of minibatches over one rollout. Knows no environment, file, logger or clock."""

    def __init__(
        self,
        config: PPOConfig,
        policy: ActorCriticPolicy,
        *,
        action_rng: np.random.Generator,
        minibatch_rng: np.random.Generator,
    ) -> None:
        self.config = config
        self.policy = policy
        self.optimizer = FlatAdam(policy.parameters(), max_grad_norm=config.max_grad_norm)
        self.explorer = ActorCriticExplorer(policy, action_rng)
        self.minibatch_rng = minibatch_rng

    def update(self, batch: RolloutBatch, progress: Progress) -> UpdateResult:
        """Train on one rollout [T * N]; return metrics averaged over its minibatches."""
        config = self.config
        learning_rate = scheduled(config.learning_rate, config.learning_rate_schedule, progress.fraction)
        clip_coef = scheduled(config.clip_coef, config.clip_coef_schedule, progress.fraction)
        batch = batch.to(self.policy.device)
        with torch.no_grad():
            encoded = self.policy.encoder.encode(batch.obs)
            features = encoded if self.policy.normalizer is None else self.policy.normalizer(encoded)
        rows = replace(batch, obs=features)
        history = self._train_epochs(rows, torch.tensor(learning_rate), torch.tensor(clip_coef))
        if self.policy.normalizer is not None:  # only now: acting and learning saw the same statistics
            self.policy.normalizer.update(encoded if batch.valid is None else encoded[batch.valid])
        metrics = {name: torch.stack([step[name] for step in history]).mean() for name in history[0]}
        metrics["explained_variance"] = explained_variance(batch)
        metrics["learning_rate"] = torch.tensor(learning_rate)
        metrics["clip_range"] = torch.tensor(clip_coef)
        if isinstance(log_std := getattr(self.policy.head, "log_std", None), Tensor):
            metrics["std"] = log_std.detach().exp().mean()
        return UpdateResult(metrics)

    def _train_epochs(self, rows: RolloutBatch, learning_rate: Tensor, clip_coef: Tensor) -> list[Metrics]:
        history: list[Metrics] = []
        for _ in range(self.config.update_epochs):
            for part in rows.minibatches(self.config.batch_size, self.minibatch_rng):
                assert isinstance(part.obs, Tensor)
                losses = self._train_minibatch(
                    part.obs,
                    part.actions,
                    part.logprobs,
                    part.values,
                    part.advantages,
                    part.returns,
                    part.valid,
                    learning_rate,
                    clip_coef,
                )
                history.append(losses)
                if "grad_norm" not in losses:  # withheld by target_kl
                    return history[:-1] or [losses | {"grad_norm": torch.zeros(())}]
        return history

    def _train_minibatch(
        self,
        features: Tensor,
        actions: Tensor,
        old_logprobs: Tensor,
        old_values: Tensor,
        advantages: Tensor,
        returns: Tensor,
        valid: Tensor | None,
        learning_rate: Tensor,
        clip_coef: Tensor,
    ) -> Metrics:
        """Loss, backward, clipping, optimizer: tensors in, tensors out; the unit of compilation."""
        logprobs, entropy, new_values = self.policy.evaluate(features, actions)
        losses = ppo_loss(
            {
                "logprobs": logprobs,
                "old_logprobs": old_logprobs,
                "advantages": normalized(advantages, valid)
                if self.config.normalize_advantage
                else advantages,
                "returns": returns,
                "values": old_values,
                "new_values": new_values,
                "entropy": entropy,
                "valid": valid,
            },
            clip_coef=clip_coef,
            ent_coef=self.config.ent_coef,
            vf_coef=self.config.vf_coef,
            clip_vloss=self.config.clip_vloss,
        )
        metrics = {name: value.detach() for name, value in losses.items()}
        # the only synchronisation of an update, and only with target_kl: the step must be withheld before it happens
        if self.config.target_kl is not None and bool(losses["approx_kl"] > self.config.target_kl):
            return metrics
        metrics["grad_norm"] = self.optimizer.minimize(losses["loss"], learning_rate)
        return metrics

    def state_dict(self) -> dict[str, State]:
        """Return what acting needs (`model`), the optimizer's moments and the random states."""
        return {
            "model": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "learner": {
                "explorer": self.explorer.state_dict(),
                "minibatch_rng": generator_state(self.minibatch_rng),
            },
        }

    def load_state_dict(self, state: dict[str, State]) -> None:
        """Restore everything in place."""
        self.policy.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.explorer.load_state_dict(state["learner"]["explorer"])
        set_generator_state(self.minibatch_rng, state["learner"]["minibatch_rng"])


class PPO(Algorithm):
    """Proximal policy optimization: `PPO(config).learn()`."""

    name = "ppo"
    config_class = PPOConfig

    @staticmethod
    def build(config: "TrainConfig", spec: EnvSpec, device: torch.device) -> Parts:
        """Return the learner and its experience source for environments of `spec`."""
        settings = config.algorithm
        assert isinstance(settings, PPOConfig)
        policy, source = build_actor_critic(config, spec, device)
        learner = PPOLearner(
            settings,
            policy,
            action_rng=numpy_generator(config.seed, ACTIONS),
            minibatch_rng=numpy_generator(config.seed, MINIBATCHES),
        )
        return Parts(learner, source)
