"""Twin delayed deep deterministic policy gradients, arXiv:1802.09477: config, learner and public face."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Parts
from rl_training.algorithms.off_policy import ReplayConfig, build_replay, reward_normalizer, scalar
from rl_training.algorithms.optim import FlatAdam
from rl_training.algorithms.targets import TargetNetwork
from rl_training.core.schedules import scheduled
from rl_training.core.seeding import (
    ACTIONS,
    UPDATE_NOISE,
    generator_state,
    numpy_generator,
    set_generator_state,
    torch_generator,
)
from rl_training.core.spaces import float_dtype
from rl_training.core.types import EnvSpec, Metrics, Progress, State, UpdateResult
from rl_training.data.replay_buffer import Transitions
from rl_training.models.ensemble import EnsembleMLP
from rl_training.policies.continuous import DeterministicPolicy
from rl_training.policies.explorers import ContinuousExplorer
from rl_training.policies.noise import ActionNoiseName, make_noise

if TYPE_CHECKING:
    from rl_training.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class TD3Config(ReplayConfig):
    """Settings of TD3. DDPG (arXiv:1509.02971) is num_critics 1, policy_delay 1 and target_policy_noise 0."""

    learning_rate: float = 1e-3
    """Step size of Adam at the start."""
    hidden_sizes: tuple[int, ...] = (400, 300)
    """Widths of the hidden layers."""
    tau: float = 0.005
    """Part by which the target networks move to the online ones with every update of the actor."""
    num_critics: int = 2
    """Critics, batched as one network; the target is the smallest of their values, the actor follows the first."""
    policy_delay: int = 2
    """Updates of the critics per update of actor and targets."""
    target_policy_noise: float = 0.2
    """Deviation of the noise on the target's actions, where their range is [-1, 1]; 0 is none."""
    target_noise_clip: float = 0.5
    """Largest size of that noise."""
    action_noise: ActionNoiseName = "gaussian"
    """Exploration: independent in every step, or correlated in time."""
    action_noise_sigma: float = 0.1
    """Deviation of the exploration noise, where the range of an action is [-1, 1]."""

    def problems(self, num_envs: int) -> list[str]:
        """Return what is impossible, each naming key, value and remedy."""
        return [
            *super().problems(num_envs),
            *self.not_positive("tau", "policy_delay"),
            *self.outside("tau", 0, 1),
            *self.outside("num_critics", 1, 1000),
            *self.negative("target_policy_noise", "target_noise_clip", "action_noise_sigma"),
        ]


