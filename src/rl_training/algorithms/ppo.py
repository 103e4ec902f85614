"""Proximal policy optimization, arXiv:1707.06347: config, loss, learner and algorithm."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Self, Unpack

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.actor_critic_objective import AnyObjective, masked_mean, row_weights
from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.components import Actor, BuildContext
from rl_training.algorithms.learner import as_metrics, scalar
from rl_training.algorithms.losses import Loss, function_name
from rl_training.algorithms.on_policy import (
    ActorCriticConfig,
    OnPolicyLearner,
    build_actor_critic,
    build_rollouts,
)
from rl_training.algorithms.optimizers import FlatAdam
from rl_training.config import UpdatePath
from rl_training.config.schedules import Schedule, ScheduledSetting
from rl_training.core.errors import UserError
from rl_training.core.seeding import MINIBATCHES, numpy_generator
from rl_training.core.spaces.layout import ANY_ACTION
from rl_training.core.types import Numbers, Progress, StepMetrics, UpdateResult
from rl_training.data.rollout_buffer import RolloutBatch
from rl_training.models.fast.backend import Backend
from rl_training.policies.actor_critic import ActorCriticPolicy

if TYPE_CHECKING:
    from rl_training.algorithms.keywords import ConfigOrEnv, PPOKeywords


@dataclass(frozen=True, kw_only=True)
class PPOConfig(ActorCriticConfig):
    """Settings of PPO."""

    batch_size: int = 64
    """Minibatch size; at most num_steps * num_envs, times the agents of a game that share the policy."""
    update_epochs: int = 10
    """Number of epochs over each rollout."""
    clip_coef: float = 0.2
    """How far the probability ratio may move from 1 before it is clipped."""
    clip_coef_schedule: Schedule = "constant"
    """Schedule of clip_coef over the run, in the same form as learning_rate_schedule."""
    clip_vloss: bool = False
    """Also clip the change of the value to clip_coef, and use the larger of both losses."""
    target_kl: float | None = None
    """Stop the epochs before a minibatch whose approximate KL divergence exceeds this; none never stops them."""

    def smallest_batch(self, rows: int) -> int:
        """The last minibatch of an epoch may be smaller than the others."""
        return rows % self.batch_size or self.batch_size

    def rows_per_step(self, num_envs: int) -> int:
        return min(self.batch_size, super().rows_per_step(num_envs))

    def larger_batches(self, rows: int) -> str:
        return f"use a batch_size of 2 or more that divides num_steps * num_envs ({rows})"

    def problems(self, num_envs: int) -> list[str]:
        found = [
            *super().problems(num_envs),
            *self.not_positive("batch_size", "update_epochs", "clip_coef"),
        ]
        if self.target_kl is not None:
            found += self.not_positive("target_kl")
        return found + self.rollout_problems(num_envs)

    def rollout_problems(self, num_envs: int, agents: int = 1) -> list[str]:
        rows = self.num_steps * num_envs * agents
        if min(self.num_steps, num_envs) < 1 or self.batch_size <= rows:
            return []
        names, numbers = "num_steps * num_envs", f"{self.num_steps} * {num_envs}"
        if agents > 1:
            names, numbers = f"{names} * agents", f"{numbers} * {agents}"
        return [
            f"batch_size is {self.batch_size}, but a rollout has only {names} = {numbers} = {rows} rows; use "
            f"batch_size <= {rows} or longer rollouts"
        ]


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
    `new_values` and, as recorded, `values`, `entropy`; optionally `valid` (bool), which selects rows.

    loss = policy_loss + vf_coef * value_loss + ent_coef * entropy_loss, with
    policy_loss = -mean(min(ratio * A, clip(ratio, 1 - clip_coef, 1 + clip_coef) * A)),
    value_loss = mean((new_values - returns)^2), no factor of one half, and entropy_loss = -mean(entropy).
    With `clip_vloss` each row takes the larger of the clipped and the unclipped squared error.
    """
    fields = {name: tensor for name, tensor in minibatch.items() if tensor is not None}
    advantages, returns, new_values = fields["advantages"], fields["returns"], fields["new_values"]
    mean = partial(masked_mean, valid=fields.get("valid"))
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
    if ent_coef:  # otherwise the backward pass can skip the entropy
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


