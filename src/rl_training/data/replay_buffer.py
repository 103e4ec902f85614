"""The replay buffer: a preallocated ring of finished transitions, sampled uniformly or by priority.

A row holds a whole transition, so that sampling touches memory once per row: with a million rows this takes a quarter
of the time of one array per field.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from rl_training.core.columns import Allocator, Column, Shape, field_name, layout_of, shaped_columns
from rl_training.core.spaces.masks import split_mask
from rl_training.core.tensor_struct import TensorStruct
from rl_training.core.types import Array, Obs, ObsArray, State, StepArrays, joined, leaves
from rl_training.data.frame_storage import FrameStore, frame_store
from rl_training.data.n_step import NStepWindow
from rl_training.data.replay_sampling import PrioritizedSampler, UniformSampler
from rl_training.data.turn_window import TurnWindow

WHOLE_STACKS = "what they see next is not one frame later; leave it out, so that stacks are stored whole"


@dataclass(frozen=True)
class Transitions(TensorStruct):
    """Rows [B] of a replay buffer. The target of a value is `rewards + discounts * value(next_obs)`."""

    obs: Obs
    actions: Tensor
    rewards: Tensor
    """Sum of up to n discounted rewards."""
    discounts: Tensor
    """gamma to the power of the number of rewards; 0 after a terminal state, but not after a time limit."""
    next_obs: Obs
    """The true successor: never an observation of the next episode."""
    indices: Tensor
    """Positions of the rows in the buffer, for updating priorities."""
    weights: Tensor | None = None
    """Importance weights of prioritised sampling; None if all are 1."""
    extra: dict[str, Tensor] = field(default_factory=dict)
    """The explorer's columns, recorded with the action, or those that an algorithm asks of a dataset."""
    action_masks: Tensor | None = None
    """Masks [B, M] of the allowed actions; None if all are allowed."""
    next_action_masks: Tensor | None = None
    """The masks of the next observations."""

    def __len__(self) -> int:
        return len(self.actions)


