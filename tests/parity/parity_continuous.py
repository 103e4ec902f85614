"""What the comparisons of SAC and TD3 share: an environment with both kinds of end, and batched critics."""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from parity_harness import assert_close, parameters_of
from torch import Tensor

from rl_training.data.replay_buffer import Transitions
from rl_training.models.ensemble import EnsembleMLP

Tensors = dict[str, list[Tensor]]
SMALL = {"hidden_sizes": (24, 16), "batch_size": 32, "learning_starts": 60, "max_episode_steps": 40}


class FragilePendulum(PendulumEnv):
    """Breaks when it swings too fast; two motors with lopsided bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.Box(np.float32([-1.0, -0.5]), np.float32([0.5, 2.0]))

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        obs, reward, _, truncated, info = super().step([action.sum()])
        return obs, reward, bool(abs(obs[2]) > 4), truncated, info


FRAGILE = "FragilePendulum-v0"
gymnasium.register(FRAGILE, entry_point=FragilePendulum, disable_env_checker=True)


def split(members: list[Tensor], critics: EnsembleMLP) -> list[Tensor]:
    """Tensors of batched critics, weights then biases, in the order of two networks one after the other."""
    weights, biases = members[: len(critics.weights)], members[len(critics.weights) :]
    return [
        tensor
        for member in range(critics.num_members)
        for weight, bias in zip(weights, biases, strict=True)
        for tensor in (weight[member].T, bias[member, 0])
    ]


def split_parameters(critics: EnsembleMLP) -> list[Tensor]:
    return split(parameters_of(critics), critics)


def package_gradients(learner: Any, keys: tuple[str, ...]) -> Tensors:
    """The gradients of the only update so far: of these Adam's mean holds a tenth."""
    found = {}
    for key in keys:
        optimizer = learner.temperature.optimizer if key == "alpha" else getattr(learner, f"{key}_optimizer")
        parts = (optimizer.exp_avg / (1 - optimizer.betas[0])).split(
            [p.numel() for p in optimizer.parameters]
        )
        found[key] = [part.view_as(p) for part, p in zip(parts, optimizer.parameters, strict=True)]
    return found | {"critic": split(found["critic"], learner.critics)}


def script_gradients(agent: Any, keys: tuple[str, ...]) -> Tensors:
    """What is left in `grad`, of the critics too: the actor's step must add nothing to theirs."""
    optimizers = {key: getattr(agent, f"{key}_optimizer") for key in keys}
    return {
        key: [p.grad for p in optimizer.param_groups[0]["params"]] for key, optimizer in optimizers.items()
    }


def assert_same(ours: Tensors, theirs: Tensors, atol: float) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert_close(ours[name], theirs[name], atol, name)


def cloned(tensors: Tensors) -> Tensors:
    return {name: [tensor.clone() for tensor in listed] for name, listed in tensors.items()}


def shift_both(ours: Tensors, theirs: Tensors, rng: np.random.Generator) -> None:
    """Move the parameters of both, of which these are views, by the same random numbers."""
    for name, tensors in theirs.items():
        for mine, other in zip(ours[name], tensors, strict=True):
            shift = torch.as_tensor(rng.normal(size=tuple(other.shape))) * 0.3
            mine += shift
            other += shift


def random_batch(rng: np.random.Generator, size: int) -> dict[str, Tensor]:
    """Return rows as the scripts have them, for three observations and two actions."""
    return {
        "obs": torch.as_tensor(rng.normal(size=(size, 3))) * 3,
        "next_obs": torch.as_tensor(rng.normal(size=(size, 3))) * 3,
        "actions": torch.as_tensor(rng.uniform(-1, 1, (size, 2))),
        "rewards": torch.as_tensor(rng.normal(size=size)),
        "terminated": torch.as_tensor(rng.random(size) < 0.3).double(),
    }


def transitions(batch: dict[str, Tensor], gamma: float) -> Transitions:
    """Return the same rows as the package has them."""
    return Transitions(
        obs=batch["obs"],
        actions=batch["actions"],
        rewards=batch["rewards"],
        discounts=gamma * (1 - batch["terminated"]),
        next_obs=batch["next_obs"],
        indices=torch.arange(len(batch["rewards"])),
    )
