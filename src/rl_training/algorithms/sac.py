"""Soft actor-critic, arXiv:1812.05905, with an ensemble of critics: config, learner and public face."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

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
from rl_training.policies.continuous import SquashedGaussianPolicy
from rl_training.policies.explorers import ContinuousExplorer

if TYPE_CHECKING:
    from rl_training.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class SACConfig(ReplayConfig):
    """Settings of SAC.

    REDQ's ensemble (arXiv:2101.05982) is num_critics 10, critic_subset 2 and gradient_steps 20; here the actor moves
    with every update, there once per step.
    """

    tau: float = 0.005
    """Part by which the target critics move to the online ones with every update."""
    ent_coef: float | None = None
    """Weight of the entropy; none learns it, towards target_entropy."""
    ent_coef_init: float = 1.0
    """Where the learned weight begins."""
    target_entropy: float | None = None
    """Entropy that the learned weight aims at, if it is learned; none is minus the number of action components."""
    num_critics: int = 2
    """Critics, batched as one network; the target is the smallest of their values."""
    critic_subset: int | None = None
    """Take that minimum over so many target critics, drawn anew for every update, and let the actor follow the mean of
    all critics; none: both take the minimum of all."""

    def problems(self, num_envs: int) -> list[str]:
        """Return what is impossible, each naming key, value and remedy."""
        found = [
            *super().problems(num_envs),
            *self.not_positive("tau", "ent_coef_init"),
            *self.outside("tau", 0, 1),
            *self.outside("num_critics", 2, 1000),
        ]
        if self.ent_coef is not None:
            found += self.negative("ent_coef")
        if self.critic_subset is not None and not 1 <= self.critic_subset <= self.num_critics:
            found.append(
                f"critic_subset is {self.critic_subset}; use 1 to num_critics ({self.num_critics}), or none"
            )
        return found


class SACLearner:
    """The update rule: critics, actor, temperature, then the target critics."""

    def __init__(
        self,
        config: SACConfig,
        policy: SquashedGaussianPolicy,
        *,
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
        initial = config.ent_coef_init if config.ent_coef is None else config.ent_coef
        self.log_alpha = nn.Parameter(torch.tensor(initial, device=policy.device).log())
        self.target_entropy = (
            -float(policy.action_size) if config.target_entropy is None else config.target_entropy
        )
        self.actor_optimizer = FlatAdam(policy.network.parameters(), eps=1e-8)
        self.critic_optimizer = FlatAdam(self.critics.parameters(), eps=1e-8)
        self.alpha_optimizer = FlatAdam([self.log_alpha], eps=1e-8)
        self.target = TargetNetwork(self.critics, self.critic_optimizer.flat)
        self.explorer = ContinuousExplorer(policy, action_rng, learning_starts=config.learning_starts)
        self.noise_rng = noise_rng

    def update(self, batch: Transitions, progress: Progress) -> UpdateResult:
        """Train on one batch [B]."""
        config, device = self.config, self.device
        learning_rate = scalar(
            scheduled(config.learning_rate, config.learning_rate_schedule, progress.fraction)
        )
        batch = batch.to(device) if device.type != "cpu" else batch
        with torch.no_grad():
            features, next_features = self.policy.features(batch.obs), self.policy.features(batch.next_obs)
        shape = (2, len(batch), self.policy.action_size)
        noise = torch.from_numpy(self.noise_rng.standard_normal(shape, dtype=float_dtype())).to(device)
        subset = None
        if config.critic_subset is not None:
            drawn = self.noise_rng.permutation(config.num_critics)[: config.critic_subset]
            subset = torch.from_numpy(drawn).to(device)
        metrics = self._train_batch(
            features,
            batch.actions,
            batch.rewards,
            batch.discounts,
            next_features,
            noise[0],
            noise[1],
            subset,
            learning_rate,
        )
        metrics["learning_rate"] = learning_rate
        return UpdateResult(metrics)

    def _train_batch(
        self,
        features: Tensor,
        actions: Tensor,
        rewards: Tensor,
        discounts: Tensor,
        next_features: Tensor,
        noise: Tensor,
        next_noise: Tensor,
        subset: Tensor | None,
        learning_rate: Tensor,
    ) -> Metrics:
        """Three losses, three steps, target averaging: tensors in, tensors out; the unit of compilation."""
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            next_actions, next_logprobs = self.policy.sample(next_features, next_noise)
            next_values = self.target.network(torch.cat([next_features, next_actions], dim=-1))
            lowest = (next_values if subset is None else next_values[subset]).amin(0)
            targets = rewards + discounts * (lowest - alpha * next_logprobs)
        differences = self.critics(torch.cat([features, actions], dim=-1)) - targets
        critic_loss = 0.5 * differences.square().mean(1).sum()
        critic_norm = self.critic_optimizer.minimize(critic_loss, learning_rate)

        # only the actor's gradients are computed here: the critics are passed through, not differentiated
        new_actions, logprobs = self.policy.sample(features, noise)
        values = self.critics(torch.cat([features, new_actions], dim=-1))
        value = values.amin(0) if subset is None else values.mean(0)
        actor_loss = (alpha * logprobs - value).mean()
        actor_norm = self.actor_optimizer.minimize(actor_loss, learning_rate)

        metrics = {
            "actor_loss": actor_loss.detach(),
            "critic_loss": critic_loss.detach(),
            "actor_grad_norm": actor_norm,
            "critic_grad_norm": critic_norm,
            "ent_coef": alpha,
        }
        if self.config.ent_coef is None:
            alpha_loss = -(self.log_alpha * (logprobs.detach() + self.target_entropy)).mean()
            self.alpha_optimizer.minimize(alpha_loss, learning_rate)
            metrics["ent_coef_loss"] = alpha_loss.detach()
        self.target.follow(self.config.tau)
        return metrics

    def state_dict(self) -> dict[str, State]:
        """Return what acting needs (`model`), critics and their targets, temperature, moments and random states."""
        return {
            "model": self.policy.state_dict(),
            "critics": {"online": dict(self.critics.state_dict()), "target": self.target.state_dict()},
            "optimizer": {
                "actor": self.actor_optimizer.state_dict(),
                "critics": self.critic_optimizer.state_dict(),
                "alpha": self.alpha_optimizer.state_dict(),
            },
            "learner": {
                "explorer": self.explorer.state_dict(),
                "noise_rng": generator_state(self.noise_rng),
                "log_alpha": self.log_alpha.detach(),
            },
        }

    def load_state_dict(self, state: dict[str, State]) -> None:
        """Restore everything in place."""
        self.policy.load_state_dict(state["model"])
        self.critics.load_state_dict(state["critics"]["online"])
        self.target.load_state_dict(state["critics"]["target"])
        self.actor_optimizer.load_state_dict(state["optimizer"]["actor"])
        self.critic_optimizer.load_state_dict(state["optimizer"]["critics"])
        self.alpha_optimizer.load_state_dict(state["optimizer"]["alpha"])
        self.explorer.load_state_dict(state["learner"]["explorer"])
        set_generator_state(self.noise_rng, state["learner"]["noise_rng"])
        with torch.no_grad():
            self.log_alpha.copy_(state["learner"]["log_alpha"])


class SAC(Algorithm):
    """Soft actor-critic: `SAC(config).learn()`."""

    name = "sac"
    config_class = SACConfig

    @staticmethod
    def build(config: "TrainConfig", spec: EnvSpec, device: torch.device) -> Parts:
        """Return the learner and its experience source for environments of `spec`."""
        settings = config.algorithm
        assert isinstance(settings, SACConfig)
        generator = torch_generator(config.seed)
        policy = SquashedGaussianPolicy(
            spec,
            hidden_sizes=settings.hidden_sizes,
            activation=settings.activation,
            normalize_obs=config.normalize_obs,
            reward_normalizer=reward_normalizer(config, settings.gamma),
            generator=generator,
        ).to(device)
        learner = SACLearner(
            settings,
            policy,
            generator=generator,
            action_rng=numpy_generator(config.seed, ACTIONS),
            noise_rng=numpy_generator(config.seed, UPDATE_NOISE),
        )
        return Parts(learner, build_replay(config, settings, spec, policy))
