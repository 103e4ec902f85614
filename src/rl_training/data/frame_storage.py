"""Stacked images with each frame stored once, as long as a transition needs it.

A transition of four stacked frames and its successor hold eight frames, of which only one is new. Rows of the replay
buffer store the numbers of their frames instead, so stacks are restored exactly: they never cross the end of an
episode, and keep the environment's padding after a reset.

The number of frames in a full buffer depends on its episodes: one of L transitions has L + 1 frames. So frames are
stored in chunks, not in a ring of fixed size. A chunk is reused when no stored, waiting or future row can need it.
Within one environment frame numbers never decrease, so the oldest frame of a row is the first of its observation, and
later rows need no older one.
"""

import heapq
import sys
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from rl_training.core.columns import Column
from rl_training.core.types import Array, State

MAX_CHUNK = 256
USUAL_LENGTH = 64
"""Episodes of fewer transitions need more memory than `nbytes`."""


class FrameStore:
    """Frames by number; a stack [K * C, ...] of environment i becomes K frame numbers that never repeat.

    A stack that continues the last one of its environment by one frame costs one frame; any other is stored whole,
    with equal neighbours (the padding after a reset) stored once. Memory is allocated on demand, without a limit;
    `usual` is the number of frames that are usually needed at a time.
    """

    capacity = sys.maxsize

    def __init__(
        self,
        usual: int,
        *,
        num_envs: int,
        stack_size: int,
        stack_shape: tuple[int, ...],
        dtype: np.dtype[np.generic],
    ) -> None:
        self.usual, self.stack_size = usual, stack_size
        self.stack_shape, self.dtype = stack_shape, dtype
        self.shape = (stack_shape[0] // stack_size, *stack_shape[1:])
        self.frame_bytes = int(np.prod(self.shape)) * dtype.itemsize
        self.total_rows = 0
        self.first_alive = 0
        """The oldest frame number that is still stored."""
        self.numbers = np.zeros((num_envs, stack_size), np.int64)
        self.known = np.zeros(num_envs, bool)
        """Whether `numbers` is the current stack of the environment."""
        self._shown = [b""] * num_envs
        # small for small buffers, so that few frames are kept unnecessarily
        self.chunk = min(usual // 32 + 1, MAX_CHUNK)
        # arrays of equal length, whose pages are allocated when written; one is enough for usual episodes
        self._slabs: list[Array] = []
        self._slab_frames = (usual // self.chunk + 1) * self.chunk
        # chunks in use, oldest first: the place of each, and the newest row whose oldest frame is in it
        self._places = np.zeros(0, np.int64)
        self._last_rows = np.zeros(0, np.int64)
        self._newest: Array = np.zeros(0)  # the last of them [chunk, ...]
        self._free: list[int] = []

    @property
    def nbytes(self) -> int:
        return self._slab_frames * self.frame_bytes

    @property
    def kept_rows(self) -> int:
        return self.total_rows - self.first_alive

    def numbers_of(self, stacks: Array, *, moved_on: bool) -> Array:
        """Store the new frames of stacks [N, K * C, ...] and return their frame numbers [N, K].

        After a step (`moved_on`) each stack has a new frame, even if it equals the last one: otherwise a still picture
        would keep its old number, and no later frame could be dropped.
        """
        for env, stack in enumerate(stacks):
            # comparing bytes is fastest, and distinguishes -0.0 from 0.0
            content, before = stack.tobytes(), self._shown[env]
            if self.known[env] and not moved_on and content == before:
                continue
            frames = stack.reshape(self.stack_size, *self.shape)
            if self.known[env] and content.startswith(memoryview(before)[self.frame_bytes :]):
                self.numbers[env, :-1] = self.numbers[env, 1:]
                self.numbers[env, -1] = self._append(frames[-1:])
            else:
                self._store_whole(env, frames)
            self.known[env], self._shown[env] = True, content
        return self.numbers

    def stacks(self, numbers: Array) -> Array:
        """Return the stacks [..., K * C, ...] of frame numbers [..., K]."""
        return self._frames(numbers).reshape(*numbers.shape[:-1], *self.stack_shape)

    def rows_need(self, oldest: Array, first_row: int) -> None:
        """Note the oldest frames [k] of the rows that are numbered from `first_row`."""
        rows = np.arange(first_row, first_row + len(oldest))
        np.maximum.at(self._last_rows, oldest // self.chunk - self._first_chunk, rows)

    def has_unneeded(self, oldest_row: int) -> bool:
        """Return whether no row from `oldest_row` on needs the oldest chunk."""
        return len(self._last_rows) > 0 and bool(self._last_rows[0] < oldest_row)

    def drop_unneeded(self, oldest_row: int, waiting: Array) -> None:
        """Free the chunks that no row from `oldest_row` on, no frame `waiting` [k] and no current stack needs."""
        shown = self.numbers[self.known, 0]
        oldest = min(waiting.min(initial=self.total_rows), shown.min(initial=self.total_rows))
        while self.has_unneeded(oldest_row) and self._first_chunk < oldest // self.chunk:
            heapq.heappush(self._free, int(self._places[0]))
            self.first_alive = (self._first_chunk + 1) * self.chunk
            self._places, self._last_rows = self._places[1:], self._last_rows[1:]

    @property
    def _first_chunk(self) -> int:
        return self.first_alive // self.chunk

    def _store_whole(self, env: int, frames: Array) -> None:
        for place in range(self.stack_size):
            if place and frames[place].tobytes() == frames[place - 1].tobytes():
                self.numbers[env, place] = self.numbers[env, place - 1]
            else:
                self.numbers[env, place] = self._append(frames[place : place + 1])

    def _append(self, frames: Array) -> int:
        """Store frames [k, ...] and return the number of the first."""
        first = self.total_rows
        while len(frames):
            begun = self.total_rows % self.chunk
            if begun == 0 or not len(self._places):
                self._begin_chunk()
            count = min(self.chunk - begun, len(frames))
            self._newest[begun : begun + count] = frames[:count]
            frames = frames[count:]
            self.total_rows += count
        return first

    def _begin_chunk(self) -> None:
        """Use the lowest free place, which touches as few pages as possible."""
        if not self._free:
            per_slab = self._slab_frames // self.chunk
            self._free = [len(self._slabs) * per_slab + place for place in range(per_slab)]
            self._slabs.append(np.zeros((self._slab_frames, *self.shape), self.dtype))
        place = heapq.heappop(self._free)
        slab, start = divmod(place * self.chunk, self._slab_frames)
        self._newest = self._slabs[slab][start : start + self.chunk]
        self._places = np.append(self._places, place)
        self._last_rows = np.append(self._last_rows, -1)

    def _frames(self, numbers: Array) -> Array:
        chunks = self._places[numbers // self.chunk - self._first_chunk]
        places = chunks * self.chunk + numbers % self.chunk
        if len(self._slabs) == 1:
            found: Array = self._slabs[0].take(places, axis=0)
            return found
        found = np.empty((*numbers.shape, *self.shape), self.dtype)
        for number, slab in enumerate(self._slabs):
            here = places // self._slab_frames == number
            found[here] = slab.take(places[here] % self._slab_frames, axis=0)
        return found

    # ------------------------------------------------------------------------------------------ checkpoints

    def read_rows(self, start: int, stop: int) -> dict[str, Tensor]:
        """Return frames by number, copied."""
        return {"frames": torch.from_numpy(self._frames(np.arange(start, stop)))}

    def restore_rows(self, start: int, rows: Mapping[str, Tensor], total_rows: int) -> None:
        """Restore frames under their numbers; each call continues after the previous one."""
        frames = rows["frames"].numpy()
        if frames.shape[1:] != self.shape or frames.dtype != self.dtype:
            raise ValueError("column 'frames' has another shape or type")
        if not len(self._places):
            self.first_alive = self.total_rows = start
        self._append(frames)

    def state_dict(self) -> State:
        """Return the current stacks of the environments; the frames themselves are saved in segments."""
        arrays = {"numbers": self.numbers, "known": self.known}
        return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}

    def load_state_dict(self, state: State) -> None:
        """Restore them, after the frames; those of another number of environments are ignored."""
        if len(state["known"]) != len(self.known):
            return
        self.known[:] = state["known"].numpy()
        self.numbers[:] = state["numbers"].numpy()
        self.refuse_missing(self.numbers[self.known])
        for env in np.flatnonzero(self.known):
            self._shown[env] = self.stacks(self.numbers[env]).tobytes()

    def refuse_missing(self, numbers: Array) -> None:
        """Raise an error if one of the frames [...] is not stored."""
        if ((numbers < self.first_alive) | (numbers >= self.total_rows)).any():
            raise ValueError(
                f"frames {numbers.min()} to {numbers.max()} are needed, "
                f"{self.first_alive} to {self.total_rows - 1} are there"
            )


def frame_store(seen: Mapping[str, Column], stack_size: int, *, num_envs: int, num_rows: int) -> FrameStore:
    """Return a store for `num_rows` stacks of the plain observation in the columns `seen`."""
    column = seen.get("")
    if column is None or len(column.shape) < 2 or column.shape[0] % stack_size:
        found = {key: entry.shape for key, entry in seen.items()} if column is None else column.shape
        raise ValueError(
            f"frame_stack is {stack_size}, but observations have shape {found}; "
            "it must divide the first axis of a plain observation"
        )
    usual = num_rows + num_rows // USUAL_LENGTH
    shape, dtype = column.shape, column.type
    return FrameStore(usual, num_envs=num_envs, stack_size=stack_size, stack_shape=shape, dtype=dtype)
