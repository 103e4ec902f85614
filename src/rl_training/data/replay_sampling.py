"""Samplers of replay buffer rows: uniform, or by priority with a sum tree."""

from functools import cached_property

import numpy as np
import torch

from rl_training.core.spaces.layout import float_dtype
from rl_training.core.types import Array, State

FANOUT = 16
MAX_ROOT = 4096
UNITS = 2**24


class UniformSampler:
    """Draws ring positions uniformly, with replacement; it has no state."""

    nbytes = 0

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    def added(self, positions: Array) -> None: ...

    def draw(
        self, count: int, rng: np.random.Generator, *, start: int, kept: int, beta: float
    ) -> tuple[Array, None]:
        """Return positions [count], and no weights; `start` is the oldest of the `kept` rows in the ring."""
        positions = rng.integers(0, kept, count)
        if start and kept < self.capacity:
            positions = (positions + start) % self.capacity
        return positions, None

    def update(self, positions: Array, errors: Array) -> None: ...

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None: ...


class PrioritizedSampler:
    """Prioritised replay, arXiv:1511.05952, proportional variant, with stratified draws.

    A row's probability is proportional to (|error| + epsilon)^alpha; a new row has the largest priority so far, so it
    is soon sampled. The weight (1 / (rows * probability))^beta corrects the bias, divided by the largest of the batch.
    Priorities are stored as integer multiples of 2^-24, so that their sums are exact.
    """

    def __init__(self, capacity: int, *, alpha: float = 0.6, epsilon: float = 1e-6) -> None:
        self.capacity, self.alpha, self.epsilon = capacity, alpha, epsilon
        self.max_priority = UNITS
        # so that no sum can overflow: a priority of 260,000 for a million rows
        self._limit = 2.0**62 / capacity

    @cached_property
    def tree(self) -> "SumTree":
        """The priorities, allocated when first used."""
        return SumTree(self.capacity)

    @property
    def nbytes(self) -> int:
        """Memory of the tree: two numbers per leaf, and the levels above."""
        return 16 * self.capacity * FANOUT // (FANOUT - 1)

    def added(self, positions: Array) -> None:
        """Give new rows the largest priority so far."""
        self.tree.set(positions, np.full(len(positions), self.max_priority))

    def draw(
        self, count: int, rng: np.random.Generator, *, start: int, kept: int, beta: float
    ) -> tuple[Array, Array]:
        """Return positions [count] and importance weights [count], the largest of which is 1."""
        top = self.tree.top.cumsum()
        total = int(top[-1])
        numbers = ((np.arange(count) + rng.random(count)) * (total / count)).astype(np.int64)
        np.minimum(numbers, total - 1, out=numbers)  # the product may round up to the total
        positions = self.tree.find(numbers, top)
        # in the type of the loss, usually float32: the power is the most expensive part
        weights: Array = (self.tree.leaves.take(positions) * (kept / total)).astype(float_dtype()) ** -beta
        weights /= weights.max()
        return positions, weights

    def update(self, positions: Array, errors: Array) -> None:
        """Set the priorities of rows by their absolute errors; nan counts as 0."""
        priorities = (np.abs(errors) + self.epsilon) ** self.alpha * UNITS
        units = np.fmin(np.fmax(priorities, 1.0), self._limit).astype(np.int64)
        self.max_priority = max(self.max_priority, int(units.max()))
        self.tree.set(positions, units)

    def state_dict(self) -> State:
        """Return all priorities: they change throughout the buffer between two checkpoints."""
        return {"priorities": torch.from_numpy(self.tree.leaves.copy()), "max_priority": self.max_priority}

    def load_state_dict(self, state: State) -> None:
        """Restore the priorities and recompute the sums."""
        priorities = state["priorities"].numpy()
        if priorities.dtype != np.int64 or priorities.min(initial=0) < 0:
            raise ValueError("the priorities of the replay buffer are not whole numbers of 0 or more")
        self.max_priority = int(state["max_priority"])
        self.tree.load(priorities)


class SumTree:
    """Sums of `capacity` integers in levels of 16, so that sampling a batch takes a few vectorised steps.

    Each level also has the running sums within its groups of 16 siblings. The top level has at most 4096 nodes and is
    searched by its cumulative sum. Sums of integers are exact, so no draw can hit an empty leaf.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        sizes = [capacity]
        while sizes[-1] > MAX_ROOT or len(sizes) == 1:
            sizes.append(-(-sizes[-1] // FANOUT))
        # every level but the top is padded to whole groups of siblings
        self.groups = [np.zeros((-(-size // FANOUT), FANOUT), np.int64) for size in sizes[:-1]]
        self.running = [np.zeros(group.shape, np.int64) for group in self.groups]
        self.top = np.zeros(sizes[-1], np.int64)

    @property
    def leaves(self) -> Array:
        """The values [capacity]; change them with `set`."""
        leaves: Array = self.groups[0].reshape(-1)[: self.capacity]
        return leaves

    @property
    def total(self) -> int:
        return int(self.top.sum())

    def set(self, index: Array, values: Array) -> None:
        """Assign leaves and update the sums above them; of equal indices, the last one wins."""
        self.leaves[index] = values
        for level, (group, running) in enumerate(zip(self.groups, self.running, strict=True)):
            index = index // FANOUT
            sums = group.take(index, axis=0).cumsum(axis=1)
            running[index] = sums
            self._parents(level)[index] = sums[:, -1]

    def load(self, leaves: Array) -> None:
        self.leaves[:] = leaves
        for level, (group, running) in enumerate(zip(self.groups, self.running, strict=True)):
            np.cumsum(group, axis=1, out=running)
            self._parents(level)[: len(group)] = running[:, -1]

    def find(self, numbers: Array, top: Array | None = None) -> Array:
        """Return for each integer in [0, total) the leaf at which the running sum exceeds it.

        `top` is the cumulative sum of the top level, if it is already computed.
        """
        before: Array = self.top.cumsum() if top is None else top
        values: Array = self.top
        node: Array = before.searchsorted(numbers, side="right")
        rest = numbers
        for group, running in zip(reversed(self.groups), reversed(self.running), strict=True):
            rest = rest - before.take(node) + values.take(node)  # the remainder within the node
            node = node * FANOUT + (running.take(node, axis=0) > rest[:, None]).argmax(axis=1)
            before, values = running, group
        return node

    def _parents(self, level: int) -> Array:
        nodes: Array = self.top if level + 1 == len(self.groups) else self.groups[level + 1].reshape(-1)
        return nodes
