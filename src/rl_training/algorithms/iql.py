"""Implicit Q-learning, arXiv:2110.06169: config, losses, learner and algorithm."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self, Unpack

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

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
from rl_training.algorithms.optimizers import FlatAdam
from rl_training.algorithms.recorded_actions import RecordedActions
from rl_training.algorithms.td3 import TD3_LOSSES, td3_critic_gradient, td3_critic_loss
from rl_training.config import UpdatePath
from rl_training.config.schedules import Schedule, ScheduledSetting
from rl_training.core.seeding import UPDATE_NOISE, numpy_generator
from rl_training.core.types import Numbers, Progress, StepMetrics
from rl_training.data.replay_buffer import Transitions
from rl_training.models.autograd_network import AutogradNetwork
from rl_training.models.encoded_network import Encoded, layers_after_encoder
from rl_training.models.fast.backend import Backend
from rl_training.models.fast.networks import explicit_mlp
from rl_training.models.mlp import mlp_with_head
from rl_training.policies.actor import ActorPolicy

if TYPE_CHECKING:
    from rl_training.algorithms.keywords import ConfigOrEnv, IQLKeywords


@dataclass(frozen=True, kw_only=True)
class IQLConfig(ContinuousConfig):
    """Settings of IQL."""

    needs_dataset: ClassVar[bool] = True

    expectile: float = 0.7
    """Which expectile of the critics' values the state value learns: 0.5 is their mean, near 1 almost their maximum."""
    inverse_temperature: float = 3.0
    """How much more the actor imitates better actions: a weight of exp(inverse_temperature * advantage)."""
    max_weight: float = 100.0
    """Maximum of this weight."""
    actor_learning_rate_schedule: Schedule = "constant"
    """Schedule of the actor's learning rate alone, in the same form as learning_rate_schedule; both are multiplied."""

    def problems(self, num_envs: int) -> list[str]:
        found = [
            *super().problems(num_envs),
            *self.not_positive("max_weight"),
            *self.negative("inverse_temperature"),
        ]
        if not 0.0 < self.expectile < 1.0:
            found.append(f"expectile is {self.expectile}; use a number between 0 and 1, such as 0.7")
        return found


def expectile_loss(minibatch: Mapping[str, Tensor], *, expectile: float) -> Tensor:
    """Return mean(weight * (target - value)^2): `values` [B], `targets` [B]. Pure.

    The weight is `expectile` where the target is above the value, otherwise 1 - expectile.
    """
    differences = minibatch["targets"] - minibatch["values"]
    weights = (expectile - (differences < 0).to(differences.dtype)).abs()
    return (weights * differences.square()).mean()


def expectile_gradient(
    minibatch: Mapping[str, Numbers], *, expectile: float, backend: Backend
) -> tuple[StepMetrics, Numbers]:
    """Return the result of `expectile_loss`, and its gradient with respect to `values`.

    It replaces autograd while the loss is the one above; tests/unit/algorithms/test_continuous_losses.py compares both.
    """
    differences = minibatch["targets"] - minibatch["values"]
    weighted = differences * abs(expectile - backend.cast(differences < 0, differences))
    count = len(differences)
    return {"loss": (weighted * differences).sum() / count}, weighted * (-2.0 / count)


IQL_LOSSES = {
    "value_loss": Loss(expectile_loss, expectile_gradient, of="db6e64b8fb78"),
    "critic_loss": TD3_LOSSES["critic_loss"],
    "actor_loss": WEIGHTED_ACTOR_LOSS,
}