class TD3Learner:
    """The update rule: critics every time; actor and targets every `policy_delay` times."""

    def __init__(
        self,
        config: TD3Config,
        policy: DeterministicPolicy,
        *,
        num_envs: int,
        generator: torch.Generator,
        action_rng: np.random.Generator,
        noise_rng: np.random.Generator,
    ) -> None:
        self.config = config
        self.policy = policy
        self.device = policy.device  # asking a module for it takes as long as a layer
        sizes = (policy.encoder.size + policy.action_size, *config.hidden_sizes, 1)
        self.critics = EnsembleMLP(config.num_critics, sizes, config.activation, generator=generator).to(
            policy.device
        )
        self.actor_optimizer = FlatAdam(policy.network.parameters(), eps=1e-8)
        self.critic_optimizer = FlatAdam(self.critics.parameters(), eps=1e-8)
        self.target_actor = TargetNetwork(policy.network, self.actor_optimizer.flat)
        self.target_critics = TargetNetwork(self.critics, self.critic_optimizer.flat)
        self.explorer = ContinuousExplorer(
            policy,
            action_rng,
            learning_starts=config.learning_starts,
            noise=make_noise(config.action_noise, config.action_noise_sigma, num_envs, policy.action_size),
        )
        self.noise_rng = noise_rng

    def update(self, batch: Transitions, progress: Progress) -> UpdateResult:
        """Train on one batch [B]; whether the actor's turn has come depends on the number of updates in the run."""
        config, device = self.config, self.device
        learning_rate = scalar(
            scheduled(config.learning_rate, config.learning_rate_schedule, progress.fraction)
        )
        batch = batch.to(device) if device.type != "cpu" else batch
        with torch.no_grad():
            features, next_features = self.policy.features(batch.obs), self.policy.features(batch.next_obs)
        shape = (len(batch), self.policy.action_size)
        noise = torch.from_numpy(self.noise_rng.standard_normal(shape, dtype=float_dtype())).to(device)
        metrics = self._train_critics(
            features,
            batch.actions,
            batch.rewards,
            batch.discounts,
            next_features,
            noise,
            learning_rate,
        )
        if (progress.updates + 1) % config.policy_delay == 0:
            metrics |= self._train_actor(features, learning_rate)
        metrics["learning_rate"] = learning_rate
        return UpdateResult(metrics)

    def _train_critics(
        self,
        features: Tensor,
        actions: Tensor,
        rewards: Tensor,
        discounts: Tensor,
        next_features: Tensor,
        noise: Tensor,
        learning_rate: Tensor,
    ) -> Metrics:
        """Loss, backward, optimizer: tensors in, tensors out; a unit of compilation."""
        clip = self.config.target_noise_clip
        with torch.no_grad():
            smoothing = (noise * self.config.target_policy_noise).clamp(-clip, clip)
            next_actions = (torch.tanh(self.target_actor.network(next_features)) + smoothing).clamp(-1, 1)
            next_values = self.target_critics.network(torch.cat([next_features, next_actions], dim=-1))
            targets = rewards + discounts * next_values.amin(0)
        values = self.critics(torch.cat([features, actions], dim=-1))
        loss = (values - targets).square().mean(1).sum()
        norm = self.critic_optimizer.minimize(loss, learning_rate)
        return {
            "critic_loss": loss.detach(),
            "critic_grad_norm": norm,
            "q_value": values.detach().mean(),
        }

    def _train_actor(self, features: Tensor, learning_rate: Tensor) -> Metrics:
        """One step of the actor up the first critic, which is passed through, not differentiated; then the targets."""
        new_actions = torch.tanh(self.policy.network(features))
        loss = -self.critics(torch.cat([features, new_actions], dim=-1), members=1).mean()
        norm = self.actor_optimizer.minimize(loss, learning_rate)
        self.target_actor.follow(self.config.tau)
        self.target_critics.follow(self.config.tau)
        return {"actor_loss": loss.detach(), "actor_grad_norm": norm}

    def state_dict(self) -> dict[str, State]:
        """Return what acting needs (`model`), critics, targets, moments, noise and random states."""
        return {
            "model": self.policy.state_dict(),
            "critics": {
                "online": dict(self.critics.state_dict()),
                "target": self.target_critics.state_dict(),
            },
            "target_actor": self.target_actor.state_dict(),
            "optimizer": {
                "actor": self.actor_optimizer.state_dict(),
                "critics": self.critic_optimizer.state_dict(),
            },
            "learner": {
                "explorer": self.explorer.state_dict(),
                "noise_rng": generator_state(self.noise_rng),
            },
        }

    def load_state_dict(self, state: dict[str, State]) -> None:
        """Restore everything in place."""
        self.policy.load_state_dict(state["model"])
        self.critics.load_state_dict(state["critics"]["online"])
        self.target_critics.load_state_dict(state["critics"]["target"])
        self.target_actor.load_state_dict(state["target_actor"])
        self.actor_optimizer.load_state_dict(state["optimizer"]["actor"])
        self.critic_optimizer.load_state_dict(state["optimizer"]["critics"])
        self.explorer.load_state_dict(state["learner"]["explorer"])
        set_generator_state(self.noise_rng, state["learner"]["noise_rng"])


class TD3(Algorithm):
    """Twin delayed DDPG: `TD3(config).learn()`."""

    name = "td3"
    config_class = TD3Config

    @staticmethod
    def build(config: "TrainConfig", spec: EnvSpec, device: torch.device) -> Parts:
        """Return the learner and its experience source for environments of `spec`."""
        settings = config.algorithm
        assert isinstance(settings, TD3Config)
        generator = torch_generator(config.seed)
        policy = DeterministicPolicy(
            spec,
            hidden_sizes=settings.hidden_sizes,
            activation=settings.activation,
            normalize_obs=config.normalize_obs,
            reward_normalizer=reward_normalizer(config, settings.gamma),
            generator=generator,
        ).to(device)
        learner = TD3Learner(
            settings,
            policy,
            num_envs=spec.num_envs,
            generator=generator,
            action_rng=numpy_generator(config.seed, ACTIONS),
            noise_rng=numpy_generator(config.seed, UPDATE_NOISE),
        )
        return Parts(learner, build_replay(config, settings, spec, policy))
