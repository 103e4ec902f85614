"""Twin delayed deep deterministic policy gradients, arXiv:1802.09477: config, losses, learner and algorithm."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.components import Actor, BuildContext
from rl_training.algorithms.continuous_critics import ContinuousConfig, ContinuousLearner, CriticsConfig
from rl_training.algorithms.losses import Loss, named_parts
from rl_training.algorithms.off_policy import build_replay
from rl_training.algorithms.target_networks import TargetNetwork
from rl_training.config import UpdatePath
from rl_training.core.seeding import ACTIONS, UPDATE_NOISE, numpy_generator
from rl_training.core.types import Numbers, StepMetrics
from rl_training.data.replay_buffer import Transitions
from rl_training.models.autograd_network import AutogradCritics
from rl_training.models.encoded_network import Encoded
from rl_training.models.fast.backend import Backend
from rl_training.models.fast.networks import explicit_critics, explicit_mlp
from rl_training.policies.continuous import DeterministicPolicy
from rl_training.policies.explorers import ContinuousExplorer
from rl_training.policies.noise import ActionNoiseName, make_noise

if TYPE_CHECKING:
    from rl_training.algorithms.keywords import ConfigOrEnv, TD3Keywords


@dataclass(frozen=True, kw_only=True)
class TD3UpdateConfig(CriticsConfig):
    """Settings of TD3's update, which algorithms for datasets share."""

    num_critics: int = 2
    """Number of critics, batched as one network; the target is their minimum, and the actor maximizes the first."""
    policy_delay: int = 2
    """Updates of the critics per update of the actor and the target networks."""
    target_policy_noise: float = 0.2
    """Standard deviation of the noise on target actions, for actions scaled to [-1, 1]; 0 for none."""
    target_noise_clip: float = 0.5
    """Maximum absolute value of this noise."""

    def problems(self, num_envs: int) -> list[str]:
        return [
            *super().problems(num_envs),
            *self.not_positive("policy_delay"),
            *self.outside("num_critics", 1, 1000),
            *self.negative("target_policy_noise", "target_noise_clip"),
        ]


@dataclass(frozen=True, kw_only=True)
class TD3Config(TD3UpdateConfig, ContinuousConfig):
    """Settings of TD3. DDPG (arXiv:1509.02971) is num_critics 1, policy_delay 1 and target_policy_noise 0."""

    learning_rate: float = 1e-3
    """Learning rate of Adam at the start."""
    hidden_sizes: tuple[int, ...] = (400, 300)
    """Widths of the hidden layers."""
    action_noise: ActionNoiseName = "gaussian"
    """Exploration noise: independent at each step, or correlated in time."""
    action_noise_sigma: float = 0.1
    """Standard deviation of the exploration noise, for actions scaled to [-1, 1]."""

    def problems(self, num_envs: int) -> list[str]:
        return [*super().problems(num_envs), *self.negative("action_noise_sigma")]


def td3_targets(rows: Transitions, next_values: Numbers, xp: Any) -> Numbers:
    """Return the targets of the critics [B]: reward + discount * smallest next value."""
    return rows.rewards + rows.discounts * xp.amin(next_values, axis=0)


def td3_critic_loss(minibatch: Mapping[str, Tensor]) -> Tensor:
    """Return mean((value - target)^2), summed over critics: `values` [M, B], `targets` [B]. Pure."""
    return (minibatch["values"] - minibatch["targets"]).square().mean(1).sum()


def td3_actor_loss(minibatch: Mapping[str, Tensor]) -> Tensor:
    """Return -mean(value): the first critic's `values` [1, B] of the actor's actions. Pure."""
    return -minibatch["values"].mean()


# Gradients run on arrays and tensors. Each replaces autograd while the loss is the one above;
# tests/unit/algorithms/test_continuous_losses.py compares both.
def td3_critic_gradient(minibatch: Mapping[str, Numbers], *, backend: Backend) -> tuple[StepMetrics, Numbers]:
    """Return the result of `td3_critic_loss`, and its gradient with respect to `values`."""
    values = minibatch["values"]
    differences, count = values - minibatch["targets"], values.shape[1]
    return {"loss": (differences * differences).sum() / count}, differences * (2.0 / count)


def td3_actor_gradient(minibatch: Mapping[str, Numbers], *, backend: Backend) -> tuple[StepMetrics, Numbers]:
    """Return the result of `td3_actor_loss`, and its gradient with respect to `values`."""
    values = minibatch["values"]
    count = values.shape[1]
    return {"loss": -values.sum() / count}, values * 0.0 - 1.0 / count


TD3_LOSSES = {
    "critic_loss": Loss(td3_critic_loss, td3_critic_gradient, of="3ab789f1b542"),
    "actor_loss": Loss(td3_actor_loss, td3_actor_gradient, of="3f8b20c14df3"),
}


