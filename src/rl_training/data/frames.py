"""Stacked images with each frame kept once.

A transition of four stacked frames and its successor hold eight frames, of which only one is new. Rows of the replay
buffer keep the numbers of their frames instead, so stacks are rebuilt exactly as they were seen: nothing can cross an
episode's end, and whatever padding the environment uses after a reset is preserved.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from rl_training.core.types import Array, State


class FrameStore:
    """A ring of frames [capacity, ...]; a stack [K, ...] of environment i becomes K frame numbers that never repeat.

    A stack that continues the last one of its environment by one frame costs one frame; any other is stored whole,
    with equal neighbours (the padding after a reset) stored once.
    """

    def __init__(
        self, capacity: int, *, num_envs: int, stack_shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> None:
        self.capacity = capacity
        self.stack_size = stack_shape[0]
        self.shape, self.dtype = stack_shape[1:], dtype
        self.total_rows = 0
        # the oldest frame that was put back: a store may have room for more than there was
        self._first_restored = 0
        self.numbers = np.zeros((num_envs, self.stack_size), np.int64)
        self.known = np.zeros(num_envs, bool)  # whether `numbers` is the stack the environment shows
        self._stacks = np.zeros((num_envs, *stack_shape), dtype)
        self._frames: Array | None = None

    @property
    def nbytes(self) -> int:
        """Memory of the full ring."""
        return self.capacity * int(np.prod(self.shape)) * self.dtype.itemsize

    @property
    def frames(self) -> Array:
        """The ring, allocated when first used."""
        if self._frames is None:
            self._frames = np.zeros((self.capacity, *self.shape), self.dtype)
        return self._frames

    @property
    def kept_rows(self) -> int:
        """How many of the newest frames are still there."""
        return self.total_rows - self.first_alive

    @property
    def first_alive(self) -> int:
        """The oldest frame number that is still there."""
        return max(self.total_rows - self.capacity, self._first_restored)

    def numbers_of(self, stacks: Array) -> Array:
        """Store what is new in stacks [N, K, ...] and return their frame numbers [N, K]."""
        for env, stack in enumerate(stacks):
            before = self._stacks[env]
            shared = self.known[env] and self.numbers[env].min() >= self.first_alive
            if shared and np.array_equal(stack, before):
                continue
            if shared and np.array_equal(stack[:-1], before[1:]):
                self.numbers[env, :-1] = self.numbers[env, 1:]
                self.numbers[env, -1] = self._append(stack[-1])
            else:
                for place in range(self.stack_size):
                    repeated = place > 0 and np.array_equal(stack[place], stack[place - 1])
                    self.numbers[env, place] = (
                        self.numbers[env, place - 1] if repeated else self._append(stack[place])
                    )
            self.known[env] = True
            before[...] = stack
        return self.numbers

    def stacks(self, numbers: Array) -> Array:
        """Return the stacks [B, K, ...] of frame numbers [B, K]."""
        return self.frames.take(numbers % self.capacity, axis=0)

    def _append(self, frame: Array) -> int:
        number = self.total_rows
        self.frames[number % self.capacity] = frame
        self.total_rows += 1
        return number

    def read_rows(self, start: int, stop: int) -> dict[str, Tensor]:
        """Return frames by number, copied."""
        return {"frames": torch.from_numpy(self.frames.take(np.arange(start, stop) % self.capacity, axis=0))}

    def restore_rows(self, start: int, rows: Mapping[str, Tensor], total_rows: int) -> None:
        """Put frames back under their numbers."""
        frames = rows["frames"].numpy()
        if frames.shape[1:] != self.shape or frames.dtype != self.dtype:
            raise ValueError("column 'frames' has another shape or type")
        first = max(start, total_rows - self.capacity)
        if start != self.total_rows:  # the first segment; each of the others follows the one before
            self._first_restored = first
        self.frames[np.arange(first, total_rows) % self.capacity] = frames[first - start :]
        self.total_rows = total_rows

    def state_dict(self) -> State:
        """Return which stacks the environments show; the frames themselves are saved in segments."""
        return {
            "numbers": torch.from_numpy(self.numbers.copy()),
            "known": torch.from_numpy(self.known.copy()),
            "stacks": torch.from_numpy(self._stacks.copy()),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore them; those of another number of environments are dropped."""
        if len(state["known"]) == len(self.known):
            self.numbers[:] = state["numbers"].numpy()
            self.known[:] = state["known"].numpy()
            self._stacks[:] = state["stacks"].numpy()
