"""The base of the on-policy algorithms: settings, parts and the update."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from rl_training.algorithms.actor_critic_objective import ActorCriticObjective, AnyObjective
from rl_training.algorithms.components import Actor, BuildContext, encoder_problems, sde_problems
from rl_training.algorithms.learner import (
    BaseLearner,
    named_path,
    refuse_autograd,
    refuse_single_rows,
    scalar,
)
from rl_training.algorithms.losses import Loss
from rl_training.algorithms.optimizers import FlatOptimizer
from rl_training.algorithms.shards import Shards
from rl_training.config import AlgorithmConfig, UpdatePath
from rl_training.config.schedules import Schedule, ScheduledSetting
from rl_training.core.errors import UserError
from rl_training.core.seeding import ACTIONS, numpy_generator
from rl_training.core.spaces.stored import stored_space
from rl_training.core.types import Metrics, UpdateResult
from rl_training.data.rollout_buffer import RolloutBatch, RolloutBuffer
from rl_training.data.sources import RolloutSource
from rl_training.models.mlp import ActivationName
from rl_training.models.state_dependent import StateDependentHead
from rl_training.policies.actor_critic import ActorCriticPolicy
from rl_training.policies.explorers import ActorCriticExplorer
from rl_training.policies.noise import ExplorationMatrices


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(AlgorithmConfig):
    """Settings of every algorithm that learns a policy and a value from rollouts."""

    plays_games: ClassVar[bool] = True

    num_steps: int = 256
    """Steps per environment in one rollout."""
    learning_rate: float = 3e-4
    """Learning rate at the start."""
    learning_rate_schedule: Schedule = "constant"
    """Schedule of the learning rate over the run: constant; linear or cosine, to 0; linear:0.1, to a tenth; a list of
    [fraction, factor] pairs; or module:function, which maps the fraction of the run to a factor."""
    gamma: float = 0.99
    """Discount factor, in [0, 1]."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation, in [0, 1]: 0 uses one step, 1 the whole episode."""
    normalize_advantage: bool = True
    """Normalize the advantages of each minibatch to zero mean and unit standard deviation."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the value loss, the mean squared error (without a factor of one half)."""
    max_grad_norm: float = 0.5
    """Maximum norm of the gradient; larger gradients are scaled down."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    critic_hidden_sizes: tuple[int, ...] | None = None
    """Widths of the critic's hidden layers; by default hidden_sizes."""
    activation: ActivationName = "tanh"
    """Activation function of the hidden layers."""
    shared_network: bool = False
    """Share the hidden layers between actor and critic."""
    share_encoder: bool = True
    """Share the encoder between actor and critic, if there is one."""
    orthogonal_init: bool = True
    """Initialize weights orthogonally; otherwise uniformly."""
    log_std_init: float = 0.0
    """Initial log standard deviation of continuous actions, scaled to [-1, 1] if they are bounded; with use_sde, of
    every entry of the exploration matrix."""
    use_sde: bool = False
    """Explore continuous actions by noise that depends on the state (gSDE) and is kept for several steps."""
    sde_sample_freq: int = -1
    """Steps after which this noise is sampled again; -1 samples it once per rollout."""

    def critic_problems(self, algo: str) -> list[str]:
        return self.sharing_problems()

    def sharing_problems(self) -> list[str]:
        """Return which shared layers prevent that the critic reads more than the actor."""
        if not self.shared_network:
            return []
        return ["shared_network is true, but the critic reads more than the actor; set it to false"]

    def smallest_batch(self, rows: int) -> int:
        """Return the number of rows in the smallest batch of a rollout of `rows`."""
        return rows

    def larger_batches(self, rows: int) -> str:
        """Return a remedy for batches that are too small."""
        return "use more num_steps or num_envs"

    def rows_at_once(self, num_envs: int) -> tuple[int, str]:
        return self.num_steps * num_envs, "use fewer num_steps or num_envs"

    def rows_per_step(self, num_envs: int) -> int:
        return self.num_steps * num_envs

    def problems(self, num_envs: int) -> list[str]:
        found = [
            *self.not_positive("num_steps", "learning_rate", "max_grad_norm"),
            *self.outside("gamma", 0, 1),
            *self.outside("gae_lambda", 0, 1),
            *self.negative("ent_coef", "vf_coef"),
            *self.bad_sizes("hidden_sizes"),
            *encoder_problems(self),
            *sde_problems(use_sde=self.use_sde, sde_sample_freq=self.sde_sample_freq),
        ]
        if self.critic_hidden_sizes is not None:
            found += self.bad_sizes("critic_hidden_sizes")
            if self.shared_network:
                found.append(
                    "critic_hidden_sizes are given, but shared_network is true; leave one of them out"
                )
        if self.shared_network and not self.share_encoder:
            found.append(
                "share_encoder is false, but shared_network is true; a shared network has one encoder"
            )
        if self.num_steps * num_envs > 2**28:
            found.append(f"num_steps * num_envs is {self.num_steps} * {num_envs}; use at most {2**28} rows")
        return found

    def probable_mistakes(self, total_timesteps: int, num_envs: int) -> list[str]:
        """Report a run that is shorter than its first rollout."""
        rows = self.num_steps * num_envs
        if rows <= total_timesteps:
            return []
        return [
            f"one rollout is num_steps * num_envs = {self.num_steps:,} * {num_envs:,} = {rows:,} steps, and "
            f"total_timesteps {total_timesteps:,}: the run takes a whole rollout"
        ]


