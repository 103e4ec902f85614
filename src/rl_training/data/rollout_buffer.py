"""The on-policy buffer: one rollout, preallocated, written in place, spent by one update."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from rl_training.core.returns import gae
from rl_training.core.spaces import action_layout, leaf_dtype, observation_leaves
from rl_training.core.tensor_struct import TensorStruct
from rl_training.core.types import ActArrays, Array, Obs, ObsArray, StepArrays

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class RolloutBatch(TensorStruct):
    """Rows of a rollout; [B] each. `valid` is None where every row counts, which spares the masks."""

    obs: Obs
    actions: Tensor
    logprobs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    valid: Tensor | None = None

    def __len__(self) -> int:
        return len(self.actions)

    def minibatches(self, batch_size: int, rng: np.random.Generator | None) -> Iterator["RolloutBatch"]:
        """Partition the rows into parts of `batch_size` (the last may be smaller), shuffled by `rng` if given.

        One gather per epoch, then views. A single part needs no shuffling: its order changes nothing.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be positive, got {batch_size}")
        if batch_size >= len(self):
            yield self
            return
        rows = self if rng is None else self.take(torch.from_numpy(rng.permutation(len(self))))
        yield from rows.split(batch_size)


class RolloutBuffer:
    """`num_steps` rows of `num_envs` environments, [T, N, ...], on the CPU.

    `dones[t]` says that step t ended an episode, in whichever way; `final_values[t]` is the value of the true
    last observation where the clock ended it, 0 elsewhere. Rewards stay what the environment gave.
    """

    def __init__(
        self,
        *,
        num_steps: int,
        num_envs: int,
        obs_shape: Shape | Mapping[str, Shape],
        action_shape: Shape,
        obs_dtype: Any = None,
        action_dtype: Any = None,
    ) -> None:
        """`obs_shape` and `obs_dtype` (NumPy types) are mappings for Dict observations."""
        if num_steps < 1 or num_envs < 1:
            raise ValueError(f"num_steps and num_envs must be positive, got {num_steps} and {num_envs}")
        self.num_steps, self.num_envs = num_steps, num_envs
        leading = (num_steps, num_envs)
        self.obs: Obs
        if isinstance(obs_shape, Mapping):
            dtypes = obs_dtype or {}
            self.obs = {key: _zeros((*leading, *shape), dtypes.get(key)) for key, shape in obs_shape.items()}
        else:
            self.obs = _zeros((*leading, *obs_shape), obs_dtype)
        self.actions = _zeros((*leading, *action_shape), action_dtype)
        self.logprobs = _zeros(leading)
        self.rewards = _zeros(leading)
        self.dones = torch.zeros(leading, dtype=torch.bool)
        self.values = _zeros(leading)
        self.final_values = _zeros(leading)
        self.valid = torch.ones(leading, dtype=torch.bool)
        self.advantages = _zeros(leading)
        self.returns = _zeros(leading)
        self.next_values = _zeros(leading)
        self.row = 0
        self._write = _Views(self)

    @classmethod
    def for_spaces(
        cls, observation_space: Space[Any], action_space: Space[Any], *, num_steps: int, num_envs: int
    ) -> "RolloutBuffer":
        """Return a buffer with the shapes and types of the spaces; nested entries under keys such as `a/b`."""
        obs_leaves = observation_leaves(observation_space)
        shapes = {key: tuple(leaf.shape or ()) for key, leaf in obs_leaves.items()}
        dtypes = {key: leaf_dtype(leaf) for key, leaf in obs_leaves.items()}
        plain = "" in shapes
        action_shape, action_dtype = action_layout(action_space)
        return cls(
            num_steps=num_steps,
            num_envs=num_envs,
            obs_shape=shapes[""] if plain else shapes,
            obs_dtype=dtypes[""] if plain else dtypes,
            action_shape=action_shape,
            action_dtype=action_dtype,
        )

    def reset(self) -> None:
        """Rewind: the next record goes to row 0."""
        self.row = 0
        self.valid.fill_(True)

    @property
    def full(self) -> bool:
        """Every row is written."""
        return self.row == self.num_steps

    def record_action(self, obs: ObsArray, acted: ActArrays) -> None:
        """Copy what was seen and done into the current row, before the environments overwrite `obs`."""
        if self.full:
            raise IndexError(f"the rollout of {self.num_steps} steps is full; call reset() first")
        write, row = self._write, self.row
        if isinstance(obs, dict):
            for key, array in obs.items():
                write.obs_leaves[key][row] = array
        else:
            write.obs[row] = obs
        write.actions[row] = acted.action
        write.logprobs[row] = acted.logprob
        write.values[row] = acted.value

    def record_outcome(self, step: StepArrays, acted: ActArrays) -> None:
        """Copy what came of it into the same row, and move on."""
        write, row = self._write, self.row
        write.rewards[row] = step.reward
        write.dones[row] = step.ended
        write.final_values[row] = acted.final_value
        if step.num_valid < self.num_envs:
            write.valid[row] = step.valid
        self.row += 1

    def compute_returns_and_advantages(
        self, last_value: Tensor, gamma: float, gae_lambda: float, *, rewards: Tensor | None = None
    ) -> None:
        """Fill `advantages` and `returns` [T, N]; `last_value` [N] follows the last row.

        `rewards` [T, N] stands in for the recorded ones if they are to be scaled.
        """
        dones = self.dones.bool()
        self.next_values[:-1] = self.values[1:]
        self.next_values[-1] = torch.as_tensor(last_value)
        torch.where(
            dones, self.final_values, self.next_values, out=self.next_values
        )  # ended: 0, or V(final_obs)
        gae(
            self.rewards if rewards is None else rewards,
            self.values,
            self.next_values,
            dones,
            gamma=gamma,
            gae_lambda=gae_lambda,
            out=self.advantages,
        )
        torch.add(self.advantages, self.values, out=self.returns)

    def flat(self) -> RolloutBatch:
        """Return all rows [T * N] as views, in the order of time."""
        flatten = _flatten_leading
        obs = (
            {key: flatten(leaf) for key, leaf in self.obs.items()}
            if isinstance(self.obs, dict)
            else flatten(self.obs)
        )
        return RolloutBatch(
            obs=obs,
            actions=flatten(self.actions),
            logprobs=flatten(self.logprobs),
            values=flatten(self.values),
            advantages=flatten(self.advantages),
            returns=flatten(self.returns),
            valid=None if bool(self.valid.all()) else flatten(self.valid),
        )

    def iter_minibatches(
        self, batch_size: int, *, rng: np.random.Generator | None = None
    ) -> Iterator[RolloutBatch]:
        """Partition the rollout into minibatches, shuffled if `rng` is given."""
        return self.flat().minibatches(batch_size, rng)


class _Views:
    """NumPy views of the buffer's memory: row writes cost a third of torch's."""

    def __init__(self, buffer: RolloutBuffer) -> None:
        if isinstance(buffer.obs, dict):
            self.obs_leaves: dict[str, Array] = {key: leaf.numpy() for key, leaf in buffer.obs.items()}
        else:
            self.obs: Array = buffer.obs.numpy()
        self.actions = buffer.actions.numpy()
        self.logprobs = buffer.logprobs.numpy()
        self.values = buffer.values.numpy()
        self.rewards = buffer.rewards.numpy()
        self.dones = buffer.dones.numpy()
        self.final_values = buffer.final_values.numpy()
        self.valid = buffer.valid.numpy()


def _zeros(shape: Shape, dtype: Any = None) -> Tensor:
    return torch.zeros(shape) if dtype is None else torch.from_numpy(np.zeros(shape, dtype))


def _flatten_leading(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, *tensor.shape[2:])
