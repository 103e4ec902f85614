"""Deep Q-learning, Mnih et al. 2015, with the extensions of Rainbow (arXiv:1710.02298) as switches."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Parts
from rl_training.algorithms.off_policy import ReplayConfig, build_replay, reward_normalizer, scalar
from rl_training.algorithms.optim import FlatAdam
from rl_training.algorithms.q_losses import categorical_losses, quantile_losses, td_losses
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
from rl_training.core.types import EnvSpec, Metrics, Progress, State, UpdateResult
from rl_training.data.replay_buffer import Transitions
from rl_training.models.q_network import Noise
from rl_training.policies.explorers import EpsilonGreedyExplorer
from rl_training.policies.q_policy import Distribution, QPolicy

if TYPE_CHECKING:
    from rl_training.config import TrainConfig

DEFAULT_TARGET_TIMESTEPS = 10_000


@dataclass(frozen=True, kw_only=True)
class DQNConfig(ReplayConfig):
    """Settings of DQN. Rainbow is double, dueling, prioritized, n_step 3, noisy and distribution c51 together."""

    learning_rate: float = 1e-4
    """Step size of Adam at the start."""
    batch_size: int = 32
    """Transitions in one update."""
    train_freq: int = 4
    """Transitions, summed over environments, after which gradient_steps updates are due."""
    target_update_every_timesteps: int | None = None
    """Environment steps between copies to the target network; 10,000 if neither unit is given."""
    target_update_every_updates: int | None = None
    """The same counted in updates; give one of the two."""
    tau: float = 1.0
    """Part by which the target network moves to the online one each time; 1 copies it."""
    exploration_initial_eps: float = 1.0
    """Probability of a random action at the start, one coin per environment."""
    exploration_final_eps: float = 0.05
    """Probability of a random action after exploration_fraction."""
    exploration_fraction: float = 0.1
    """Part of the budget over which that probability falls linearly."""
    max_grad_norm: float = 10.0
    """Largest norm of the whole gradient."""
    td_loss: Literal["huber", "mse"] = "huber"
    """Loss of the temporal difference, for distribution none."""
    double: bool = False
    """Choose the next action with the online network, value it with the target one (arXiv:1509.06461)."""
    dueling: bool = False
    """Separate streams for the state's value and the advantages (arXiv:1511.06581)."""
    noisy: bool = False
    """Explore by learned noise in the upper layers (arXiv:1706.10295) instead of random actions: epsilon is then 0."""
    distribution: Distribution = "none"
    """What is learned of each return: its mean, a c51 histogram, or its quantiles."""
    num_atoms: int = 51
    """Bars of the c51 histogram."""
    v_min: float = -10.0
    """Smallest return that the c51 histogram can hold."""
    v_max: float = 10.0
    """Largest return that the c51 histogram can hold."""
    num_quantiles: int = 50
    """Quantiles of distribution quantile."""
    prioritized: bool = False
    """Replay transitions with large errors more often (arXiv:1511.05952)."""
    priority_alpha: float = 0.6
    """How much the error counts: 0 is uniform."""
    priority_beta: float = 0.4
    """How much of the bias is undone at the start, rising linearly to 1."""

    @property
    def target_timesteps(self) -> int | None:
        """Environment steps between target updates, None if they are counted in updates."""
        if self.target_update_every_updates is not None:
            return None
        return self.target_update_every_timesteps or DEFAULT_TARGET_TIMESTEPS

    def problems(self, num_envs: int) -> list[str]:
        """Return what is impossible, each naming key, value and remedy."""
        found = [
            *super().problems(num_envs),
            *self.not_positive("max_grad_norm", "tau", "exploration_fraction"),
            *self.outside("tau", 0, 1),
            *self.outside("exploration_initial_eps", 0, 1),
            *self.outside("exploration_final_eps", 0, 1),
            *self.outside("exploration_fraction", 0, 1),
            *self.outside("priority_alpha", 0, 1),
            *self.outside("priority_beta", 0, 1),
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


class DQNLearner:
    """The update rule: one step towards `reward + discount * value of the next action`."""

    def __init__(
        self,
        config: DQNConfig,
        policy: QPolicy,
        *,
        action_rng: np.random.Generator,
        noise_rng: np.random.Generator,
    ) -> None:
        self.config = config
        self.policy = policy
        self.device = policy.device  # asking a module for it takes as long as a layer
        self.optimizer = FlatAdam(policy.network.parameters(), max_grad_norm=config.max_grad_norm, eps=1e-8)
        self.target = TargetNetwork(policy.network, self.optimizer.flat)
        # a noisy network explores by itself
        initial, final = (
            (0.0, 0.0) if config.noisy else (config.exploration_initial_eps, config.exploration_final_eps)
        )
        self.explorer = EpsilonGreedyExplorer(
            policy,
            action_rng,
            initial=initial,
            final=final,
            fraction=config.exploration_fraction,
            learning_starts=config.learning_starts,
        )
        self.noise_rng = noise_rng
        self.target_updates = 0

    def update(self, batch: Transitions, progress: Progress) -> UpdateResult:
        """Train on one batch [B]."""
        config = self.config
        self._update_target_by_timesteps(progress)
        learning_rate = scalar(
            scheduled(config.learning_rate, config.learning_rate_schedule, progress.fraction)
        )
        batch = batch.to(self.device) if self.device.type != "cpu" else batch
        with torch.no_grad():
            features, next_features = self.policy.features(batch.obs), self.policy.features(batch.next_obs)
        # noise of its own for each of the three passes through a noisy network
        noises = [self.policy.network.draw_noise(self.noise_rng, self.device) for _ in range(3)]
        metrics, errors = self._train_batch(
            features,
            batch.actions,
            batch.rewards,
            batch.discounts,
            next_features,
            batch.weights,
            learning_rate,
            noises,
        )
        if (
            config.target_update_every_updates
            and not (progress.updates + 1) % config.target_update_every_updates
        ):
            self.target.follow(config.tau)
        metrics["learning_rate"] = learning_rate
        metrics["exploration_rate"] = scalar(self.explorer.epsilon(progress))
        return UpdateResult(metrics, errors)

    def _update_target_by_timesteps(self, progress: Progress) -> None:
        """Follow once per crossed multiple, before the updates that the new timesteps bring."""
        every, tau = self.config.target_timesteps, self.config.tau
        crossed = progress.timesteps // every - self.target_updates if every else 0
        for _ in range(min(crossed, 1) if tau == 1.0 else crossed):
            self.target.follow(tau)
        self.target_updates += max(crossed, 0)

    def _train_batch(
        self,
        features: Tensor,
        actions: Tensor,
        rewards: Tensor,
        discounts: Tensor,
        next_features: Tensor,
        weights: Tensor | None,
        learning_rate: Tensor,
        noises: list[list[Noise] | None],
    ) -> tuple[Metrics, Tensor]:
        """Loss, backward, clipping, optimizer: tensors in, tensors out; the unit of compilation."""
        policy, network = self.policy, self.policy.network
        with torch.no_grad():
            next_outputs = self.target.network(next_features, noises[1])
            chooser = network(next_features, noises[2]) if self.config.double else next_outputs
            next_chosen = chosen(next_outputs, policy.values(chooser).argmax(-1))
        outputs = network(features, noises[0])
        losses, errors = self._losses(chosen(outputs, actions), next_chosen, rewards, discounts)
        loss = losses.mean() if weights is None else (weights * losses).mean()
        norm = self.optimizer.minimize(loss, learning_rate)
        return {"loss": loss.detach(), "grad_norm": norm}, errors

    def _losses(
        self, said: Tensor, next_said: Tensor, rewards: Tensor, discounts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return losses [B] and errors [B] for what the networks say of the actions [B, K]."""
        if self.config.distribution == "c51":
            return categorical_losses(said, next_said, rewards, discounts, self.policy.support)
        if self.config.distribution == "quantile":
            return quantile_losses(said, next_said, rewards, discounts)
        huber = self.config.td_loss == "huber"
        return td_losses(said[:, 0], next_said[:, 0], rewards, discounts, huber=huber)

    def state_dict(self) -> dict[str, State]:
        """Return what acting needs (`model`), the target network, moments, counters and random states."""
        return {
            "model": self.policy.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "learner": {
                "explorer": self.explorer.state_dict(),
                "noise_rng": generator_state(self.noise_rng),
                "target_updates": self.target_updates,
            },
        }

    def load_state_dict(self, state: dict[str, State]) -> None:
        """Restore everything in place."""
        self.policy.load_state_dict(state["model"])
        self.target.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.explorer.load_state_dict(state["learner"]["explorer"])
        set_generator_state(self.noise_rng, state["learner"]["noise_rng"])
        self.target_updates = int(state["learner"]["target_updates"])


def chosen(outputs: Tensor, actions: Tensor) -> Tensor:
    """Return what a network says of one action per row: [B, A, K] and [B] to [B, K]."""
    index = actions.view(-1, 1, 1).expand(-1, 1, outputs.shape[2])
    return outputs.gather(1, index).squeeze(1)


class DQN(Algorithm):
    """Deep Q-learning: `DQN(config).learn()`."""

    name = "dqn"
    config_class = DQNConfig

    @staticmethod
    def build(config: "TrainConfig", spec: EnvSpec, device: torch.device) -> Parts:
        """Return the learner and its experience source for environments of `spec`."""
        settings = config.algorithm
        assert isinstance(settings, DQNConfig)
        policy = QPolicy(
            spec,
            hidden_sizes=settings.hidden_sizes,
            activation=settings.activation,
            dueling=settings.dueling,
            noisy=settings.noisy,
            distribution=settings.distribution,
            num_atoms=settings.num_atoms,
            v_min=settings.v_min,
            v_max=settings.v_max,
            num_quantiles=settings.num_quantiles,
            normalize_obs=config.normalize_obs,
            reward_normalizer=reward_normalizer(config, settings.gamma),
            generator=torch_generator(config.seed),
        ).to(device)
        learner = DQNLearner(
            settings,
            policy,
            action_rng=numpy_generator(config.seed, ACTIONS),
            noise_rng=numpy_generator(config.seed, UPDATE_NOISE),
        )
        source = build_replay(
            config,
            settings,
            spec,
            policy,
            prioritized=settings.prioritized,
            priority_alpha=settings.priority_alpha,
            priority_beta=settings.priority_beta,
        )
        return Parts(learner, source)