class ReplayBuffer:
    """The newest `capacity` transitions of `num_envs` environments, in the order they were finished.

    Per step: `record_action`, then `record_outcome`. With `frame_stack` K the plain observation is a stack [K * C, ...]
    of K frames, oldest first, and each frame is stored once. Memory is allocated when it is first needed.

    With `turns`, a row that is not valid may be that of an agent that waits: a transition leads from one own action of
    a row to its next one, and has what the row was paid in between.
    """

    def __init__(
        self,
        *,
        capacity: int,
        num_envs: int,
        obs_shape: Shape | Mapping[str, Shape],
        action_shape: Shape,
        obs_dtype: Any = None,
        action_dtype: Any = None,
        n_step: int = 1,
        gamma: float = 0.99,
        prioritized: bool = False,
        priority_alpha: float = 0.6,
        frame_stack: int | None = None,
        extra: Sequence[Column] = (),
        turns: bool = False,
        allocate: Allocator = np.zeros,
    ) -> None:
        """`obs_shape` and `obs_dtype` (NumPy types) are mappings for Dict observations."""
        if capacity < 1 or num_envs < 1:
            raise ValueError(f"capacity and num_envs must be positive, got {capacity} and {num_envs}")
        if turns and frame_stack is not None:
            raise ValueError(f"frame_stack is {frame_stack}, but rows may wait: {WHOLE_STACKS}")
        self.capacity, self.num_envs, self.prioritized = capacity, num_envs, prioritized
        self.turns = turns
        self.total_rows = self.kept_rows = 0
        seen = shaped_columns(obs_shape, obs_dtype)
        self.frames: FrameStore | None = None
        if frame_stack is not None:
            waiting = num_envs * (frame_stack + n_step)
            self.frames = frame_store(seen, frame_stack, num_envs=num_envs, num_rows=capacity + waiting)
            seen = {**seen, "": Column("obs", (frame_stack,), np.int64)}
        self._obs_keys, self._extra = list(seen), [column.name for column in extra]
        self.columns = (*_columns(seen, Column("actions", action_shape, action_dtype)), *extra)
        self.dtype = np.dtype(
            [(column.name, column.type, column.shape) for column in self.columns], align=True
        )
        window = TurnWindow if turns else NStepWindow
        self.window = window(self.dtype, n=n_step, gamma=gamma, num_envs=num_envs)
        self.sampler = (
            PrioritizedSampler(capacity, alpha=priority_alpha) if prioritized else UniformSampler(capacity)
        )
        self._rows: Array | None = None
        self._allocate, self._bytes = allocate, np.dtype((np.void, self.dtype.itemsize))
        self._opened = dict[str, Array]()  # the fields of a step, for the window
        self._followed = dict[str, Array]()

    @classmethod
    def for_spaces(cls, observation_space: Space[Any], action_space: Space[Any], **settings: Any) -> Self:
        """Return a buffer with the shapes and types of the spaces; nested entries under keys such as `a/b`."""
        return cls(**layout_of(observation_space, action_space), **settings)

    def __len__(self) -> int:
        return self.kept_rows

    @property
    def nbytes(self) -> int:
        """Memory of the full buffer; very short episodes of stacked images take up to twice as much."""
        frames = 0 if self.frames is None else self.frames.nbytes
        return self.capacity * self.dtype.itemsize + self.sampler.nbytes + frames

    @property
    def drawn_bytes(self) -> int:
        """Memory of one sampled row, with its whole stacks."""
        stacks = 0 if self.frames is None else 2 * self.frames.stack_size * self.frames.frame_bytes
        return self.dtype.itemsize + stacks

    @property
    def rows(self) -> Array:
        """The ring [capacity] of structured rows, allocated when first used."""
        if self._rows is None:
            self._rows = self._allocate((self.capacity,), self.dtype)
        return self._rows

    def record_action(self, obs: ObsArray, actions: Array, extra: Mapping[str, Array] | None = None) -> None:
        """Copy observations [N, ...] and actions [N, ...], before the environments overwrite them."""
        values = self._opened
        self._encode("obs", obs, values)
        values["actions"] = actions
        if extra:
            values.update(extra)
        self.window.begin(values)

    def record_outcome(self, step: StepArrays) -> None:
        """Copy the outcome; store transitions whose n rewards are complete or whose episode has ended."""
        self._encode("next_obs", _successors(step), self._followed)
        over, ended = step.terminated, step.ended
        if step.any_cut:
            # a cut stops bootstrapping, like a terminal state; the next observation is an ordinary one
            over, ended = over | step.cut, ended | step.cut
        finished = self.window.complete(step.signal, over, ended, step.valid, self._followed)
        if len(finished):
            self.add(finished)
        self._drop_unneeded_frames()

    def add(self, rows: Array) -> None:
        """Append structured rows [k]; the newest `capacity` are kept."""
        rows = rows[-self.capacity :]
        count, start = len(rows), self.total_rows % self.capacity
        # as bytes: copying a row field by field takes ten times as long
        ring, given = self.rows.view(self._bytes), rows.view(self._bytes)
        head = min(count, self.capacity - start)
        ring[start : start + head] = given[:head]
        if head < count:
            ring[: count - head] = given[head:]
        self.total_rows += count
        self.kept_rows = min(self.kept_rows + count, self.capacity)
        if self.frames is not None:
            self.frames.rows_need(rows["obs"][:, 0], self.total_rows - count)
        if self.prioritized:
            self.sampler.added((start + np.arange(count)) % self.capacity)

    def sample(self, batch_size: int, rng: np.random.Generator, *, beta: float = 1.0) -> Transitions:
        """Return `batch_size` transitions, drawn with replacement; `beta` is the exponent of importance weights."""
        if self.kept_rows == 0:
            raise IndexError("the replay buffer is empty; record steps first")
        start = (self.total_rows - self.kept_rows) % self.capacity
        index, weights = self.sampler.draw(batch_size, rng, start=start, kept=self.kept_rows, beta=beta)
        rows = self.rows.take(index)
        obs, masks = self._decoded("obs", rows)
        next_obs, next_masks = self._decoded("next_obs", rows)
        return Transitions(
            obs=obs,
            actions=torch.from_numpy(rows["actions"]),
            rewards=torch.from_numpy(rows["rewards"]),
            discounts=torch.from_numpy(rows["discounts"]),
            next_obs=next_obs,
            indices=torch.from_numpy(index),
            weights=None if weights is None else torch.from_numpy(weights),
            extra={name: torch.from_numpy(rows[name]) for name in self._extra},
            action_masks=masks,
            next_action_masks=next_masks,
        )

    def update_priorities(self, indices: Tensor, errors: Tensor) -> None:
        """Set the priorities of drawn rows by their absolute errors [B]."""
        self.sampler.update(indices.numpy(), errors.detach().cpu().numpy())

    def forget(self, envs: Any) -> None:
        """Drop the unfinished transitions of environments whose episode does not continue."""
        self.window.forget(envs)

    def _encode(self, kind: str, obs: ObsArray, into: dict[str, Array]) -> None:
        """Write the fields of an observation [N, ...] to `into`."""
        if isinstance(obs, dict):
            for key, array in obs.items():
                into[field_name(kind, key)] = array
        else:
            into[kind] = obs
        if self.frames is not None:
            into[kind] = self.frames.numbers_of(into[kind], moved_on=kind == "next_obs")

    def _decoded(self, kind: str, rows: Array) -> tuple[Obs, Tensor | None]:
        parts = {key: torch.from_numpy(rows[field_name(kind, key)]) for key in self._obs_keys}
        if self.frames is not None:
            parts[""] = torch.from_numpy(self.frames.stacks(rows[kind]))
        return split_mask(joined(parts))

    def _drop_unneeded_frames(self) -> None:
        """Drop the frames that no stored or waiting row needs; call between two steps."""
        oldest_row = self.total_rows - self.kept_rows
        if self.frames is not None and self.frames.has_unneeded(oldest_row):
            self.frames.drop_unneeded(oldest_row, self.window.waiting()["obs"][:, 0])

    # ------------------------------------------------------------------------------------------ checkpoints

    @property
    def storages(self) -> dict[str, Any]:
        """Data that is saved in segments: each checkpoint writes only new rows."""
        return {"transitions": self} if self.frames is None else {"transitions": self, "frames": self.frames}

    def read_rows(self, start: int, stop: int) -> dict[str, Tensor]:
        """Return rows by absolute number, column by column."""
        rows = self.rows.take(np.arange(start, stop) % self.capacity)
        return {name: torch.from_numpy(np.ascontiguousarray(rows[name])) for name in self.dtype.names or ()}

    def restore_rows(self, start: int, rows: Mapping[str, Tensor], total_rows: int) -> None:
        """Restore rows under their absolute numbers."""
        first = max(start, total_rows - self.capacity)
        index = np.arange(first, total_rows) % self.capacity
        for name in self.dtype.names or ():
            column = rows[name].numpy()[first - start :]
            expected = self.rows[name]
            if column.shape[1:] != expected.shape[1:] or column.dtype != expected.dtype:
                raise ValueError(f"column '{name}' has another shape or type")
            expected[index] = column
        self.total_rows = total_rows
        self.kept_rows = min(total_rows, self.capacity)

    def state_dict(self) -> State:
        return {
            "total_rows": self.total_rows,
            "kept_rows": self.kept_rows,
            "window": self.window.state_dict(),
            "sampler": self.sampler.state_dict(),
            "frames": {} if self.frames is None else self.frames.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore counters, waiting transitions and priorities, after the rows."""
        if int(state["total_rows"]) != self.total_rows:
            raise ValueError(f"{state['total_rows']} rows were saved, {self.total_rows} were read back")
        self.kept_rows = min(int(state["kept_rows"]), self.kept_rows)
        self.window.load_state_dict(state["window"])
        self.sampler.load_state_dict(state["sampler"])
        if self.frames is not None:
            self.frames.load_state_dict(state["frames"])
            self._restore_needs(self.frames)

    def _restore_needs(self, frames: FrameStore) -> None:
        """Note which frames the rows need; raise an error if one of them is missing."""
        oldest_row = self.total_rows - self.kept_rows
        kept = self.rows[np.arange(oldest_row, self.total_rows) % self.capacity]
        for rows in (kept, self.window.waiting()):
            frames.refuse_missing(rows["obs"])
        frames.refuse_missing(kept["next_obs"])
        frames.rows_need(kept["obs"][:, 0], oldest_row)
        self._drop_unneeded_frames()


def _columns(seen: Mapping[str, Column], actions: Column) -> tuple[Column, ...]:
    """Return the columns of every transition, for those of its observation by key."""
    following = [replace(column, name=field_name("next_obs", key)) for key, column in seen.items()]
    return *seen.values(), *following, actions, Column("rewards"), Column("discounts")


def _successors(step: StepArrays) -> ObsArray:
    """Return the true next observations [N, ...]: the final observation where an episode ended."""
    if not step.any_ended:
        return step.obs
    found = {}
    for key, array in leaves(step.obs):
        final = step.final_obs[key] if isinstance(step.final_obs, dict) else step.final_obs
        mask = step.ended.reshape(-1, *[1] * (array.ndim - 1))
        found[key] = np.where(mask, final, array)
    return joined(found)