class OnPolicyLearner(BaseLearner):
    """The parts of an update on one rollout that all on-policy algorithms share."""

    takes_shards = True

    def __init__(
        self,
        config: ActorCriticConfig,
        actor: Actor[ActorCriticPolicy],
        optimizer: FlatOptimizer,
        *,
        loss: Loss,
        update_path: UpdatePath = "auto",
    ) -> None:
        self.policy, self.optimizer = actor.policy, optimizer
        self.objective: AnyObjective = ActorCriticObjective(
            actor.policy,
            optimizer,
            loss,
            normalize=config.normalize_advantage,
            autograd=update_path == "autograd",
        )
        self.update_path = named_path(self.objective.path, {"loss": loss})
        refuse_autograd(update_path, self.objective.path, {"loss": loss}, actor.policy)
        rows = config.num_steps * actor.policy.spec.num_envs
        if actor.policy.spec.turns:  # any number of rows may have waited
            refuse_single_rows(
                actor.policy, 1, "use another encoder for games whose agents take turns or die"
            )
        else:
            refuse_single_rows(actor.policy, config.smallest_batch(rows), config.larger_batches(rows))
        self._rate = ScheduledSetting("learning_rate", config.learning_rate, config.learning_rate_schedule)
        # the layers that models.fast supports have no training mode
        plain = actor.policy.encoding.encoder is None or self.objective.path == "explicit"
        self.networks_with_modes = () if plain else (actor.policy.network,)
        self.owners = {"model": actor.policy, "optimizer": optimizer}

    def use_shards(self, shards: Shards) -> None:
        super().use_shards(shards)
        self.objective = self.objective.in_shards(self.optimizer, shards)

    def prepared(self, batch: RolloutBatch) -> RolloutBatch:
        """Return the rollout on the network's device, with the network's inputs in place of observations."""
        device = self.policy.device
        rows = batch if device.type == "cpu" else batch.to(device)
        prepared: RolloutBatch = self.objective.backend.rows(replace(rows, obs=self.policy.prepare(rows.obs)))
        return prepared

    def finished(self, batch: RolloutBatch, metrics: Metrics) -> UpdateResult:
        """Update the policy's statistics with the rollout and complete the metrics.

        This is the last step, so that acting and learning on one rollout use the same statistics.
        """
        self.policy.observe(batch.obs, batch.valid)
        metrics["explained_variance"] = explained_variance(batch)
        metrics["explicit"] = scalar(float(self.objective.by_hand))
        if isinstance(log_std := getattr(self.policy.head, "log_std", None), Tensor):
            metrics["std"] = log_std.detach().exp().mean()
        return UpdateResult(metrics)


def build_actor_critic(settings: ActorCriticConfig, context: BuildContext) -> Actor[ActorCriticPolicy]:
    """Return a policy with values, and an explorer that samples from it."""
    policy = ActorCriticPolicy(context.spec, **policy_settings(settings, context)).to(context.device)
    rng = numpy_generator(context.seed, ACTIONS)
    return Actor(policy, ActorCriticExplorer(policy, rng, matrices=exploration_matrices(settings, policy)))


def exploration_matrices(
    settings: ActorCriticConfig, policy: ActorCriticPolicy
) -> ExplorationMatrices | None:
    """Return the noise matrices of state-dependent exploration, if the settings use it."""
    if not isinstance(policy.head, StateDependentHead):
        return None
    return ExplorationMatrices(policy.head, policy.spec.num_envs, settings.sde_sample_freq)


def policy_settings(settings: ActorCriticConfig, context: BuildContext) -> dict[str, Any]:
    """Return the arguments of an actor-critic policy for these settings."""
    if context.spec.critic_space is not None and (problems := settings.sharing_problems()):
        raise UserError("; ".join(problems))
    names = ("critic_hidden_sizes", "shared_network", "orthogonal_init", "log_std_init", "use_sde")
    common = context.policy_settings(settings, shared=settings.share_encoder)
    entries = {"entries_encoding": context.entries_encoding(settings)}
    return {name: getattr(settings, name) for name in names} | common | entries


def build_rollouts(
    settings: ActorCriticConfig,
    context: BuildContext,
    actor: Actor[ActorCriticPolicy],
    *,
    make_buffer: Callable[..., RolloutBuffer] = RolloutBuffer.for_spaces,
    by_vtrace: bool = False,
) -> RolloutSource:
    """Return the rollouts that the policy learns from; with `by_vtrace`, those of an older policy are corrected."""
    spec = context.spec
    buffer = make_buffer(
        stored_space(spec),
        spec.action_space,
        num_steps=settings.num_steps,
        num_envs=spec.num_envs,
        extra=actor.explorer.columns,
        turns=spec.turns,
    )
    scaler = actor.policy.reward_normalizer
    return RolloutSource(
        buffer,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        reward_scaler=scaler,
        log_prob=actor.policy.log_prob if context.stale and by_vtrace else None,
    )


def explained_variance(batch: RolloutBatch) -> Tensor:
    """Return 1 - var(returns - values) / var(returns) over the valid rows; nan if the returns do not vary."""
    returns, values = batch.returns.numpy(), batch.values.numpy()
    if batch.valid is not None:
        counted = batch.valid.numpy()
        returns, values = returns[counted], values[counted]
    variance = returns.var()
    found = 1 - (returns - values).var() / variance if variance > 0 else math.nan
    return torch.tensor(found, dtype=batch.returns.dtype)
