"""The off-policy buffer: a ring of finished transitions, preallocated, drawn uniformly or by priority.

A row holds a whole transition, so that a draw touches memory once per sample: from a million rows this takes a quarter
of the time that one array per field does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from rl_training.core.columns import (
    Allocator,
    Column,
    action_column,
    field_name,
    observation_columns,
    shaped_columns,
)
from rl_training.core.spaces.masks import split_mask
from rl_training.core.tensor_struct import TensorStruct
from rl_training.core.types import Array, Obs, ObsArray, State, StepArrays, joined, leaves
from rl_training.data.frame_storage import FrameStore, frame_store
from rl_training.data.n_step import Accumulator, NStepWindow
from rl_training.data.replay_sampling import make_sampler

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Transitions(TensorStruct):
    """Rows of a replay buffer; [B] each. The target of a value is `rewards + discounts * value(next_obs)`."""

    obs: Obs
    actions: Tensor
    rewards: Tensor
    """Sum of up to n discounted rewards."""
    discounts: Tensor
    """gamma to the power of the number of rewards; 0 where the task ended. A time limit is no end of the task."""
    next_obs: Obs
    """The true successor: never an observation of the next episode."""
    indices: Tensor
    """Where the rows lie, for new priorities."""
    weights: Tensor | None = None
    """Importance weights of prioritised sampling; None where all are 1."""
    extra: dict[str, Tensor] = field(default_factory=dict)
    """The columns that the explorer declared, as they were when the action was taken."""
    action_masks: Tensor | None = None
    """What was allowed [B, M]; None where everything is."""
    next_action_masks: Tensor | None = None
    """What the successor allows [B, M]."""

    def __len__(self) -> int:
        return len(self.actions)


class ReplayBuffer:
    """The newest `capacity` transitions of `num_envs` environments, in the order they were finished.

    Per step: `record_action`, then `record_outcome`. With `frame_stack` K the plain observation is a stack [K * C, ...]
    of that many frames, oldest first, and each frame is kept once. Memory is taken when it is first needed.
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
        allocate: Allocator = np.zeros,
    ) -> None:
        """`obs_shape` and `obs_dtype` (NumPy types) are mappings for Dict observations."""
        if capacity < 1 or num_envs < 1:
            raise ValueError(f"capacity and num_envs must be positive, got {capacity} and {num_envs}")
        self.capacity, self.num_envs = capacity, num_envs
        self.total_rows = self.kept_rows = 0
        seen = shaped_columns(obs_shape, obs_dtype)
        self.frames: FrameStore | None = None
        if frame_stack is not None:
            waiting = num_envs * (frame_stack + n_step)
            self.frames = frame_store(seen, frame_stack, num_envs=num_envs, num_rows=capacity + waiting)
            seen = {**seen, "": Column("obs", (frame_stack,), np.int64)}
        self._obs_keys = list(seen)
        self._extra = [column.name for column in extra]
        self.columns = (
            *seen.values(),
            *[replace(column, name=field_name("next_obs", key)) for key, column in seen.items()],
            Column("actions", action_shape, action_dtype),
            Column("rewards"),
            Column("discounts"),
            *extra,
        )
        self.dtype = np.dtype(
            [(column.name, column.type, column.shape) for column in self.columns], align=True
        )
        self.window: Accumulator = NStepWindow(self.dtype, n=n_step, gamma=gamma, num_envs=num_envs)
        self.prioritized = prioritized
        self.sampler = make_sampler(capacity, priority_alpha if prioritized else None)
        self._rows: Array | None = None
        self._allocate, self._bytes = allocate, np.dtype((np.void, self.dtype.itemsize))
        self._opened = dict[str, Array]()  # what a step hands to the window
        self._followed = dict[str, Array]()

    @classmethod
    def for_spaces(
        cls,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        capacity: int,
        num_envs: int,
        **settings: Any,
    ) -> "ReplayBuffer":
        """Return a buffer with the shapes and types of the spaces; nested entries under keys such as `a/b`."""
        seen = observation_columns(observation_space)
        action = action_column(action_space)
        return cls(
            capacity=capacity,
            num_envs=num_envs,
            obs_shape={key: column.shape for key, column in seen.items()},
            obs_dtype={key: column.type for key, column in seen.items()},
            action_shape=action.shape,
            action_dtype=action.type,
            **settings,
        )

    def __len__(self) -> int:
        return self.kept_rows

    @property
    def nbytes(self) -> int:
        """Memory of the full buffer; very short episodes of stacked images take up to twice as much."""
        frames = 0 if self.frames is None else self.frames.nbytes
        return self.capacity * self.dtype.itemsize + self.sampler.nbytes + frames

    @property
    def drawn_bytes(self) -> int:
        """Memory of one drawn row, whose stacks are whole again."""
        stacks = 0 if self.frames is None else 2 * self.frames.stack_size * self.frames.frame_bytes
        return self.dtype.itemsize + stacks

    @property
    def rows(self) -> Array:
        """The ring [capacity] of structured rows, allocated when first used."""
        if self._rows is None:
            self._rows = self._allocate((self.capacity,), self.dtype)
        return self._rows

    def record_action(self, obs: ObsArray, actions: Array, extra: Mapping[str, Array] | None = None) -> None:
        """Copy what was seen [N, ...] and done [N, ...], before the environments overwrite it."""
        values = self._opened
        self._encode("obs", obs, values)
        values["actions"] = actions
        if extra:
            values.update(extra)
        self.window.begin(values)

    def record_outcome(self, step: StepArrays) -> None:
        """Copy what came of it; transitions whose n rewards are complete, or whose episode ended, enter the ring."""
        self._encode("next_obs", _successors(step), self._followed)
        over, ended = step.terminated, step.ended
        if step.any_cut:
            # for what came before, a cut is an end of the task; its successor is an observation like any other
            over, ended = over | step.cut, ended | step.cut
        finished = self.window.complete(step.signal, over, ended, step.valid, self._followed)
        if len(finished):
            self.add(finished)
        self._drop_unneeded_frames()

    def add(self, rows: Array) -> None:
        """Append structured rows [k], of which the newest `capacity` are kept."""
        rows = rows[-self.capacity :]
        count, start = len(rows), self.total_rows % self.capacity
        # as mere bytes: copying a row field by field takes ten times as long
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
        """Drop the unfinished transitions of environments whose episode will not go on."""
        self.window.forget(envs)

    def _encode(self, kind: str, obs: ObsArray, into: dict[str, Array]) -> None:
        """Put the fields of an observation [N, ...] into `into`."""
        if isinstance(obs, dict):
            for key, array in obs.items():
                into[field_name(kind, key)] = array
        else:
            into[kind] = obs
        if self.frames is not None:
            into[kind] = self.frames.numbers_of(into[kind], moved_on=kind == "next_obs")

    def _decoded(self, kind: str, rows: Array) -> tuple[Obs, Tensor | None]:
        """Return observations and masks."""
        parts = {key: torch.from_numpy(rows[field_name(kind, key)]) for key in self._obs_keys}
        if self.frames is not None:
            parts[""] = torch.from_numpy(self.frames.stacks(rows[kind]))
        return split_mask(joined(parts))

    def _drop_unneeded_frames(self) -> None:
        """Make room for frames, between two steps: those of rows that are kept or wait are needed, no others."""
        oldest_row = self.total_rows - self.kept_rows
        if self.frames is not None and self.frames.has_unneeded(oldest_row):
            self.frames.drop_unneeded(oldest_row, self.window.waiting()["obs"][:, 0])

    # ------------------------------------------------------------------------------------------ checkpoints

    @property
    def storages(self) -> dict[str, Any]:
        """What is saved in segments: each checkpoint writes only the rows that are new."""
        return {"transitions": self} if self.frames is None else {"transitions": self, "frames": self.frames}

    def read_rows(self, start: int, stop: int) -> dict[str, Tensor]:
        """Return rows by absolute number, column by column."""
        rows = self.rows.take(np.arange(start, stop) % self.capacity)
        return {name: torch.from_numpy(np.ascontiguousarray(rows[name])) for name in self.dtype.names or ()}

    def restore_rows(self, start: int, rows: Mapping[str, Tensor], total_rows: int) -> None:
        """Put rows back under their absolute numbers."""
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
        """Return everything but the rows: counters, waiting transitions, priorities."""
        return {
            "total_rows": self.total_rows,
            "kept_rows": self.kept_rows,
            "window": self.window.state_dict(),
            "sampler": self.sampler.state_dict(),
            "frames": {} if self.frames is None else self.frames.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore it, after the rows."""
        if int(state["total_rows"]) != self.total_rows:
            raise ValueError(f"{state['total_rows']} rows were saved, {self.total_rows} were read back")
        self.kept_rows = min(int(state["kept_rows"]), self.kept_rows)
        self.window.load_state_dict(state["window"])
        self.sampler.load_state_dict(state["sampler"])
        if self.frames is not None:
            self.frames.load_state_dict(state["frames"])
            self._restore_needs(self.frames)

    def _restore_needs(self, frames: FrameStore) -> None:
        """Note which frames the rows need; raise if one of those is not there."""
        oldest_row = self.total_rows - self.kept_rows
        kept = self.rows[np.arange(oldest_row, self.total_rows) % self.capacity]
        for rows in (kept, self.window.waiting()):
            frames.refuse_missing(rows["obs"])
        frames.refuse_missing(kept["next_obs"])
        frames.rows_need(kept["obs"][:, 0], oldest_row)
        self._drop_unneeded_frames()


def _successors(step: StepArrays) -> ObsArray:
    """Return what really followed the actions [N, ...]: the final observation where an episode ended."""
    if not step.any_ended:
        return step.obs
    found = {}
    for key, array in leaves(step.obs):
        final = step.final_obs[key] if isinstance(step.final_obs, dict) else step.final_obs
        mask = step.ended.reshape(-1, *[1] * (array.ndim - 1))
        found[key] = np.where(mask, final, array)
    return joined(found)