def ppo_gradient(
    minibatch: Mapping[str, Numbers],
    *,
    clip_coef: float,
    ent_coef: float,
    vf_coef: float,
    clip_vloss: bool = False,
    backend: Backend,
) -> tuple[StepMetrics, Numbers, Numbers | None, Numbers]:
    """Return the result of `ppo_loss`, and its gradients with respect to `logprobs`, `entropy` and `new_values`.

    It replaces autograd while the loss is `ppo_loss`; tests/unit/algorithms/test_loss_gradients.py compares both.
    """
    xp, clip = backend.xp, backend.clip
    advantages, returns, values = (minibatch[name] for name in ("advantages", "returns", "new_values"))
    share = row_weights(values, minibatch.get("valid"), backend)
    log_ratio = minibatch["logprobs"] - minibatch["old_logprobs"]
    ratio = xp.exp(log_ratio)
    gain = advantages * ratio
    clipped_gain = advantages * clip(ratio, 1 - clip_coef, 1 + clip_coef)
    # where the clipped gain is the smaller one, the ratio has no gradient
    by_logprobs = xp.where(gain <= clipped_gain, gain, 0.0) * -share
    error = values - returns
    square = error * error
    if clip_vloss:
        moved = values - minibatch["values"]
        clipped_error = minibatch["values"] + clip(moved, -clip_coef, clip_coef) - returns
        clipped_square = clipped_error * clipped_error
        free = xp.where(clipped_square > square, clipped_error * (abs(moved) <= clip_coef), error)
        error, square = free, xp.maximum(square, clipped_square)
    losses = {
        "policy_loss": -(xp.minimum(gain, clipped_gain) * share).sum(),
        "value_loss": (square * share).sum(),
        "entropy_loss": -(minibatch["entropy"] * share).sum(),
    }
    change = ratio - 1
    metrics = {
        "loss": losses["policy_loss"] + vf_coef * losses["value_loss"] + ent_coef * losses["entropy_loss"],
        **losses,
        "approx_kl": ((change - log_ratio) * share).sum(),
        "clip_fraction": ((abs(change) > clip_coef) * share).sum(),
    }
    return metrics, by_logprobs, -ent_coef * share if ent_coef else None, error * (2 * vf_coef * share)


MAX_WEIGHT = 2.0
"""Largest weight of a row that an older policy collected. The paper has no bound; a truncated weight, as in V-trace,
limits the variance."""
ROW_NUMBERS = "/row_numbers"
PPO_LOSS = Loss(ppo_loss, ppo_gradient, of="97f589eaaf5e")


def decoupled(rows: RolloutBatch, objective: AnyObjective, rows_at_once: int) -> RolloutBatch:
    """Return a rollout of an older policy for the decoupled objective, arXiv:2110.00641: w * min(r * A, clip(r) * A).

    The ratio r is relative to the policy at the beginning of the update, so that clipping keeps the new policy near it.
    The weight w = exp(its log-probability - the one that was recorded), at most `MAX_WEIGHT`, corrects for the older
    policy that collected. If both policies are the same, w is 1 and the objective is that of `ppo_loss`.
    """
    xp, numbers = objective.backend.xp, objective.backend.arange(len(rows))
    now = xp.empty_like(rows.logprobs)
    marked = replace(rows, extra=rows.extra | {ROW_NUMBERS: numbers})
    for part in marked.minibatches(rows_at_once, None):
        now[part.extra[ROW_NUMBERS]] = objective.logprobs(part)
    weights = xp.exp(objective.backend.clip(now - rows.logprobs, -math.inf, math.log(MAX_WEIGHT)))
    return replace(rows, logprobs=now, weights=weights)


