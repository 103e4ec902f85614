"""Deep Q-learning, Mnih et al. 2015, with the extensions of Rainbow (arXiv:1710.02298) as switches."""

from dataclasses import dataclass, fields
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Literal, Self, Unpack

import numpy as np
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.components import Actor, BuildContext
from rl_training.algorithms.learner import named_path, refuse_autograd
from rl_training.algorithms.losses import Loss, LossFunction
from rl_training.algorithms.off_policy import OffPolicyLearner, ReplayConfig, build_replay
from rl_training.algorithms.optimizers import FlatAdam
from rl_training.algorithms.q_objective import Q_LOSSES, QObjective
from rl_training.algorithms.shards import ERRORS, ShardedObjective, Shards
from rl_training.algorithms.target_networks import TargetNetwork
from rl_training.config import UpdatePath
from rl_training.core.seeding import ACTIONS, UPDATE_NOISE, numpy_generator
from rl_training.core.state import Counter
from rl_training.core.types import Numbers, Progress, StepMetrics
from rl_training.data.dataset_source import DatasetSource, MixedSource
from rl_training.data.replay_buffer import Transitions
from rl_training.data.sources import ReplaySource
from rl_training.policies.explorers import EpsilonGreedyExplorer
from rl_training.policies.q_policy import Distribution, QPolicy

if TYPE_CHECKING:
    from rl_training.algorithms.keywords import ConfigOrEnv, DQNKeywords

DEFAULT_TARGET_TIMESTEPS = 10_000
EXPLORATION = ("exploration_initial_eps", "exploration_final_eps", "exploration_fraction")
FRACTIONS = ("tau", *EXPLORATION, "priority_alpha", "priority_beta")


@dataclass(frozen=True, kw_only=True)
class DQNConfig(ReplayConfig):
    """Settings of DQN. Rainbow is double, dueling, prioritized, n_step 3, noisy and distribution c51 together."""

    plays_games: ClassVar[bool] = True

    learning_rate: float = 1e-4
    """Learning rate of Adam at the start."""
    batch_size: int = 32
    """Transitions in one update."""
    train_freq: int = 4
    """Number of transitions, summed over environments, between rounds of updates."""
    target_update_every_timesteps: int | None = None
    """Environment steps between updates of the target network; 10,000 if neither unit is given."""
    target_update_every_updates: int | None = None
    """The same, counted in updates; give only one of the two."""
    tau: float = 1.0
    """Fraction by which the target network moves towards the online network at each update; 1 copies it."""
    exploration_initial_eps: float = 1.0
    """Probability of a random action at the start, drawn separately for each environment."""
    exploration_final_eps: float = 0.05
    """Probability of a random action after exploration_fraction."""
    exploration_fraction: float = 0.1
    """Fraction of the training budget over which this probability decreases linearly."""
    max_grad_norm: float = 10.0
    """Maximum norm of the gradient; larger gradients are scaled down."""
    td_loss: Literal["huber", "mse"] = "huber"
    """Loss of the temporal-difference error, for distribution none."""
    double: bool = False
    """Choose the next action with the online network and evaluate it with the target network (arXiv:1509.06461)."""
    dueling: bool = False
    """Use separate streams for the state value and the advantages (arXiv:1511.06581)."""
    noisy: bool = False
    """Explore by learned noise in the upper layers (arXiv:1706.10295) instead of random actions; epsilon is then
    0."""
    distribution: Distribution = "none"
    """What to learn about the return of each action: its mean, a c51 histogram, or its quantiles."""
    num_atoms: int = 51
    """Number of atoms of the c51 histogram."""
    v_min: float = -10.0
    """Smallest return that the c51 histogram represents."""
    v_max: float = 10.0
    """Largest return that the c51 histogram represents."""
    num_quantiles: int = 50
    """Number of quantiles, for distribution quantile."""
    prioritized: bool = False
    """Replay transitions with large errors more often (arXiv:1511.05952)."""
    priority_alpha: float = 0.6
    """How strongly the error determines the priority; 0 samples uniformly."""
    priority_beta: float = 0.4
    """Initial exponent of the importance weights, which increases linearly to 1."""

    @property
    def target_timesteps(self) -> int | None:
        """Environment steps between target updates, None if they are counted in updates."""
        if self.target_update_every_updates is not None:
            return None
        return self.target_update_every_timesteps or DEFAULT_TARGET_TIMESTEPS

    def problems(self, num_envs: int) -> list[str]:
        found = [
            *super().problems(num_envs),
            *self.not_positive("max_grad_norm", "tau", "exploration_fraction"),
            *chain.from_iterable(self.outside(name, 0, 1) for name in FRACTIONS),
            *self.outside("num_atoms", 2, 10_000),
            *self.outside("num_quantiles", 1, 10_000),
        ]
        names = ("target_update_every_timesteps", "target_update_every_updates")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) == 2:
            found.append(f"{names[0]} and {names[1]} are both given; give one of them")
        found += self.not_positive(*given)
        if self.distribution == "c51" and self.v_min >= self.v_max:
            found.append(f"v_min is {self.v_min} and v_max {self.v_max}; use v_min < v_max")
        return found

    def probable_mistakes(self, total_timesteps: int, num_envs: int) -> list[str]:
        """Also report exploration settings that a noisy network does not use."""
        found = super().probable_mistakes(total_timesteps, num_envs)
        usual = {item.name: item.default for item in fields(self)}
        unread = [name for name in EXPLORATION if getattr(self, name) != usual[name]]
        if self.noisy and unread:
            found.append(
                f"noisy is true, so {' and '.join(unread)} has no effect: the network explores by its noise"
            )
        return found


