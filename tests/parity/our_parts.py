"""Everything that the comparison with stable-baselines3 knows of the package's inside: one place to keep up to date.

Tensors are handed out as views in the layout of plain linear layers, weight [out, in] then bias [out], grouped by
network, so that copying into them sets what the package learns with.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import Env, Space
from parity_continuous import Tensors, split_parameters
from parity_harness import parameters_of
from torch import Tensor, nn

from rl_training.config import TrainConfig
from rl_training.core.types import EnvSpec, Progress
from rl_training.data.replay_buffer import Transitions
from rl_training.data.rollout_buffer import RolloutBatch
from rl_training.envs.factory import make_vector_env
from rl_training.envs.stepper import VectorStepper
from rl_training.experiment.building import build_parts
from rl_training.models.ensemble import EnsembleMLP
from rl_training.policies.state_dependent import StateDependentPolicy
from rl_training.runtime.sampler import LocalSampler


class GivenNoise:
    """Stands in for a generator of normal numbers and gives what was put into it."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers.numpy()

    def standard_normal(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        assert shape == self.numbers.shape
        return self.numbers.astype(dtype)


class OurLearner:
    """A learner for spaces, without environments: set its tensors, give it batches, read its losses."""

    def __init__(
        self, algo: str, observation_space: Space[Any], action_space: Space[Any], **settings: Any
    ) -> None:
        config = TrainConfig(algo=algo, env_id="none", seed=0).with_overrides(**settings)
        spec = EnvSpec(observation_space, action_space, num_envs=config.num_envs)
        self.learner: Any = build_parts(config, spec).learner
        self.tensors: Tensors = TENSORS[algo](self.learner)
        self.progress = Progress(total_timesteps=10**9)

    def update_on_rollout(self, rows: dict[str, Tensor], shuffles: np.random.RandomState) -> dict[str, float]:
        """Learn from rows [B] named as in `RolloutBatch`, shuffled by `shuffles`; return the losses."""
        self.learner.minibatch_rng = shuffles
        return self._update(RolloutBatch(**rows))

    def update_on_transitions(self, rows: dict[str, Tensor], noise: Tensor | None) -> dict[str, float]:
        """Learn from rows [B] named as in `Transitions`, with normal `noise` of the shape the update draws."""
        if noise is not None:
            self.learner.noise_rng = GivenNoise(noise)
        self.learner._batch_size = len(rows["rewards"])
        return self._update(Transitions(**rows, indices=torch.arange(len(rows["rewards"]))))

    def _update(self, batch: Any) -> dict[str, float]:
        metrics = self.learner.update(batch, self.progress).metrics
        self.progress = self.progress.advanced(updates=1)
        return {name: float(value) for name, value in metrics.items()}


def _linear(*modules: nn.Module) -> list[Tensor]:
    return [tensor for module in modules for tensor in parameters_of(module)]


def _critics(network: nn.Module) -> list[Tensor]:
    assert isinstance(network, EnsembleMLP)
    return split_parameters(network)


def _actor_critic(learner: Any) -> Tensors:
    network, head = learner.policy.network, learner.policy.head
    return {
        "actor": _linear(network.actor_body, network.actor_head),
        "critic": _linear(network.critic_body, network.critic_head),
        "log_std": parameters_of(head),
    }


def _recurrent(learner: Any) -> Tensors:
    """The cores are torch's own, whose parameters have torch's order: inputs, memory, and a bias each."""
    network, head = learner.policy.network, learner.policy.head
    layers = network.network
    return {
        "core": parameters_of(network.core),
        "critic core": parameters_of(network.critic_core),
        "actor": _linear(layers.actor_body, layers.actor_head),
        "critic": _linear(layers.critic_body, layers.critic_head),
        "log_std": parameters_of(head),
    }


def _dqn(learner: Any) -> Tensors:
    return {
        name: _linear(network.body, network.advantage)
        for name, network in {"values": learner.policy.network, "target": learner.target.network}.items()
    }


def _td3(learner: Any) -> Tensors:
    return {
        "actor": _linear(learner.policy.network),
        "target actor": _linear(learner.target_actor.network),
        "critics": _critics(learner.critics),
        "target critics": _critics(learner.target_critics.network),
    }


def _sac_actor(policy: Any) -> list[Tensor]:
    if isinstance(policy, StateDependentPolicy):
        return _linear(policy.network, policy.head)
    *hidden, weight, bias = _linear(policy.network)
    means, deviations = zip(weight.chunk(2), bias.chunk(2), strict=True)
    return [*hidden, *means, *deviations]


def _sac(learner: Any) -> Tensors:
    return {
        "actor": _sac_actor(learner.policy),
        "critics": _critics(learner.critics),
        "target critics": _critics(learner.target_critics.network),
        "temperature": [learner.temperature.log_alpha.detach()] if learner.config.ent_coef is None else [],
    }


TENSORS: dict[str, Callable[[Any], Tensors]] = {
    "ppo": _actor_critic, "a2c": _actor_critic, "dqn": _dqn, "td3": _td3, "sac": _sac, "recurrent_ppo": _recurrent,
}  # fmt: skip


class OurCollection:
    """The package's way from environments to learnable rows; `build` makes one environment, in order of its number."""

    def __init__(self, algo: str, build: Callable[[], Env[Any, Any]], num_envs: int, **settings: Any) -> None:
        config = TrainConfig(algo=algo, env_id="none", seed=0, num_envs=num_envs).with_overrides(**settings)
        self.stepper = VectorStepper(make_vector_env(config, factory=build))
        parts = build_parts(config, self.stepper.spec)
        self.tensors: Tensors = TENSORS[algo](parts.learner)
        self.source: Any = parts.source
        self.sampler = LocalSampler(self.stepper, parts.actor.explorer, self.source)
        self.progress = Progress(total_timesteps=10**9)
        self.stepper.reset()

    def rollouts(self, count: int) -> Iterator[dict[str, Tensor]]:
        """Yield `count` rollouts: values, advantages and returns, [T, N] each."""
        for _ in range(count):
            self.sampler.collect(self.source.steps_per_collect, self.progress)
            (batch,) = self.source.batches(self.progress)
            shape = (-1, self.stepper.spec.num_envs)
            yield {
                name: getattr(batch, name).view(shape).clone() for name in ("values", "advantages", "returns")
            }

    def transitions(self, num_steps: int, draws: int) -> Transitions:
        """Take steps in all environments, then draw so many of the remembered transitions."""
        self.sampler.collect(num_steps, self.progress)
        found: Transitions = self.source.buffer.sample(draws, np.random.default_rng(0))
        return found
