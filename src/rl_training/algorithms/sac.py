"""Soft actor-critic, arXiv:1812.05905, with an ensemble of critics: config, learner and public face."""

from dataclasses import dataclass

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.continuous import ContinuousConfig, ContinuousLearner
from rl_training.algorithms.off_policy import build_replay
from rl_training.algorithms.optim import FlatAdam
from rl_training.algorithms.parts import Actor, BuildContext
from rl_training.core.seeding import ACTIONS, UPDATE_NOISE, numpy_generator
from rl_training.core.types import Metrics, Progress, UpdateResult
from rl_training.data.replay_buffer import Transitions
from rl_training.policies.continuous import SquashedGaussianPolicy
from rl_training.policies.explorers import ContinuousExplorer


@dataclass(frozen=True, kw_only=True)
class SACConfig(ContinuousConfig):
    """Settings of SAC.

    REDQ's ensemble (arXiv:2101.05982) is num_critics 10, critic_subset 2 and gradient_steps 20; here the actor moves
    with every update, there once per step.
    """

    ent_coef: float | None = None
    """Weight of the entropy; none learns it, towards target_entropy."""
    ent_coef_init: float = 1.0
    """Where the learned weight begins."""
    target_entropy: float | None = None
    """Entropy that the learned weight aims at, if it is learned; none is minus the number of action components."""
    critic_subset: int | None = None
    """Take that minimum over so many target critics, drawn anew for every update, and let the actor follow the mean of
    all critics; none: both take the minimum of all."""

    def problems(self, num_envs: int) -> list[str]:
        """Return what is impossible, each naming key, value and remedy."""
        found = [
            *super().problems(num_envs),
            *self.not_positive("ent_coef_init"),
            *self.outside("num_critics", 2, 1000),
        ]
        if self.ent_coef is not None:
            found += self.negative("ent_coef")
        if self.critic_subset is not None and not 1 <= self.critic_subset <= self.num_critics:
            found.append(
                f"critic_subset is {self.critic_subset}; use 1 to num_critics ({self.num_critics}), or none"
            )
        return found


class SACLearner(ContinuousLearner):
    """The update rule: critics, actor, temperature, then the target critics."""

    def __init__(
        self,
        config: SACConfig,
        actor: Actor[SquashedGaussianPolicy],
        *,
        generator: torch.Generator,
        noise_rng: np.random.Generator,
    ) -> None:
        super().__init__(config, actor, generator=generator, noise_rng=noise_rng)
        self.config, self.policy = config, actor.policy
        initial = config.ent_coef_init if config.ent_coef is None else config.ent_coef
        self.log_alpha = nn.Parameter(torch.tensor(initial, device=self.device).log())
        self.alpha_optimizer = FlatAdam([self.log_alpha], eps=1e-8)
        # one that is given is not learned, and its logarithm may be infinite
        self.log_alpha.requires_grad_(config.ent_coef is None)
        self.target_entropy = (
            -float(self.action_size) if config.target_entropy is None else config.target_entropy
        )
        self.owners = {
            **self.owners,
            "optimizer/alpha": self.alpha_optimizer,
            "learner/log_alpha": self.log_alpha,
        }

    def update(self, batch: Transitions, progress: Progress) -> UpdateResult:
        """Train on one batch [B]."""
        config = self.config
        learning_rate = self.learning_rate(progress)
        noise = self.draw_noise(2, len(batch), self.action_size)
        subset = None
        if config.critic_subset is not None:
            drawn = self.noise_rng.permutation(config.num_critics)[: config.critic_subset]
            subset = torch.from_numpy(drawn).to(self.device)
        with self.learning():
            metrics = self._train_batch(self.prepared(batch), noise, subset, learning_rate)
        metrics["learning_rate"] = learning_rate
        return UpdateResult(metrics)

    def _train_batch(
        self, rows: Transitions, noise: Tensor, subset: Tensor | None, learning_rate: Tensor
    ) -> Metrics:
        """Three losses, three steps, target averaging: tensors in, tensors out; `rows` hold the network's inputs."""
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            next_actions, next_logprobs = self.policy.sample(rows.next_obs, noise[1])
            next_values = self.target_critics.network(rows.next_obs, next_actions)
            lowest = (next_values if subset is None else next_values[subset]).amin(0)
            targets = rows.rewards + rows.discounts * (lowest - alpha * next_logprobs)
        differences = self.critics(rows.obs, rows.actions) - targets
        critic_loss = 0.5 * differences.square().mean(1).sum()
        critic_norm = self.critic_optimizer.minimize(critic_loss, learning_rate)

        # only the actor's gradients are computed here: the critics are passed through, not differentiated
        new_actions, logprobs = self.policy.sample(rows.obs, noise[0])
        values = self.critics(rows.obs, new_actions)
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
        self.target_critics.follow(self.config.tau)
        return metrics


class SAC(Algorithm):
    """Soft actor-critic: `SAC(config).learn()`."""

    name = "sac"
    config_class = SACConfig
    action_spaces = (spaces.Box,)
    bounded_actions = True

    @staticmethod
    def build_actor(settings: SACConfig, context: BuildContext) -> Actor[SquashedGaussianPolicy]:
        """Return the policy and how it explores: by its own chance, after uniformly random actions."""
        policy = SquashedGaussianPolicy(
            context.spec,
            hidden_sizes=settings.hidden_sizes,
            activation=settings.activation,
            encoding=context.encoding(settings, shared=settings.share_encoder),
            normalize_obs=context.normalize_obs,
            reward_normalizer=context.reward_normalizer(settings.gamma),
            generator=context.weights,
        ).to(context.device)
        action_rng = numpy_generator(context.seed, ACTIONS)
        return Actor(policy, ContinuousExplorer(policy, action_rng, learning_starts=settings.learning_starts))

    build_source = staticmethod(build_replay)

    @staticmethod
    def build_learner(
        settings: SACConfig, context: BuildContext, actor: Actor[SquashedGaussianPolicy]
    ) -> SACLearner:
        """Return the update rule."""
        noise_rng = numpy_generator(context.seed, UPDATE_NOISE)
        return SACLearner(settings, actor, generator=context.weights, noise_rng=noise_rng)
