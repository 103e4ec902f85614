"""Soft actor-critic, arXiv:1812.05905, with an ensemble of critics: config, losses, learner and algorithm."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.components import Actor, BuildContext, sde_problems
from rl_training.algorithms.continuous_critics import ContinuousConfig, ContinuousLearner, CriticsConfig
from rl_training.algorithms.losses import Loss, named_parts
from rl_training.algorithms.off_policy import build_replay
from rl_training.algorithms.optimizers import FlatAdam
from rl_training.algorithms.shards import LOGPROBS
from rl_training.config import UpdatePath
from rl_training.core.errors import UserError
from rl_training.core.seeding import ACTIONS, UPDATE_NOISE, numpy_generator
from rl_training.core.spaces.layout import action_layout
from rl_training.core.types import Numbers, StepMetrics
from rl_training.data.replay_buffer import Transitions
from rl_training.models.fast.backend import Backend
from rl_training.policies.continuous import SquashedGaussianPolicy, StochasticPolicy
from rl_training.policies.explorers import ContinuousExplorer
from rl_training.policies.noise import AddedNoiseName, make_noise
from rl_training.policies.state_dependent import StateDependentContinuousExplorer, StateDependentPolicy

if TYPE_CHECKING:
    from rl_training.algorithms.keywords import ConfigOrEnv, SACKeywords


@dataclass(frozen=True, kw_only=True)
class SACUpdateConfig(CriticsConfig):
    """Settings of SAC's update, which algorithms for datasets share."""

    ent_coef: float | None = None
    """Weight of the entropy; none learns it, with target_entropy as the target."""
    ent_coef_init: float = 1.0
    """Initial value of the learned weight."""
    target_entropy: float | None = None
    """Target of the entropy if its weight is learned; none uses minus the number of action components."""
    critic_subset: int | None = None
    """Take the minimum over this many target critics, chosen at random for every update, and let the actor maximize
    the mean of all critics; none uses the minimum of all critics for both."""

    def problems(self, num_envs: int) -> list[str]:
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


@dataclass(frozen=True, kw_only=True)
class SACConfig(SACUpdateConfig, ContinuousConfig):
    """Settings of SAC.

    REDQ's ensemble (arXiv:2101.05982) is num_critics 10, critic_subset 2 and gradient_steps 20; unlike REDQ, every
    update also trains the actor.
    """

    use_sde: bool = False
    """Explore by noise that depends on the state (gSDE) and is kept for several steps."""
    sde_sample_freq: int = -1
    """Steps after which this noise is sampled again; -1 samples it once per train_freq transitions."""
    use_sde_at_warmup: bool = False
    """Use this noise before learning_starts as well, instead of uniformly random actions."""
    log_std_init: float = -3.0
    """Initial log standard deviation of every entry of the exploration matrix of use_sde."""
    action_noise: AddedNoiseName = "none"
    """Noise added to sampled actions: none, independent at each step, or correlated in time."""
    action_noise_sigma: float = 0.1
    """Standard deviation of action_noise, for actions scaled to [-1, 1]."""

    def problems(self, num_envs: int) -> list[str]:
        found = [
            *super().problems(num_envs),
            *sde_problems(use_sde=self.use_sde, sde_sample_freq=self.sde_sample_freq),
            *self.negative("action_noise_sigma"),
        ]
        if not self.use_sde and self.log_std_init != SACConfig.log_std_init:
            found.append(f"log_std_init is {self.log_std_init}, but use_sde is false; leave it out")
        if self.use_sde_at_warmup and not self.use_sde:
            found.append(
                "use_sde_at_warmup is true, but use_sde is false; leave it out, or set use_sde to true"
            )
        if self.action_noise == "none" and self.action_noise_sigma != SACConfig.action_noise_sigma:
            found.append(
                f"action_noise_sigma is {self.action_noise_sigma}, but action_noise is none; leave it out"
            )
        return found


def sac_critic_loss(minibatch: Mapping[str, Tensor]) -> Tensor:
    """Return 0.5 * mean((value - target)^2), summed over critics: `values` [M, B], `targets` [B]. Pure."""
    return 0.5 * (minibatch["values"] - minibatch["targets"]).square().mean(1).sum()


