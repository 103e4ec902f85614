"""The actor of IQL and AWAC: imitates recorded actions, those with a large advantage more than others."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rl_training.algorithms.components import Actor, BuildContext
from rl_training.algorithms.continuous_critics import ContinuousConfig
from rl_training.algorithms.losses import Loss
from rl_training.core.seeding import ACTIONS, numpy_generator
from rl_training.core.types import Numbers, StepMetrics
from rl_training.models.fast.backend import Backend
from rl_training.policies.actor import ActorPolicy
from rl_training.policies.explorers import ContinuousExplorer


def advantage_weights(
    advantages: Numbers, inverse_temperature: float, max_weight: float, backend: Backend
) -> Numbers:
    """Return exp(inverse_temperature * A) [B], at most `max_weight`; large advantages do not overflow."""
    exponents = backend.clip(advantages * inverse_temperature, -math.inf, math.log(max_weight))
    return backend.xp.exp(exponents)


def weighted_actor_loss(
    minibatch: Mapping[str, Tensor], *, inverse_temperature: float, max_weight: float
) -> dict[str, Tensor]:
    """Return -mean(weight * logprob), and the mean weight: `logprobs` [B] of recorded actions, `advantages` [B]. Pure.

    The weight is exp(inverse_temperature * A), at most `max_weight`.
    """
    exponents = (minibatch["advantages"] * inverse_temperature).clamp(max=math.log(max_weight))
    weights = exponents.exp()
    return {"loss": -(weights * minibatch["logprobs"]).mean(), "mean_weight": weights.mean()}


def weighted_actor_gradient(
    minibatch: Mapping[str, Numbers], *, inverse_temperature: float, max_weight: float, backend: Backend
) -> tuple[StepMetrics, Numbers]:
    """Return the result of `weighted_actor_loss`, and its gradient with respect to `logprobs`.

    It replaces autograd while the loss is the one above; tests/unit/algorithms/test_continuous_losses.py compares both.
    """
    logprobs = minibatch["logprobs"]
    weights = advantage_weights(minibatch["advantages"], inverse_temperature, max_weight, backend)
    by_logprobs = weights * (-1.0 / len(logprobs))
    parts = {"loss": (by_logprobs * logprobs).sum(), "mean_weight": weights.sum() / len(logprobs)}
    return parts, by_logprobs


WEIGHTED_ACTOR_LOSS = Loss(weighted_actor_loss, weighted_actor_gradient, of="3a4d30784e84")


def build_weighted_actor(settings: ContinuousConfig, context: BuildContext) -> Actor[ActorPolicy]:
    """Return the policy, and an explorer that samples from it after uniformly random actions."""
    arguments: dict[str, Any] = context.policy_settings(settings, shared=settings.share_encoder)
    policy = ActorPolicy(context.spec, **arguments, trains_encoder=not arguments["encoding"].shared)
    rng = numpy_generator(context.seed, ACTIONS)
    explorer = ContinuousExplorer(policy, rng, learning_starts=settings.learning_starts)
    return Actor(policy.to(context.device), explorer)
