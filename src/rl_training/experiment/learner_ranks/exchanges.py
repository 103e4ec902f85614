"""Exchanges between ranks of one machine, by shared memory."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from rl_training.algorithms.shards import Exchange, Fill
from rl_training.core.errors import UserError
from rl_training.core.shares import shares
from rl_training.core.types import Array
from rl_training.experiment.learner_ranks.memory import Board, SharedBlock, fence

SPINS = 2_000
"""How often a rank looks at a counter before it sleeps: about 0.1 ms."""
PAUSE = 2e-5
"""Seconds of sleep between looks after that."""
LOOK_EVERY = 0.01
"""Seconds between looks at the process that computes a shard."""


class RankExchange(Exchange, Protocol):
    """An exchange between ranks: `begin` comes before every update.

    `sequence` is the number of exchanges before the update, and `shards` are those that this rank computes.
    """

    def begin(self, sequence: int, shards: Sequence[int]) -> None: ...


class SharedMemoryExchange:
    """Writes rows of shards to shared memory, and waits for those of other ranks.

    Two arrays of rows take turns: a rank that writes the next one has read the one before, as have all others.
    """

    def __init__(
        self, rows: SharedBlock, board: Board, count: int, absent: Callable[[int, float], bool]
    ) -> None:
        """`absent(shard, seconds)` says, after some seconds, that nobody else will compute a shard."""
        self._rows, self._board, self.count, self._absent = rows, board, count, absent
        self.sequence, self.capacity = 0, 0
        self._own: set[int] = set(range(count))

    def begin(self, sequence: int, shards: Sequence[int]) -> None:
        self.sequence, self._own = sequence, set(shards)

    def reserve(self, width: int, itemsize: int) -> int:
        """Make room for rows of this width; return the bytes of one array of rows. Only rank 0 calls it."""
        self.capacity = max(self.capacity, self.count * width * itemsize)
        self._rows.reserve(2 * self.capacity)
        return self.capacity

    def complete(self, width: int, dtype: np.dtype[Any], fill: Fill) -> Array:
        self.sequence += 1
        if self.count * width * dtype.itemsize > self.capacity:
            raise UserError(
                "an update computes gradients of more rows than its batch has, or of an optimizer that is not in the "
                "learner's owners; set num_learners to 1"
            )
        offset = self.capacity * (self.sequence % 2)
        rows = self._rows.array(offset, (self.count, width), dtype)
        for shard in sorted(self._own):
            self._fill(shard, rows, fill)
        for shard in range(self.count):
            if shard not in self._own and not self._arrived(shard):
                self._own.add(shard)
                if self._board.ready[shard] < self.sequence:  # others may be reading a row that is complete
                    self._fill(shard, rows, fill)
        fence()
        return rows

    def _fill(self, shard: int, rows: Array, fill: Fill) -> None:
        fill(shard, rows[shard])
        fence()
        self._board.ready[shard] = self.sequence

    def _arrived(self, shard: int) -> bool:
        """Wait for a shard; return whether another rank has computed it."""
        ready, goal = self._board.ready, self.sequence
        for _ in range(SPINS):
            if ready[shard] >= goal:
                return True
        started = looked = time.monotonic()
        while ready[shard] < goal:
            time.sleep(PAUSE)
            now = time.monotonic()
            if now - looked > LOOK_EVERY:
                looked = now
                if self._absent(shard, now - started):
                    return False
        return True


def shards_of(rank: int, ranks: int, count: int) -> range:
    """Return the shards of a rank: as even as possible, the larger ones first."""
    return shares(count, ranks)[rank]