class PPOLearner(OnPolicyLearner):
    """The update rule: epochs of minibatches over one rollout."""

    def __init__(
        self,
        config: PPOConfig,
        actor: Actor[ActorCriticPolicy],
        *,
        minibatch_rng: np.random.Generator,
        loss: Loss | None = None,
        update_path: UpdatePath = "auto",
        stale: bool = False,
    ) -> None:
        """With `stale`, rollouts may come from an older policy: see `decoupled`."""
        self.config, self.minibatch_rng, self.stale = config, minibatch_rng, stale
        self._clip_coef = ScheduledSetting("clip_coef", config.clip_coef, config.clip_coef_schedule)
        optimizer = FlatAdam(actor.policy.parameters(), max_grad_norm=config.max_grad_norm)
        loss = loss or PPO_LOSS.current()
        super().__init__(config, actor, optimizer, loss=loss, update_path=update_path)
        self.owners = {**self.owners, "learner/minibatch_rng": minibatch_rng}

    def update(self, batch: RolloutBatch, progress: Progress) -> UpdateResult:
        """Train on one rollout [T * N]; return metrics averaged over its minibatches."""
        learning_rate = self.learning_rate(progress)
        clip_coef = self._clip_coef.at(progress.fraction)
        history: list[StepMetrics] = []
        ready = self._ready(batch)
        with self.learning():
            for rows in self._minibatches(ready):
                losses = self._train_minibatch(rows, learning_rate, clip_coef)
                if "grad_norm" not in losses:  # prevented by target_kl
                    history = history or [losses | {"grad_norm": 0.0 * losses["loss"]}]
                    break
                history.append(losses)
        metrics = as_metrics(history)
        metrics["learning_rate"], metrics["clip_range"] = learning_rate, scalar(clip_coef)
        return self.finished(batch, metrics)

    def _ready(self, batch: RolloutBatch) -> RolloutBatch:
        """Return the prepared rollout; one of an older policy is corrected for that."""
        rows = self.prepared(batch)
        return decoupled(rows, self.objective, self.config.batch_size) if self.stale else rows

    def _minibatches(self, rows: RolloutBatch) -> Iterator[RolloutBatch]:
        for _ in range(self.config.update_epochs):
            yield from rows.minibatches(self.config.batch_size, self.minibatch_rng)

    def _train_minibatch(self, rows: RolloutBatch, learning_rate: Tensor, clip_coef: float) -> StepMetrics:
        """Loss, backward, clipping, optimizer; `rows` hold the network's inputs."""
        config = self.config
        metrics, gradients = self.objective.forward(
            rows,
            clip_coef=clip_coef,
            ent_coef=config.ent_coef,
            vf_coef=config.vf_coef,
            clip_vloss=config.clip_vloss,
        )
        if config.target_kl is not None and "approx_kl" not in metrics:
            raise UserError(
                f"loss {function_name(self.objective.loss.function)} returned no 'approx_kl', which target_kl needs; "
                "return a dict with 'loss' and 'approx_kl', or leave target_kl out"
            )
        # target_kl prevents a step before it happens, so this must synchronise with the device
        if config.target_kl is not None and bool(metrics["approx_kl"] > config.target_kl):
            return metrics
        self.objective.backward(gradients)
        metrics["grad_norm"] = self.optimizer.descend(learning_rate)
        return metrics


class PPO(Algorithm):
    """Proximal policy optimization: `PPO("CartPole-v1").learn()`."""

    name = "ppo"
    config_class = PPOConfig
    action_spaces = ANY_ACTION
    takes_action_masks = True
    loss = staticmethod(ppo_loss)
    loss_gradient = staticmethod(ppo_gradient)

    if TYPE_CHECKING:  # the keywords of this algorithm

        def __init__(self, config: ConfigOrEnv = None, **settings: Unpack[PPOKeywords]) -> None: ...

        @classmethod
        def from_preset(cls, name: str, **settings: Unpack[PPOKeywords]) -> Self: ...  # type: ignore[override]

    @staticmethod
    def losses(settings: PPOConfig) -> dict[str, Loss]:
        return {"loss": PPO_LOSS}

    build_actor = staticmethod(build_actor_critic)
    build_source = staticmethod(build_rollouts)

    @staticmethod
    def build_learner(
        settings: PPOConfig, context: BuildContext, actor: Actor[ActorCriticPolicy]
    ) -> PPOLearner:
        return PPOLearner(
            settings,
            actor,
            minibatch_rng=numpy_generator(context.seed, MINIBATCHES),
            loss=context.loss("loss", PPO_LOSS),
            update_path=context.update_path,
            stale=context.stale,
        )