def sac_actor_loss(minibatch: Mapping[str, Tensor], *, use_mean: bool) -> Tensor:
    """Return mean(alpha * logprob - value): critics' `values` [M, B] and `logprobs` [B] of new actions, `alpha`. Pure.

    The value of an action is the smallest of the critics' values, or with `use_mean` their mean, as in REDQ.
    """
    values = minibatch["values"]
    value = values.mean(0) if use_mean else values.amin(0)
    return (minibatch["alpha"] * minibatch["logprobs"] - value).mean()


def sac_temperature_loss(minibatch: Mapping[str, Tensor], *, target_entropy: float) -> Tensor:
    """Return -log_alpha * (mean logprob + target entropy): `log_alpha`, and `logprobs` [B] of new actions. Pure."""
    return -minibatch["log_alpha"] * (minibatch["logprobs"].mean() + target_entropy)


# Gradients run on arrays and tensors. Each replaces autograd while the loss is the one above;
# tests/unit/algorithms/test_continuous_losses.py compares both.
def sac_critic_gradient(minibatch: Mapping[str, Numbers], *, backend: Backend) -> tuple[StepMetrics, Numbers]:
    """Return the result of `sac_critic_loss`, and its gradient with respect to `values`."""
    values = minibatch["values"]
    differences, count = values - minibatch["targets"], values.shape[1]
    return {"loss": (differences * differences).sum() * (0.5 / count)}, differences / count


def sac_actor_gradient(
    minibatch: Mapping[str, Numbers], *, use_mean: bool, backend: Backend
) -> tuple[StepMetrics, Numbers, Numbers]:
    """Return the result of `sac_actor_loss`, and its gradients with respect to `values` and to each logprob."""
    values, logprobs, alpha = minibatch["values"], minibatch["logprobs"], minibatch["alpha"]
    xp, count = backend.xp, len(logprobs)
    if use_mean:
        value, by_values = values.sum(0) / len(values), xp.full_like(values, 1.0 / len(values))
    else:
        value = xp.amin(values, axis=0)
        is_lowest = xp.where(values == value, xp.ones_like(values), 0.0)
        by_values = is_lowest / is_lowest.sum(0)
    return {"loss": (alpha * logprobs - value).sum() / count}, by_values * (-1.0 / count), alpha / count


def sac_temperature_gradient(
    minibatch: Mapping[str, Numbers], *, target_entropy: float, backend: Backend
) -> tuple[StepMetrics, Numbers]:
    """Return the result of `sac_temperature_loss`, and its gradient with respect to `log_alpha`."""
    logprobs = minibatch["logprobs"]
    slope = -(logprobs.sum() / len(logprobs) + target_entropy)
    return {"loss": minibatch["log_alpha"] * slope}, slope


SAC_LOSSES = {
    "critic_loss": Loss(sac_critic_loss, sac_critic_gradient, of="5c04bc69c60d"),
    "actor_loss": Loss(sac_actor_loss, sac_actor_gradient, of="0a3339a32467"),
    "temperature_loss": Loss(sac_temperature_loss, sac_temperature_gradient, of="44dea6f80b7b"),
}


