"""Conservative Q-learning, arXiv:2006.04779: critics that value the recorded actions more than all others."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, Unpack

import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.components import Actor, BuildContext
from rl_training.algorithms.conservative import conservative_gap, conservative_gap_gradient
from rl_training.algorithms.discrete_cql import DiscreteCQLLearner, build_discrete_actor
from rl_training.algorithms.losses import Loss
from rl_training.algorithms.off_policy import dataset_source
from rl_training.algorithms.sac import (
    SAC_LOSSES,
    SACLearner,
    SACUpdateConfig,
    sac_actor_gradient,
    sac_actor_loss,
    sac_critic_gradient,
    sac_critic_loss,
    sac_temperature_gradient,
    sac_temperature_loss,
)
from rl_training.core.seeding import ACTIONS, UPDATE_NOISE, numpy_generator
from rl_training.core.spaces.layout import float_dtype
from rl_training.core.types import Numbers, StepMetrics
from rl_training.data.dataset_source import DatasetSource
from rl_training.data.replay_buffer import Transitions
from rl_training.models.fast.backend import Backend
from rl_training.policies.continuous import SquashedGaussianPolicy
from rl_training.policies.explorers import ContinuousExplorer

if TYPE_CHECKING:
    from rl_training.algorithms.keywords import ConfigOrEnv, CQLKeywords


@dataclass(frozen=True, kw_only=True)
class CQLConfig(SACUpdateConfig):
    """Settings of CQL. Discrete actions need only learning_rate, tau, gamma, cql_alpha, batch and network."""

    needs_dataset: ClassVar[bool] = True

    gamma: float = 0.99
    """Discount factor, in [0, 1]."""
    cql_alpha: float | None = None
    """Weight of the conservative term in the critics' loss; 0 leaves it out, and none is 5 for continuous actions, 1
    for discrete ones."""
    num_sampled_actions: int = 10
    """Actions per transition that are drawn from each of three distributions to estimate the term: uniform, and the
    policy at the observation and at the next observation."""

    def problems(self, num_envs: int) -> list[str]:
        return [
            *super().problems(num_envs),
            *self.outside("gamma", 0, 1),
            *self.outside("num_sampled_actions", 1, 10_000),
            *([] if self.cql_alpha is None else self.negative("cql_alpha")),
        ]

    def alpha(self, *, discrete: bool) -> float:
        """Return the weight of the conservative term."""
        usual = 1.0 if discrete else 5.0
        return usual if self.cql_alpha is None else self.cql_alpha

    def rows_at_once(self, num_envs: int) -> tuple[int, str]:
        return self.rows_per_step(num_envs), "use a smaller batch_size or num_sampled_actions"

    def rows_per_step(self, num_envs: int) -> int:
        return self.batch_size * (1 + 3 * self.num_sampled_actions)


def cql_critic_loss(minibatch: Mapping[str, Tensor], *, cql_alpha: float, huber: bool) -> dict[str, Tensor]:
    """Return the critics' error plus cql_alpha * mean(logsumexp(others) - value), summed over critics. Pure.

    `values` [M, B] and `targets` [B] are those of SAC, and so is the error; with `huber`, parts above 1 count linearly.
    `others` [M, B, N] are the values of N sampled actions minus their log-densities, so that the logarithm is that of
    an integral over all actions; or the values of all N discrete actions.
    """
    values, targets = minibatch["values"], minibatch["targets"]
    gap = conservative_gap(minibatch["others"], values)
    if huber:
        error = F.smooth_l1_loss(values, targets.expand_as(values), reduction="none").mean(1).sum()
    else:
        error = sac_critic_loss(minibatch)
    loss = error + cql_alpha * gap.mean(1).sum()
    return {"loss": loss, "conservative_gap": gap.mean()}


def cql_critic_gradient(
    minibatch: Mapping[str, Numbers], *, cql_alpha: float, huber: bool, backend: Backend
) -> tuple[StepMetrics, Numbers, Numbers]:
    """Return the result of `cql_critic_loss`, and its gradients with respect to `values` and `others`."""
    values = minibatch["values"]
    if huber:
        differences = values - minibatch["targets"]
        slopes = backend.clip(differences, -1.0, 1.0)
        # half the square within the threshold, and the absolute error minus one half beyond it
        error, by_values = (slopes * (differences - 0.5 * slopes)).mean(1).sum(), slopes / values.shape[1]
    else:
        parts, by_values = sac_critic_gradient(minibatch, backend=backend)
        error = parts["loss"]
    gap, by_others = conservative_gap_gradient(minibatch["others"], values, backend=backend)
    members, count = gap.shape
    weight, total = cql_alpha / count, gap.sum()
    found = {"loss": error + weight * total, "conservative_gap": total / (members * count)}
    return found, by_values - weight, by_others * weight


CQL_LOSSES = {
    **SAC_LOSSES,
    "critic_loss": Loss(cql_critic_loss, cql_critic_gradient, of="1fed278fa811"),
}


class CQLContinuousLearner(SACLearner):
    """SAC's update rule with the conservative term in the critics' loss."""

    takes_shards = False  # the sampled actions are drawn for a whole batch
    config: CQLConfig

    def _critic_pass(
        self, noise: Numbers, alpha: Numbers, subset: Numbers | None, rows: Transitions, place: slice
    ) -> StepMetrics:
        """Write the gradient of the critics; return the parts of their loss."""
        xp, count = self.backend.xp, 3 * self.config.num_sampled_actions
        next_params = self.next_actor_outputs(rows)
        actions, log_densities = self._sampled_actions(self.actor_outputs(rows), next_params)
        targets = self._targets(rows, next_params, noise, alpha, subset)
        # one pass for the recorded and all sampled actions
        values = self.critics_run.forward(
            repeated(rows.obs, 1 + count, xp), xp.concatenate([rows.actions, actions])
        ).reshape(-1, 1 + count, len(rows))
        others = (values[:, 1:] - log_densities).swapaxes(1, 2)
        parts, (by_values, by_others) = self.losses["critic_loss"].differentiate(
            {"values": values[:, 0], "targets": targets, "others": others},
            ("values", "others"),
            self.backend,
            cql_alpha=self.config.alpha(discrete=False),
            huber=False,
        )
        by_all = xp.concatenate([by_values[:, None], by_others.swapaxes(1, 2)], 1)
        self.critics_run.backward(by_all.reshape(len(by_all), -1))
        return parts

    def _sampled_actions(self, params: Numbers, next_params: Numbers) -> tuple[Numbers, Numbers]:
        """Return actions [N * B, A] of three distributions, and log(N * density) [N, B] for each.

        The parameters are the actor's outputs for the observations and for the next observations.
        """
        xp, each, rows = self.backend.xp, self.config.num_sampled_actions, len(params)
        shape = (each * rows, self.action_size)
        uniform = self.backend.from_numpy(2 * self.noise_rng.random(shape, dtype=float_dtype()) - 1)
        actions, log_densities = [uniform], [uniform[:, 0] * 0.0 - self.action_size * math.log(2)]
        for outputs in (params, next_params):
            drawn, logprobs, _ = self.policy.sampled(
                xp.concatenate([outputs] * each), self.draw_noise(*shape), self.backend
            )
            actions.append(drawn)
            log_densities.append(logprobs)
        joined = xp.concatenate(log_densities).reshape(3 * each, rows)
        return xp.concatenate(actions), joined + math.log(3 * each)


def repeated(obs: Numbers, times: int, xp: object) -> Numbers:
    """Return observations [times * B, ...]: the same batch, several times."""
    join = xp.concatenate  # type: ignore[attr-defined]  # torch or numpy
    if isinstance(obs, dict):
        return {key: join([part] * times) for key, part in obs.items()}
    return join([obs] * times)


class CQL(Algorithm):
    """Conservative Q-learning: `CQL(dataset="path").learn(total_updates=100_000)`."""

    name = "cql"
    config_class = CQLConfig
    action_spaces = (spaces.Box, spaces.Discrete)
    bounded_actions = True
    critic_loss = staticmethod(cql_critic_loss)
    critic_loss_gradient = staticmethod(cql_critic_gradient)
    actor_loss = staticmethod(sac_actor_loss)
    actor_loss_gradient = staticmethod(sac_actor_gradient)
    temperature_loss = staticmethod(sac_temperature_loss)
    temperature_loss_gradient = staticmethod(sac_temperature_gradient)

    if TYPE_CHECKING:  # the keywords of this algorithm

        def __init__(self, config: ConfigOrEnv = None, **settings: Unpack[CQLKeywords]) -> None: ...

        @classmethod
        def from_preset(cls, name: str, **settings: Unpack[CQLKeywords]) -> Self: ...  # type: ignore[override]

    @staticmethod
    def losses(settings: CQLConfig) -> dict[str, Loss]:
        return CQL_LOSSES

    @staticmethod
    def build_actor(settings: CQLConfig, context: BuildContext) -> Actor[Any]:
        """Return SAC's policy and an explorer that samples from it; for discrete actions DQN's."""
        if isinstance(context.spec.action_space, spaces.Discrete):
            return build_discrete_actor(settings, context)
        arguments = context.policy_settings(settings, shared=settings.share_encoder)
        policy = SquashedGaussianPolicy(context.spec, **arguments).to(context.device)
        return Actor(
            policy, ContinuousExplorer(policy, numpy_generator(context.seed, ACTIONS), learning_starts=0)
        )

    @staticmethod
    def build_source(settings: CQLConfig, context: BuildContext, actor: Actor[Any]) -> DatasetSource:
        """Return batches of the dataset."""
        return dataset_source(settings, context, actor, gamma=settings.gamma)

    @staticmethod
    def build_learner(
        settings: CQLConfig, context: BuildContext, actor: Actor[Any]
    ) -> CQLContinuousLearner | DiscreteCQLLearner:
        """Return the learner for the kind of actions; that for discrete ones has only a critic_loss."""
        if isinstance(context.spec.action_space, spaces.Discrete):
            return DiscreteCQLLearner(
                settings,
                actor,
                cql_alpha=settings.alpha(discrete=True),
                loss=context.loss("critic_loss", CQL_LOSSES["critic_loss"]),
                update_path=context.update_path,
            )
        return CQLContinuousLearner(
            settings,
            actor,
            generator=context.weights,
            noise_rng=numpy_generator(context.seed, UPDATE_NOISE),
            losses={name: context.loss(name, built_in) for name, built_in in CQL_LOSSES.items()},
            update_path=context.update_path,
        )
