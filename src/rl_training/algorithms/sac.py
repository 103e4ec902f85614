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
from rl_training.core.types import Measured, Numbers
from rl_training.data.replay_buffer import Transitions
from rl_training.models.pullbacks import namespace, squashed_gaussian
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

    def _train_batch(
        self, rows: Transitions, updates: int, learning_rate: Tensor
    ) -> tuple[Measured, Numbers | None]:
        """Three losses, three steps, target averaging; gradients by what the networks said are written out."""
        count, noise, subset = len(rows), self.draw_noise(2, len(rows), self.action_size), self._draw_subset()
        alpha = self._alpha()
        params, next_params = self.actor_run.forward_both(rows.obs, rows.next_obs)
        next_actions, next_logprobs, _ = squashed_gaussian(next_params, noise[1])
        with torch.no_grad():
            next_values = self.target_run(rows.next_obs, next_actions)
        xp = namespace(next_values)
        lowest = xp.amin(next_values if subset is None else next_values[subset], axis=0)
        targets = rows.rewards + rows.discounts * (lowest - alpha * next_logprobs)
        # loss = 0.5 * mean of squares, summed over critics
        differences = self.critics_run.forward(rows.obs, rows.actions) - targets
        critic_loss = (differences * differences).sum() * (0.5 / count)
        self.critics_run.backward(differences / count)
        critic_norm = self.critic_optimizer.descend(learning_rate)

        # loss = mean of alpha * logprob - value; the critics are passed through, not differentiated
        new_actions, logprobs, back = squashed_gaussian(params(), noise[0])
        value, by_values = self._value(self.critics_run.forward(rows.obs, new_actions), subset)
        actor_loss = (alpha * logprobs - value).sum() / count
        by_actions = self.critics_run.action_gradient(by_values * (-1.0 / count))
        self.actor_run.backward(back(by_actions, alpha / count))
        actor_norm = self.actor_optimizer.descend(learning_rate)

        metrics: Measured = {
            "actor_loss": actor_loss,
            "critic_loss": critic_loss,
            "actor_grad_norm": actor_norm,
            "critic_grad_norm": critic_norm,
            "ent_coef": alpha,
        }
        if self.config.ent_coef is None:
            metrics["ent_coef_loss"] = self._train_alpha(logprobs.sum() / count, learning_rate)
        self.target_critics.follow(self.config.tau)
        return metrics, None

    def _draw_subset(self) -> Numbers | None:
        """Return which target critics count in this update; None: all."""
        if self.config.critic_subset is None:
            return None
        drawn = self.noise_rng.permutation(self.config.num_critics)[: self.config.critic_subset]
        return drawn if self.on_arrays else torch.from_numpy(drawn).to(self.device)

    def _alpha(self) -> Numbers:
        """Return the weight of the entropy."""
        alpha = self.log_alpha.detach().exp()
        return alpha.item() if self.on_arrays else alpha

    @staticmethod
    def _value(values: Numbers, subset: Numbers | None) -> tuple[Numbers, Numbers]:
        """Return what the actor climbs [B], and its gradient by the critics' values [M, B]."""
        xp = namespace(values)
        if subset is not None:
            return values.sum(0) / len(values), xp.full_like(values, 1.0 / len(values))
        lowest = xp.amin(values, axis=0)
        is_lowest = xp.where(values == lowest, xp.ones_like(values), 0.0)
        return lowest, is_lowest / is_lowest.sum(0)

    def _train_alpha(self, mean_logprob: Numbers, learning_rate: Tensor) -> Numbers:
        """One step down -log(alpha) * (mean logprob + target entropy); return that loss."""
        slope = -(mean_logprob + self.target_entropy)
        loss = self.log_alpha.detach() * slope
        self.alpha_optimizer.gradient.fill_(slope)
        self.alpha_optimizer.descend(learning_rate)
        return loss.item() if self.on_arrays else loss


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