class SACLearner(ContinuousLearner):
    """The update rule: critics, actor, temperature, then the target critics."""

    takes_shards = True

    def __init__(
        self,
        config: SACUpdateConfig,
        actor: Actor[StochasticPolicy],
        *,
        generator: torch.Generator,
        noise_rng: np.random.Generator,
        losses: Mapping[str, Loss] | None = None,
        update_path: UpdatePath = "auto",
    ) -> None:
        losses = losses or {name: loss.current() for name, loss in SAC_LOSSES.items()}
        super().__init__(
            config, actor, generator=generator, noise_rng=noise_rng, losses=losses, update_path=update_path
        )
        self.config, self.policy = config, actor.policy
        is_replaced = losses["temperature_loss"].function is not SAC_LOSSES["temperature_loss"].function
        if config.ent_coef is not None and is_replaced:
            raise UserError(
                f"temperature_loss is replaced, but ent_coef is fixed at {config.ent_coef:g}; leave one of them out"
            )
        target = -float(self.action_size) if config.target_entropy is None else config.target_entropy
        self.temperature = Temperature(
            config.ent_coef_init if config.ent_coef is None else config.ent_coef,
            learned=config.ent_coef is None,
            target_entropy=target,
            device=self.device,
            backend=self.backend,
            loss=losses["temperature_loss"],
        )
        self.owners = {
            **self.owners,
            "optimizer/alpha": self.temperature.optimizer,
            "learner/log_alpha": self.temperature.log_alpha,
        }

    def _train_batch(
        self, rows: Transitions, updates: int, learning_rate: Tensor
    ) -> tuple[StepMetrics, Numbers | None]:
        """Take one step each on the losses of critics, actor and temperature, then move the targets."""
        alpha = self.temperature.alpha()
        noise, next_noise = self.policy.draw(self.draw_noise, len(rows))
        subset = None if self.config.critic_subset is None else self._draw_subset(self.config.critic_subset)
        critic_pass = partial(self._critic_pass, next_noise, alpha, subset)
        actor_pass = partial(self._actor_pass, noise, alpha, subset is not None)
        critic_parts = self.shards.differentiate(self.critic_optimizer, rows, critic_pass)
        critic_norm = self.critic_optimizer.descend(learning_rate)
        actor_parts = self.shards.differentiate(self.actor_optimizer, rows, actor_pass)
        logprobs = actor_parts.pop(LOGPROBS)
        actor_norm = self.actor_optimizer.descend(learning_rate)

        metrics: StepMetrics = {
            **named_parts("actor_loss", actor_parts),
            **named_parts("critic_loss", critic_parts),
            "actor_grad_norm": actor_norm,
            "critic_grad_norm": critic_norm,
            "ent_coef": alpha,
            **self.policy.metrics(),
        }
        if self.temperature.learned:
            metrics |= self.temperature.train(logprobs, learning_rate)
        self.target_critics.follow(self.config.tau)
        return metrics, None

    def _critic_pass(
        self, noise: Numbers, alpha: Numbers, subset: Numbers | None, rows: Transitions, place: slice
    ) -> StepMetrics:
        """Write the gradient of the critics for part of a batch; return the parts of their loss."""
        next_params = self.next_actor_outputs(rows)
        targets = self._targets(rows, next_params, self.policy.noise_of(noise, place), alpha, subset)
        values = self.critics_run.forward(rows.obs, rows.actions)
        parts, (by_values,) = self.losses["critic_loss"].differentiate(
            {"values": values, "targets": targets}, ("values",), self.backend
        )
        self.critics_run.backward(by_values)
        return parts

    def _targets(
        self, rows: Transitions, next_params: Numbers, noise: Numbers, alpha: Numbers, subset: Numbers | None
    ) -> Numbers:
        """Return the targets of the critics [B], given the actor's outputs for the next observations.

        They are reward + discount * (smallest next value - alpha * next logprob).
        """
        next_actions, next_logprobs, _ = self.policy.sampled(next_params, noise, self.backend)
        with torch.no_grad():
            next_values = self.target_run(rows.next_obs, next_actions)
        next_values = next_values if subset is None else next_values[subset]
        smallest = self.backend.xp.amin(next_values, axis=0)
        return rows.rewards + rows.discounts * (smallest - alpha * next_logprobs)

    def _actor_pass(
        self, noise: Numbers, alpha: Numbers, use_mean: bool, rows: Transitions, place: slice
    ) -> StepMetrics:
        """Write the gradient of the actor for part of a batch; return the parts of its loss, and new logprobs [B]."""
        params, own_noise = self.actor_outputs(rows), self.policy.noise_of(noise, place)
        new_actions, logprobs, back = self.policy.sampled(params, own_noise, self.backend)
        values = self.critics_run.forward(rows.obs, new_actions)
        parts, (by_values, by_logprobs) = self.losses["actor_loss"].differentiate(
            {"values": values, "logprobs": logprobs, "alpha": alpha},
            ("values", "logprobs"),
            self.backend,
            use_mean=use_mean,
        )
        # the gradient passes through the critics to the actions, without training the critics
        by_actions = self.critics_run.action_gradient(by_values)
        self.backward_actor(*back(by_actions, by_logprobs))
        return {**parts, LOGPROBS: logprobs}

    def _draw_subset(self, size: int) -> Numbers:
        """Return the target critics that this update uses."""
        drawn = self.noise_rng.permutation(self.config.num_critics)[:size]
        return self.backend.from_numpy(drawn)


