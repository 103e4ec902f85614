"""How rows of a replay buffer are drawn: uniformly, or by priority with a sum tree."""

from typing import Protocol

import numpy as np
import torch

from rl_training.core.types import Array, State

FANOUT = 32
MAX_ROOT = 4096


class Sampler(Protocol):
    """Draws ring positions; `start` is the oldest of `kept` rows, the newest follow it around the ring."""

    def added(self, positions: Array) -> None: ...
    def removed(self, positions: Array) -> None: ...
    def draw(
        self, count: int, rng: np.random.Generator, *, start: int, kept: int, beta: float
    ) -> tuple[Array, Array | None]: ...
    def update(self, positions: Array, errors: Array) -> None: ...
    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


class UniformSampler:
    """Every row is equally likely, with replacement."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    def added(self, positions: Array) -> None:
        """Nothing to note."""

    def removed(self, positions: Array) -> None:
        """Nothing to note."""

    def draw(
        self, count: int, rng: np.random.Generator, *, start: int, kept: int, beta: float
    ) -> tuple[Array, None]:
        """Return positions [count]; all weights are 1, so there are none."""
        positions = rng.integers(0, kept, count)
        if start and kept < self.capacity:
            positions = (positions + start) % self.capacity
        return positions, None

    def update(self, positions: Array, errors: Array) -> None:
        """Nothing to note."""

    def state_dict(self) -> State:
        """There is no state."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """There is no state."""


class PrioritizedSampler:
    """Prioritised replay, arXiv:1511.05952, proportional variant, with stratified draws.

    A row's probability is proportional to (|error| + epsilon)^alpha; a new row has the largest priority so far, so it
    is soon seen once. The weight (1 / (rows * probability))^beta undoes the bias, scaled by the largest of the batch.
    """

    def __init__(self, capacity: int, *, alpha: float = 0.6, epsilon: float = 1e-6) -> None:
        self.alpha, self.epsilon = alpha, epsilon
        self.tree = SumTree(capacity)
        self.max_priority = 1.0

    def added(self, positions: Array) -> None:
        """Give new rows the largest priority so far."""
        self.tree.set(positions, np.full(len(positions), self.max_priority))

    def removed(self, positions: Array) -> None:
        """Rows that are no longer whole are never drawn."""
        self.tree.set(positions, np.zeros(len(positions)))

    def draw(
        self, count: int, rng: np.random.Generator, *, start: int, kept: int, beta: float
    ) -> tuple[Array, Array]:
        """Return positions [count] and importance weights [count], the largest of which is 1."""
        top = self.tree.top.cumsum()
        total = top[-1]
        positions = self.tree.find((np.arange(count) + rng.random(count)) * (total / count), top)
        # in float32, which is what the loss is in: the power is the most expensive part of a draw
        weights: Array = (self.tree.leaves.take(positions) * (kept / total)).astype(np.float32) ** -beta
        weights /= weights.max()
        return positions, weights

    def update(self, positions: Array, errors: Array) -> None:
        """Set the priorities of rows by their absolute errors."""
        priorities = (np.abs(errors, dtype=np.float64) + self.epsilon) ** self.alpha
        self.max_priority = max(self.max_priority, float(priorities.max()))
        self.tree.set(positions, priorities)

    def state_dict(self) -> State:
        """Return the priorities whole: they change all over the buffer between two checkpoints."""
        return {"priorities": torch.from_numpy(self.tree.leaves.copy()), "max_priority": self.max_priority}

    def load_state_dict(self, state: State) -> None:
        """Restore them; the sums follow from the leaves, bit for bit."""
        self.max_priority = float(state["max_priority"])
        self.tree.load(state["priorities"].numpy())


class SumTree:
    """Sums of `capacity` leaves in levels of 32, so that a draw of a whole batch is a few vectorised steps.

    Beside each level lie the running sums within its groups of 32 siblings. They are recomputed from the leaves, never
    adjusted by a difference: errors do not pile up, and all sums are a function of the leaves alone. The top level has
    at most 4096 nodes and is searched by its cumulative sum.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        sizes = [capacity]
        while sizes[-1] > MAX_ROOT or len(sizes) == 1:
            sizes.append(-(-sizes[-1] // FANOUT))
        # every level but the top is padded to whole groups of siblings
        self.groups = [np.zeros((-(-size // FANOUT), FANOUT)) for size in sizes[:-1]]
        self.running = [np.zeros_like(group) for group in self.groups]
        self.top = np.zeros(sizes[-1])

    @property
    def leaves(self) -> Array:
        """The values [capacity]; change them with `set`."""
        leaves: Array = self.groups[0].reshape(-1)[: self.capacity]
        return leaves

    @property
    def total(self) -> float:
        """The sum of all leaves."""
        return float(self.top.sum())

    def set(self, index: Array, values: Array) -> None:
        """Assign leaves and renew the sums above them; of equal indices the last one counts."""
        self.leaves[index] = values
        for level, (group, running) in enumerate(zip(self.groups, self.running, strict=True)):
            index = index // FANOUT
            sums = group.take(index, axis=0).cumsum(axis=1)
            running[index] = sums
            self._parents(level)[index] = sums[:, -1]

    def load(self, leaves: Array) -> None:
        """Replace all leaves."""
        self.leaves[:] = leaves
        for level, (group, running) in enumerate(zip(self.groups, self.running, strict=True)):
            np.cumsum(group, axis=1, out=running)
            self._parents(level)[: len(group)] = running[:, -1]

    def find(self, sums: Array, top: Array | None = None) -> Array:
        """Return for each number in [0, total) the leaf at which the running sum passes it; never an empty leaf.

        `top` is the cumulative sum of the top level, if it is at hand.
        """
        top = self.top.cumsum() if top is None else top
        # below the last sum, as rounding may reach it; then some node's running sum is always larger
        rest = np.minimum(sums, np.nextafter(top[-1], 0.0))
        node: Array = top.searchsorted(rest, side="right")
        before: Array = top
        values: Array = self.top
        for group, running in zip(reversed(self.groups), reversed(self.running), strict=True):
            rest -= before.take(node) - values.take(node)
            siblings = running.take(node, axis=0)
            # differences of sums may round to just outside of the node
            np.minimum(rest, np.nextafter(siblings[:, -1], 0.0), out=rest)
            np.maximum(rest, 0.0, out=rest)
            node = node * FANOUT + (siblings > rest[:, None]).argmax(axis=1)
            before, values = running, group
        return node

    def _parents(self, level: int) -> Array:
        """Return the nodes above a level, flat."""
        nodes: Array = self.top if level + 1 == len(self.groups) else self.groups[level + 1].reshape(-1)
        return nodes
