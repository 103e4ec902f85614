"""What the on-policy algorithms share: settings, parts, and the arithmetic around their losses."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rl_training.algorithms.base import AlgorithmConfig
from rl_training.core.schedules import ScheduleName
from rl_training.core.seeding import torch_generator
from rl_training.core.types import EnvSpec
from rl_training.data.rollout_buffer import RolloutBatch, RolloutBuffer
from rl_training.data.sources import RolloutSource
from rl_training.models.mlp import ActivationName
from rl_training.models.normalizer import RewardNormalizer
from rl_training.policies.actor_critic import ActorCriticPolicy

if TYPE_CHECKING:
    from rl_training.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(AlgorithmConfig):
    """Settings of every algorithm that learns a policy and a value from rollouts."""

    num_steps: int = 256
    """Steps per environment in one rollout."""
    learning_rate: float = 3e-4
    """Step size at the start."""
    learning_rate_schedule: ScheduleName = "constant"
    """How the learning rate falls to 0 over the run."""
    gamma: float = 0.99
    """Discount per step, in [0, 1]."""
    gae_lambda: float = 0.95
    """Trace of the advantage estimate, in [0, 1]: 0 is one step, 1 is the whole episode."""
    normalize_advantage: bool = True
    """Give the advantages of each minibatch zero mean and unit deviation."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the value loss, which is the mean squared error without a factor of one half."""
    max_grad_norm: float = 0.5
    """Largest norm of the whole gradient."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    activation: ActivationName = "tanh"
    """Nonlinearity of the hidden layers."""
    shared_network: bool = False
    """Let actor and critic share the hidden layers."""
    orthogonal_init: bool = True
    """Orthogonal initial weights; otherwise uniform."""
    log_std_init: float = 0.0
    """Initial log deviation of continuous actions, where the range of a bounded action is [-1, 1]."""

    def problems(self, num_envs: int) -> list[str]:
        """Return what is impossible, each naming key, value and remedy."""
        found = [
            *self.not_positive("num_steps", "learning_rate", "max_grad_norm"),
            *self.outside("gamma", 0, 1),
            *self.outside("gae_lambda", 0, 1),
            *self.negative("ent_coef", "vf_coef"),
            *self.bad_sizes("hidden_sizes"),
        ]
        if self.num_steps * num_envs > 2**28:
            found.append(f"num_steps * num_envs is {self.num_steps} * {num_envs}; use at most {2**28} rows")
        return found


def build_actor_critic(
    config: "TrainConfig", spec: EnvSpec, device: torch.device
) -> tuple[ActorCriticPolicy, RolloutSource]:
    """Return the policy and the rollouts it learns from."""
    settings = config.algorithm
    assert isinstance(settings, ActorCriticConfig)
    scaler = RewardNormalizer(settings.gamma) if config.normalize_reward else None
    policy = ActorCriticPolicy(
        spec,
        hidden_sizes=settings.hidden_sizes,
        activation=settings.activation,
        shared_network=settings.shared_network,
        orthogonal_init=settings.orthogonal_init,
        log_std_init=settings.log_std_init,
        normalize_obs=config.normalize_obs,
        reward_normalizer=scaler,
        generator=torch_generator(config.seed),
    ).to(device)
    buffer = RolloutBuffer.for_spaces(
        spec.observation_space, spec.action_space, num_steps=settings.num_steps, num_envs=spec.num_envs
    )
    source = RolloutSource(buffer, gamma=settings.gamma, gae_lambda=settings.gae_lambda, reward_scaler=scaler)
    return policy, source


def masked_mean(rows: Tensor, valid: Tensor | None) -> Tensor:
    """Return the mean over the valid rows; all of them if `valid` is None."""
    return rows.mean() if valid is None else (rows * valid).sum() / valid.sum().clamp(min=1)


def normalized(advantages: Tensor, valid: Tensor | None) -> Tensor:
    """Return advantages [B] with zero mean and unit deviation over the valid rows; unchanged if fewer than two."""
    if valid is None:
        if len(advantages) < 2:
            return advantages
        std, mean = torch.std_mean(advantages)
        return (advantages - mean) / (std + 1e-8)
    count = valid.sum()
    mean = (advantages * valid).sum() / count.clamp(min=1)
    variance = ((advantages - mean).square() * valid).sum() / (count - 1).clamp(min=1)
    return torch.where(count < 2, advantages, (advantages - mean) / (variance.sqrt() + 1e-8))


def explained_variance(batch: RolloutBatch) -> Tensor:
    """Return 1 - var(returns - values) / var(returns) over the valid rows; nan if the returns do not vary."""
    returns, values = batch.returns, batch.values
    if batch.valid is not None:
        returns, values = returns[batch.valid], values[batch.valid]
    variance = returns.var(correction=0)
    return torch.where(variance > 0, 1 - (returns - values).var(correction=0) / variance, torch.nan)