class TD3Learner(ContinuousLearner):
    """The update rule: trains the critics in every update, actor and targets every `policy_delay` updates."""

    takes_shards = True

    def __init__(
        self,
        config: TD3UpdateConfig,
        actor: Actor[DeterministicPolicy],
        *,
        generator: torch.Generator,
        noise_rng: np.random.Generator,
        losses: Mapping[str, Loss] | None = None,
        update_path: UpdatePath = "auto",
    ) -> None:
        losses = losses or {name: loss.current() for name, loss in TD3_LOSSES.items()}
        super().__init__(
            config, actor, generator=generator, noise_rng=noise_rng, losses=losses, update_path=update_path
        )
        self.config, self.policy = config, actor.policy
        self.target_actor = TargetNetwork(self.actor_layers, self.actor_optimizer.flat)
        self.target_policy = self.target_actor.network
        if self.actor_layers is not actor.policy.network:
            # the actor reads a shared encoder, so its copy reads the target critics' copy of the encoder
            copied = self.target_critics.network
            assert isinstance(copied, Encoded)
            self.target_policy = Encoded(copied.encoder, self.target_actor.network)
        by_autograd = update_path == "autograd"
        known = None if by_autograd else explicit_mlp(self.target_policy, None, self.backend)
        self.target_actor_run = known or self.target_policy
        first = None if by_autograd else explicit_critics(self.critics, None, self.backend, members=1)
        self.first_critic_run = first or AutogradCritics(partial(self.critics, members=1), [], lambda _: None)
        self.owners = {**self.owners, "target_actor": self.target_actor}

    def _train_batch(
        self, rows: Transitions, updates: int, learning_rate: Tensor
    ) -> tuple[StepMetrics, Numbers | None]:
        """Train the critics; every `policy_delay` updates also train the actor and move the targets."""
        noise, limit = self.draw_noise(len(rows), self.action_size), self.config.target_noise_clip
        smoothing = self.backend.clip(noise * self.config.target_policy_noise, -limit, limit)
        metrics = self.shards.differentiate(
            self.critic_optimizer, rows, lambda part, place: self._critic_pass(part, smoothing[place])
        )
        metrics["critic_grad_norm"] = self.critic_optimizer.descend(learning_rate)
        if (updates + 1) % self.config.policy_delay == 0:
            metrics |= self._train_actor(rows, learning_rate)
        return metrics, None

    def _critic_pass(self, rows: Transitions, smoothing: Numbers) -> StepMetrics:
        """Write the gradient of the critics; return the parts of their loss."""
        xp, clip = self.backend.xp, self.backend.clip
        with torch.no_grad():
            next_actions = clip(xp.tanh(self.target_actor_run(rows.next_obs)) + smoothing, -1.0, 1.0)
            next_values = self.target_run(rows.next_obs, next_actions)
        values = self.critics_run.forward(rows.obs, rows.actions)
        parts, (by_values,) = self.losses["critic_loss"].differentiate(
            {"values": values, "targets": self._targets(rows, next_actions, next_values)},
            ("values",),
            self.backend,
        )
        q_value = values.sum() / (len(values) * len(rows))
        self.critics_run.backward(by_values)
        return {**named_parts("critic_loss", parts), "q_value": q_value}

    def _targets(self, rows: Transitions, next_actions: Numbers, next_values: Numbers) -> Numbers:
        """Return the targets of the critics [B], given the target networks' next actions and their values [M, B]."""
        return td3_targets(rows, next_values, self.backend.xp)

    def _train_actor(self, rows: Transitions, learning_rate: Tensor) -> StepMetrics:
        """Train the actor on the first critic's value, without training the critic; then move the targets."""
        parts = self.shards.differentiate(self.actor_optimizer, rows, lambda part, _: self._actor_pass(part))
        norm = self.actor_optimizer.descend(learning_rate)
        self.target_actor.follow(self.config.tau)
        self.target_critics.follow(self.config.tau)
        return {**parts, "actor_grad_norm": norm}

    def _actor_pass(self, rows: Transitions) -> StepMetrics:
        """Write the gradient of the actor; return the parts of its loss."""
        new_actions = self.backend.xp.tanh(self.actor_run.forward(rows.obs))
        values = self.first_critic_run.forward(rows.obs, new_actions)
        parts, (by_values,) = self.losses["actor_loss"].differentiate(
            {"values": values}, ("values",), self.backend
        )
        by_actions = self.first_critic_run.action_gradient(by_values)
        self.actor_run.backward(by_actions * (1.0 - new_actions * new_actions))
        return named_parts("actor_loss", parts)


class TD3(Algorithm):
    """Twin delayed DDPG: `TD3("Pendulum-v1").learn()`."""

    name = "td3"
    config_class = TD3Config
    action_spaces = (spaces.Box,)
    bounded_actions = True
    critic_loss = staticmethod(td3_critic_loss)
    critic_loss_gradient = staticmethod(td3_critic_gradient)
    actor_loss = staticmethod(td3_actor_loss)
    actor_loss_gradient = staticmethod(td3_actor_gradient)

    if TYPE_CHECKING:  # the keywords of this algorithm

        def __init__(self, config: ConfigOrEnv = None, **settings: Unpack[TD3Keywords]) -> None: ...

        @classmethod
        def from_preset(cls, name: str, **settings: Unpack[TD3Keywords]) -> Self: ...  # type: ignore[override]

    @staticmethod
    def losses(settings: TD3Config) -> dict[str, Loss]:
        return TD3_LOSSES

    @staticmethod
    def build_actor(settings: TD3Config, context: BuildContext) -> Actor[DeterministicPolicy]:
        """Return the policy and an explorer that adds noise to its actions, after uniformly random actions."""
        arguments = context.policy_settings(settings, shared=settings.share_encoder)
        policy = DeterministicPolicy(context.spec, **arguments).to(context.device)
        shape = (context.spec.num_envs, policy.action_size)
        noise = make_noise(settings.action_noise, settings.action_noise_sigma, *shape)
        rng = numpy_generator(context.seed, ACTIONS)
        return Actor(
            policy, ContinuousExplorer(policy, rng, learning_starts=settings.learning_starts, noise=noise)
        )

    build_source = staticmethod(build_replay)

    @staticmethod
    def build_learner(
        settings: TD3Config, context: BuildContext, actor: Actor[DeterministicPolicy]
    ) -> TD3Learner:
        noise_rng = numpy_generator(context.seed, UPDATE_NOISE)
        return TD3Learner(
            settings,
            actor,
            generator=context.weights,
            noise_rng=noise_rng,
            losses={name: context.loss(name, built_in) for name, built_in in TD3_LOSSES.items()},
            update_path=context.update_path,
        )