class DQNLearner(OffPolicyLearner):
    """The update rule: one step towards `reward + discount * value of the next action`."""

    takes_shards = True

    def __init__(
        self,
        config: DQNConfig,
        actor: Actor[QPolicy],
        *,
        noise_rng: np.random.Generator,
        loss: Loss | None = None,
        update_path: UpdatePath = "auto",
    ) -> None:
        super().__init__(config, actor)
        self.config, self.policy = config, actor.policy
        network = actor.policy.network
        self.optimizer = FlatAdam(network.parameters(), max_grad_norm=config.max_grad_norm, eps=1e-8)
        self.target = TargetNetwork(network, self.optimizer.flat)
        self.objective: QObjective | ShardedObjective = QObjective(
            actor.policy,
            self.target.network,
            self.optimizer.gradient_of,
            double=config.double,
            huber=config.td_loss == "huber",
            loss=loss,
            autograd=update_path == "autograd",
        )
        self.backend, losses = self.objective.backend, {"loss": self.objective.loss}
        self.update_path = named_path(self.objective.path, losses)
        refuse_autograd(update_path, self.objective.path, losses, actor.policy)
        assert isinstance(actor.explorer, EpsilonGreedyExplorer)
        self.explorer = actor.explorer
        self.noise_rng = noise_rng
        self.target_updates = Counter()
        by_hand = self.update_path != "autograd"
        self.networks_with_modes = () if actor.policy.encoding.encoder is None or by_hand else (network,)
        self.owners = {
            **self.owners,
            "target": self.target,
            "optimizer": self.optimizer,
            "learner/noise_rng": noise_rng,
            "learner/target_updates": self.target_updates,
        }

    def use_shards(self, shards: Shards) -> None:
        super().use_shards(shards)
        self.objective = ShardedObjective(self.objective, self.optimizer, shards)

    def _begin(self, rows: Transitions, progress: Progress) -> Transitions:
        """Update the target network; if it then stays fixed, compute its outputs for all batches at once."""
        every, tau = self.config.target_timesteps, self.config.tau
        # once per crossed multiple, before the updates of the new timesteps
        crossed = progress.timesteps // every - self.target_updates.value if every else 0
        for _ in range(min(crossed, 1) if tau == 1.0 else crossed):
            self.target.follow(tau)
        self.target_updates.value += max(crossed, 0)
        self._exploration = self.explorer.epsilon(progress)
        if not every or self.shards.count > 1:  # shards compute their own
            return rows
        found: Transitions = self.objective.with_targets(rows)
        return found

    def _train_batch(
        self, rows: Transitions, updates: int, learning_rate: Tensor
    ) -> tuple[StepMetrics, Numbers | None]:
        """Loss, backward, clipping, optimizer; then the target network, if its interval is counted in updates."""
        # independent noise for each of the three passes through a noisy network
        noises = [self.policy.draw_noise(self.noise_rng, self.device) for _ in range(3)]
        parts, gradient = self.objective.forward(rows, noises)
        self.objective.backward(gradient)
        norm = self.optimizer.descend(learning_rate)
        every = self.config.target_update_every_updates
        if every and not (updates + 1) % every:
            self.target.follow(self.config.tau)
        errors = parts.pop(ERRORS, None)
        return {**parts, "grad_norm": norm, "exploration_rate": self._exploration}, errors


class DQN(Algorithm):
    """Deep Q-learning: `DQN("CartPole-v1").learn()`."""

    name = "dqn"
    config_class = DQNConfig
    action_spaces = (spaces.Discrete,)
    takes_action_masks = True
    loss: ClassVar[LossFunction | None] = None
    """None is the built-in loss for the setting `distribution`: td_loss, categorical_loss or quantile_loss."""

    if TYPE_CHECKING:  # the keywords of this algorithm

        def __init__(self, config: ConfigOrEnv = None, **settings: Unpack[DQNKeywords]) -> None: ...

        @classmethod
        def from_preset(cls, name: str, **settings: Unpack[DQNKeywords]) -> Self: ...  # type: ignore[override]

    @staticmethod
    def losses(settings: DQNConfig) -> dict[str, Loss]:
        return {"loss": Q_LOSSES[settings.distribution]}

    @staticmethod
    def build_actor(settings: DQNConfig, context: BuildContext) -> Actor[QPolicy]:
        """Return the policy and an explorer with random actions; a noisy network explores by its noise."""
        policy = QPolicy(
            context.spec,
            dueling=settings.dueling,
            noisy=settings.noisy,
            distribution=settings.distribution,
            num_atoms=settings.num_atoms,
            v_min=settings.v_min,
            v_max=settings.v_max,
            num_quantiles=settings.num_quantiles,
            **context.policy_settings(settings),
        ).to(context.device)
        explorer = EpsilonGreedyExplorer(
            policy,
            numpy_generator(context.seed, ACTIONS),
            initial=0.0 if settings.noisy else settings.exploration_initial_eps,
            final=0.0 if settings.noisy else settings.exploration_final_eps,
            fraction=settings.exploration_fraction,
            learning_starts=settings.learning_starts,
        )
        return Actor(policy, explorer)

    @staticmethod
    def build_source(
        settings: DQNConfig, context: BuildContext, actor: Actor[QPolicy]
    ) -> ReplaySource | DatasetSource | MixedSource:
        return build_replay(
            settings,
            context,
            actor,
            prioritized=settings.prioritized,
            priority_alpha=settings.priority_alpha,
            priority_beta=settings.priority_beta,
        )

    @staticmethod
    def build_learner(settings: DQNConfig, context: BuildContext, actor: Actor[QPolicy]) -> DQNLearner:
        return DQNLearner(
            settings,
            actor,
            noise_rng=numpy_generator(context.seed, UPDATE_NOISE),
            loss=context.loss("loss", Q_LOSSES[settings.distribution]),
            update_path=context.update_path,
        )
