"""The rollout buffer: preallocated, written in place, and used for one update."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from rl_training.core.blocks import Block
from rl_training.core.columns import Allocator, Column, Shape, allocated, layout_of, shaped_columns
from rl_training.core.returns import gae, own_rewards, own_turn_gae, vtrace
from rl_training.core.spaces.masks import split_mask
from rl_training.core.tensor_struct import TensorStruct
from rl_training.core.types import ActArrays, Array, Obs, ObsArray, StepArrays, joined, leaves

COLUMNS = (
    Column("logprobs"),
    Column("values"),
    Column("rewards"),
    Column("dones", dtype=np.bool_),
    Column("cuts", dtype=np.bool_),
    Column("final_values"),
    Column("valid", dtype=np.bool_),
    # computed when the rollout is complete
    Column("next_values"),
    Column("advantages"),
    Column("returns"),
)
"""The columns of every rollout besides observations and actions."""
NO_VTRACE = "V-trace corrects for an older policy step by step, which rows that wait do not have; use no lag"


@dataclass(frozen=True)
class RolloutBatch(TensorStruct):
    """Rows [B] of a rollout. `valid` is None if all rows are valid, which avoids masks."""

    obs: Obs
    actions: Tensor
    logprobs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    valid: Tensor | None = None
    extra: dict[str, Tensor] = field(default_factory=dict)
    """The explorer's columns."""
    action_masks: Tensor | None = None
    """Masks [B, M] of the allowed actions; None if all are allowed."""
    weights: Tensor | None = None
    """Factors of the advantages [B], which correct for an older policy that collected the rows; None if all are 1."""

    def __len__(self) -> int:
        return len(self.actions)

    def minibatches(self, batch_size: int, rng: np.random.Generator | None) -> Iterator["RolloutBatch"]:
        """Partition the rows into minibatches (the last may be smaller), shuffled if `rng` is given.

        Each epoch needs one gather, then views. A single minibatch is not shuffled, as its order has no effect.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be positive, got {batch_size}")
        if batch_size >= len(self):
            yield self
            return
        rows = self if rng is None else self.take(torch.from_numpy(rng.permutation(len(self))))
        yield from rows.split(batch_size)


class RolloutBuffer:
    """`num_steps` rows of `num_envs` environments, [T, N, ...], on the CPU; every column is a tensor attribute.

    `dones[t]`: step t ended an episode, by termination or truncation. `cuts[t]`: returns stop at step t although the
    episode continues. `final_values[t]`: the value of the final observation after a truncation, otherwise 0.

    With `turns`, a row that is not valid may be that of an agent that waits: returns are over its own actions, see
    `core.returns.own_turn_gae`, and batches have only the rows that are learned from.
    """

    obs: Obs
    actions: Tensor
    logprobs: Tensor
    values: Tensor
    rewards: Tensor
    dones: Tensor
    cuts: Tensor
    final_values: Tensor
    valid: Tensor
    next_values: Tensor
    advantages: Tensor
    returns: Tensor

    def __init__(
        self,
        *,
        num_steps: int,
        num_envs: int,
        obs_shape: Shape | Mapping[str, Shape],
        action_shape: Shape,
        obs_dtype: Any = None,
        action_dtype: Any = None,
        extra: Sequence[Column] = (),
        turns: bool = False,
        allocate: Allocator = np.zeros,
    ) -> None:
        """`obs_shape` and `obs_dtype` (NumPy types) are mappings for Dict observations."""
        if num_steps < 1 or num_envs < 1:
            raise ValueError(f"num_steps and num_envs must be positive, got {num_steps} and {num_envs}")
        self.num_steps, self.num_envs, self.turns = num_steps, num_envs, turns
        seen = shaped_columns(obs_shape, obs_dtype)
        self.columns = (*seen.values(), Column("actions", action_shape, action_dtype), *COLUMNS, *extra)
        # NumPy views of the tensors' memory: row writes cost a third of torch's
        self._write = allocated(self.columns, num_steps, num_envs, allocate=allocate)
        tensors = {name: torch.from_numpy(array) for name, array in self._write.items()}
        for column in COLUMNS:
            setattr(self, column.name, tensors[column.name])
        self.actions = tensors["actions"]
        self.extra = {column.name: tensors[column.name] for column in extra}
        self._write_obs = {key: self._write[column.name] for key, column in seen.items()}
        self.obs = joined({key: tensors[column.name] for key, column in seen.items()})
        self.reset()

    @classmethod
    def for_spaces(cls, observation_space: Space[Any], action_space: Space[Any], **settings: Any) -> Self:
        """Return a buffer with the shapes and types of the spaces; nested entries under keys such as `a/b`."""
        return cls(**layout_of(observation_space, action_space), **settings)

    def reset(self) -> None:
        """Rewind to row 0."""
        self.row = 0
        self.learned: Tensor | None = None
        self.valid.fill_(True)
        self.cuts.fill_(False)

    @property
    def nbytes(self) -> int:
        return self.num_steps * self.num_envs * sum(column.row_bytes for column in self.columns)

    @property
    def full(self) -> bool:
        return self.row == self.num_steps

    def record_action(self, obs: ObsArray, acted: ActArrays) -> None:
        """Copy observations and actions into the current row, before the environments overwrite `obs`."""
        if self.full:
            raise IndexError(f"the rollout of {self.num_steps} steps is full; call reset() first")
        write, row = self._write, self.row
        for key, array in leaves(obs):
            self._write_obs[key][row] = array
        write["actions"][row] = acted.action
        write["logprobs"][row] = acted.logprob
        write["values"][row] = acted.value
        for name, array in acted.extra.items():
            write[name][row] = array

    def record_outcome(self, step: StepArrays, acted: ActArrays) -> None:
        """Copy the outcome into the same row, and advance to the next row."""
        write, row = self._write, self.row
        write["rewards"][row] = step.signal
        write["dones"][row] = step.ended
        write["final_values"][row] = acted.final_value
        if step.any_cut:
            write["cuts"][row] = step.cut
        if step.num_valid < self.num_envs:
            write["valid"][row] = step.valid
        self.row += 1

    def record_block(self, block: Block) -> None:
        """Copy all steps of a block into the next rows."""
        start, stop = self.row, self.row + block.num_steps
        if stop > self.num_steps:
            raise IndexError(
                f"a block of {block.num_steps} steps does not fit into the {self.num_steps - start} rows that are left"
            )
        rows, write = slice(start, stop), self._write
        for key, array in leaves(block.obs):
            self._write_obs[key][rows] = array[:-1]
        columns = {
            "actions": block.action, "logprobs": block.logprob, "values": block.value, "rewards": block.signal,
            "dones": block.ended, "cuts": block.cut, "final_values": block.final_value, "valid": block.valid,
        }  # fmt: skip
        for name, array in (columns | block.extra).items():
            write[name][rows] = array
        self.row = stop

    def compute_returns_and_advantages(
        self,
        last_value: Tensor,
        gamma: float,
        gae_lambda: float,
        *,
        rewards: Tensor | None = None,
        ratios: Tensor | None = None,
    ) -> None:
        """Fill `advantages` and `returns` [T, N]; `last_value` [N] follows the last row.

        `rewards` [T, N] replaces the recorded rewards, e.g. by scaled ones. `ratios` [T, N], of the
        probabilities of the learner's policy and the one that collected, correct both by V-trace.
        With `turns`, `last_value` is nan for rows that wait, and rewards are those of `own_rewards`.
        """
        stops = self.dones.bool().numpy() | self.cuts.numpy()
        if self.turns:
            if ratios is not None:
                raise ValueError(NO_VTRACE)
            rewards = self.own_rewards() if rewards is None else rewards
            self._compute_own_turns(rewards, torch.as_tensor(last_value), stops, gamma, gae_lambda)
            return
        values, next_values = self.values.numpy(), self.next_values.numpy()
        next_values[:-1] = values[1:]
        next_values[-1] = torch.as_tensor(last_value).numpy()
        # the value of the final observation after a truncation, 0 after a termination or cut
        np.copyto(next_values, self.final_values.numpy(), where=stops)
        rewards = self.rewards if rewards is None else rewards
        if ratios is not None:
            vtrace(
                *(rewards, self.values, self.next_values, torch.from_numpy(stops), ratios),
                gamma=gamma,
                gae_lambda=gae_lambda,
                advantages=self.advantages,
                returns=self.returns,
            )
            return
        gae(
            rewards,
            self.values,
            self.next_values,
            torch.from_numpy(stops),
            gamma=gamma,
            gae_lambda=gae_lambda,
            out=self.advantages,
        )
        np.add(self.advantages.numpy(), values, out=self.returns.numpy())

    def _compute_own_turns(
        self, rewards: Tensor, last_value: Tensor, stops: Array, gamma: float, gae_lambda: float
    ) -> None:
        self.learned = own_turn_gae(
            *(rewards, self.values, self.final_values, last_value, torch.from_numpy(stops), self.valid),
            gamma=gamma,
            gae_lambda=gae_lambda,
            out=self.advantages,
        )
        np.add(self.advantages.numpy(), self.values.numpy(), out=self.returns.numpy())

    def own_rewards(self) -> Tensor:
        """Return the rewards [T, N]; with `turns`, those of own actions, see `core.returns.own_rewards`."""
        if not self.turns:
            return self.rewards
        return own_rewards(self.rewards, self.dones.bool() | self.cuts, self.valid)

    def flat(self) -> RolloutBatch:
        """Return all rows [T * N] as views, in time order; with `turns`, only those that are learned from, copied."""
        rows = self.all_rows()
        if not self.turns or rows.valid is None:
            return rows
        learned = torch.from_numpy(np.flatnonzero(rows.valid.numpy()))
        return replace(rows.take(learned), valid=None)

    def all_rows(self) -> RolloutBatch:
        """Return all rows [T * N] as views, in time order; `valid` marks those that are learned from."""
        valid = self.valid if self.learned is None else self.learned
        obs, masks = split_mask(self.obs)
        batch = RolloutBatch(
            obs=obs,
            actions=self.actions,
            logprobs=self.logprobs,
            values=self.values,
            advantages=self.advantages,
            returns=self.returns,
            valid=None if bool(valid.all()) else valid,
            extra=self.extra,
            action_masks=masks,
        )
        return batch.map(lambda tensor: tensor.flatten(0, 1))

    def iter_minibatches(
        self, batch_size: int, *, rng: np.random.Generator | None = None
    ) -> Iterator[RolloutBatch]:
        """Partition the rollout into minibatches, shuffled if `rng` is given."""
        return self.flat().minibatches(batch_size, rng)