class SAC(Algorithm):
    """Soft actor-critic: `SAC("Pendulum-v1").learn()`."""

    name = "sac"
    config_class = SACConfig
    action_spaces = (spaces.Box,)
    bounded_actions = True
    critic_loss = staticmethod(sac_critic_loss)
    critic_loss_gradient = staticmethod(sac_critic_gradient)
    actor_loss = staticmethod(sac_actor_loss)
    actor_loss_gradient = staticmethod(sac_actor_gradient)
    temperature_loss = staticmethod(sac_temperature_loss)
    temperature_loss_gradient = staticmethod(sac_temperature_gradient)

    if TYPE_CHECKING:  # the keywords of this algorithm

        def __init__(self, config: ConfigOrEnv = None, **settings: Unpack[SACKeywords]) -> None: ...

        @classmethod
        def from_preset(cls, name: str, **settings: Unpack[SACKeywords]) -> Self: ...  # type: ignore[override]

    @staticmethod
    def losses(settings: SACConfig) -> dict[str, Loss]:
        return SAC_LOSSES

    @staticmethod
    def build_actor(settings: SACConfig, context: BuildContext) -> Actor[StochasticPolicy]:
        """Return the policy and an explorer that samples from it, usually after uniformly random actions."""
        arguments = context.policy_settings(settings, shared=settings.share_encoder)
        (size,), _ = action_layout(context.spec.action_space)
        noise = make_noise(settings.action_noise, settings.action_noise_sigma, context.spec.num_envs, size)
        explores: dict[str, Any] = {
            "rng": numpy_generator(context.seed, ACTIONS),
            "learning_starts": 0 if settings.use_sde_at_warmup else settings.learning_starts,
            "noise": noise,
        }
        if settings.use_sde:
            smooth = StateDependentPolicy(context.spec, log_std_init=settings.log_std_init, **arguments)
            smooth = smooth.to(context.device)
            return Actor(
                smooth, StateDependentContinuousExplorer(smooth, every=settings.sde_sample_freq, **explores)
            )
        policy = SquashedGaussianPolicy(context.spec, **arguments).to(context.device)
        return Actor(policy, ContinuousExplorer(policy, **explores))

    build_source = staticmethod(build_replay)

    @staticmethod
    def build_learner(
        settings: SACConfig, context: BuildContext, actor: Actor[StochasticPolicy]
    ) -> SACLearner:
        noise_rng = numpy_generator(context.seed, UPDATE_NOISE)
        return SACLearner(
            settings,
            actor,
            generator=context.weights,
            noise_rng=noise_rng,
            losses={name: context.loss(name, built_in) for name, built_in in SAC_LOSSES.items()},
            update_path=context.update_path,
        )


class Temperature:
    """The weight alpha of the entropy, stored as its logarithm."""

    def __init__(
        self,
        initial: float,
        *,
        learned: bool,
        target_entropy: float,
        device: torch.device,
        backend: Backend,
        loss: Loss = SAC_LOSSES["temperature_loss"],
    ) -> None:
        self.learned, self.target_entropy, self._backend, self.loss = learned, target_entropy, backend, loss
        self.log_alpha = nn.Parameter(torch.tensor(initial, device=device).log())
        self.optimizer = FlatAdam([self.log_alpha], eps=1e-8)
        # a fixed weight is not learned, and its logarithm may be infinite
        self.log_alpha.requires_grad_(learned)

    def alpha(self) -> Numbers:
        return self._backend.scalar(self.log_alpha.detach().exp())

    def train(self, logprobs: Numbers, learning_rate: Tensor) -> StepMetrics:
        """Take one step on the loss of the temperature, given the logprobs of new actions [B]; return its parts."""
        columns = {"log_alpha": self.log_alpha.detach(), "logprobs": logprobs}
        parts, (slope,) = self.loss.differentiate(
            columns, ("log_alpha",), self._backend, target_entropy=self.target_entropy
        )
        self.optimizer.gradient.copy_(torch.as_tensor(slope))
        self.optimizer.descend(learning_rate)
        return named_parts("ent_coef_loss", parts | {"loss": self._backend.scalar(parts["loss"])})