class IQLLearner(ContinuousLearner):
    """The update rule: one step each on the losses of value, critics and actor, all at the same weights.

    No loss asks for the value of an action that is not recorded.
    """

    def __init__(
        self,
        config: IQLConfig,
        actor: Actor[ActorPolicy],
        *,
        generator: torch.Generator,
        noise_rng: np.random.Generator,
        losses: Mapping[str, Loss] | None = None,
        update_path: UpdatePath = "auto",
    ) -> None:
        losses = losses or {name: loss.current() for name, loss in IQL_LOSSES.items()}
        super().__init__(
            config, actor, generator=generator, noise_rng=noise_rng, losses=losses, update_path=update_path
        )
        self.config, self.policy = config, actor.policy
        self._actor_rate = ScheduledSetting("actor_learning_rate", 1.0, config.actor_learning_rate_schedule)
        by_hand = self.update_path != "autograd"
        self.recorded = RecordedActions(actor.policy, self.backend, autograd=not by_hand)
        self.value = build_value(config, actor.policy, generator)
        shared = actor.policy.encoding.encoder is not None and actor.policy.encoding.shared
        layers = layers_after_encoder(self.value) if shared else self.value
        self.value_optimizer = FlatAdam(layers.parameters(), eps=1e-8)
        gradient_of = self.value_optimizer.gradient_of
        known = explicit_mlp(self.value, gradient_of, self.backend) if by_hand else None
        self.value_run = known or AutogradNetwork(self.value, layers.parameters(), gradient_of)
        if self.networks_with_modes:
            self.networks_with_modes = (*self.networks_with_modes, self.value)
        self.owners = {**self.owners, "value": layers, "optimizer/value": self.value_optimizer}

    def _begin(self, rows: Transitions, progress: Progress) -> Transitions:
        self._actor_factor = self._actor_rate.at(progress.fraction)
        return rows

    def _train_batch(
        self, rows: Transitions, updates: int, learning_rate: Tensor
    ) -> tuple[StepMetrics, Numbers | None]:
        xp = self.backend.xp
        with torch.no_grad():
            recorded_values = xp.amin(self.target_run(rows.obs, rows.actions), axis=0)
        outputs, next_outputs = self.value_run.forward_both(rows.obs, rows.next_obs)
        values, targets = outputs()[:, 0], rows.rewards + rows.discounts * next_outputs[:, 0]
        metrics = {
            "value": values.sum() / len(rows),
            **self._actor_pass(rows, recorded_values - values),
            **self._value_pass(values, recorded_values),
            **self._critic_pass(rows, targets),
        }
        metrics["value_grad_norm"] = self.value_optimizer.descend(learning_rate)
        metrics["critic_grad_norm"] = self.critic_optimizer.descend(learning_rate)
        metrics["actor_grad_norm"] = self.actor_optimizer.descend(learning_rate * self._actor_factor)
        self.target_critics.follow(self.config.tau)
        return metrics, None

    def _value_pass(self, values: Numbers, recorded_values: Numbers) -> StepMetrics:
        """Write the gradient of the value network; return the parts of its loss."""
        columns = {"values": values, "targets": recorded_values}
        parts, (by_values,) = self.losses["value_loss"].differentiate(
            columns, ("values",), self.backend, expectile=self.config.expectile
        )
        self.value_run.backward(by_values[:, None])
        return named_parts("value_loss", parts)

    def _critic_pass(self, rows: Transitions, targets: Numbers) -> StepMetrics:
        """Write the gradient of the critics; return the parts of their loss."""
        values = self.critics_run.forward(rows.obs, rows.actions)
        parts, (by_values,) = self.losses["critic_loss"].differentiate(
            {"values": values, "targets": targets}, ("values",), self.backend
        )
        q_value = values.sum() / (len(values) * len(rows))
        self.critics_run.backward(by_values)
        return {**named_parts("critic_loss", parts), "q_value": q_value}

    def _actor_pass(self, rows: Transitions, advantages: Numbers) -> StepMetrics:
        """Write the gradient of the actor; return the parts of its loss."""
        logprobs, back = self.recorded.log_probs(self.actor_run.forward(rows.obs), rows.actions)
        parts, (by_logprobs,) = self.losses["actor_loss"].differentiate(
            {"logprobs": logprobs, "advantages": advantages},
            ("logprobs",),
            self.backend,
            inverse_temperature=self.config.inverse_temperature,
            max_weight=self.config.max_weight,
        )
        self.backward_actor(*back(by_logprobs))
        return named_parts("actor_loss", parts)


def build_value(config: ContinuousConfig, policy: ActorPolicy, generator: torch.Generator) -> nn.Module:
    """Return the network of state values: inputs [B, ...] to values [B, 1]; it does not train a shared encoder."""
    encoder, shared = None, policy.encoding.shared
    if isinstance(policy.network, Encoded):
        encoder = policy.network.encoder if shared else policy.new_encoder(generator)
    widths = config.hidden_sizes if config.critic_hidden_sizes is None else config.critic_hidden_sizes
    sizes = (policy.features_size(encoder), *widths, 1)
    network = mlp_with_head(sizes, config.activation, generator=generator)
    return (network if encoder is None else Encoded(encoder, network, detach=shared)).to(policy.device)


class IQL(Algorithm):
    """Implicit Q-learning: `IQL(dataset="path").learn(total_updates=10_000)`."""

    name = "iql"
    config_class = IQLConfig
    action_spaces = (spaces.Box,)
    bounded_actions = True
    value_loss = staticmethod(expectile_loss)
    value_loss_gradient = staticmethod(expectile_gradient)
    critic_loss = staticmethod(td3_critic_loss)
    critic_loss_gradient = staticmethod(td3_critic_gradient)
    actor_loss = staticmethod(weighted_actor_loss)
    actor_loss_gradient = staticmethod(weighted_actor_gradient)

    if TYPE_CHECKING:  # the keywords of this algorithm

        def __init__(self, config: ConfigOrEnv = None, **settings: Unpack[IQLKeywords]) -> None: ...

        @classmethod
        def from_preset(cls, name: str, **settings: Unpack[IQLKeywords]) -> Self: ...  # type: ignore[override]

    @staticmethod
    def losses(settings: IQLConfig) -> dict[str, Loss]:
        return IQL_LOSSES

    build_actor = staticmethod(build_weighted_actor)
    build_source = staticmethod(build_replay)

    @staticmethod
    def build_learner(settings: IQLConfig, context: BuildContext, actor: Actor[ActorPolicy]) -> IQLLearner:
        return IQLLearner(
            settings,
            actor,
            generator=context.weights,
            noise_rng=numpy_generator(context.seed, UPDATE_NOISE),
            losses={name: context.loss(name, built_in) for name, built_in in IQL_LOSSES.items()},
            update_path=context.update_path,
        )
