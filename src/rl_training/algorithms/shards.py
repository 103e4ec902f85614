"""Shards: a minibatch is divided into fixed slices, whose gradients are added in order before the optimizer's step.

The result depends on the number of shards only. An `Exchange` decides which process computes which of them: all
processes have the same learner and the same batch, exchange the gradients of their shards, and take the same step.
"""

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.optimizers import FlatOptimizer
from rl_training.core.errors import UserError
from rl_training.core.seeding import callers_generators_kept, seed_global_generators
from rl_training.core.shares import shares
from rl_training.core.types import Array, Numbers, StepMetrics

MAX_PARTS = 64
"""Most numbers that a loss may return besides its gradient."""
ERRORS, LOGPROBS = "errors", "/logprobs"
"""Parts of a loss with one number per row, which are concatenated. All others are averaged."""

Fill = Callable[[int, Array], None]
"""Computes one shard and writes its row."""
Pass = Callable[[Any, slice], StepMetrics]
"""A forward and a backward pass for part of a batch, and the place of this part: it writes the gradient of the
optimizer and returns the parts of the loss."""


class Exchange(Protocol):
    """Completes an array with one row per shard: fills the rows of its own shards, receives the others.

    Every process calls it with the same arguments, in the same order. The array is valid until the next call.
    """

    def complete(self, width: int, dtype: np.dtype[Any], fill: Fill) -> Array: ...


class LocalExchange:
    """Computes all shards in this process."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._rows: Array = np.empty((0, 0))

    def complete(self, width: int, dtype: np.dtype[Any], fill: Fill) -> Array:
        if self._rows.shape[1] < width or self._rows.dtype != dtype:
            self._rows = np.empty((self.count, width), dtype)
        for shard in range(self.count):
            fill(shard, self._rows[shard, :width])
        return self._rows[:, :width]


class Whole:
    """No shards: one pass for the whole minibatch."""

    count = 1

    def differentiate(self, optimizer: FlatOptimizer, rows: Any, run: Pass) -> StepMetrics:
        """Write the gradient of the optimizer; return the parts of the loss."""
        return run(rows, slice(None))


WHOLE = Whole()


class Shards:
    """`count` slices of every minibatch, as even as possible, the larger ones first; some are empty if rows are few."""

    def __init__(self, count: int, exchange: Exchange | None = None, *, uses_random: bool = False) -> None:
        """With `uses_random`, a pass may use the global generators, as dropout does: every shard has its own seed."""
        self.count, self.uses_random = count, uses_random
        self.exchange: Exchange = exchange or LocalExchange(count)
        self.used = False
        """Whether a learner has asked for a gradient."""

    def differentiate(self, optimizer: FlatOptimizer, rows: Any, run: Pass) -> StepMetrics:
        """Write the gradient of the optimizer, the sum over the shards; return the parts of the loss.

        A shard counts by its share of the valid rows, so the gradient is that of a mean over all of them.
        """
        self.used = True
        step = _ShardedStep(optimizer, rows, run, self.count, _drawn_seed() if self.uses_random else None)
        with callers_generators_kept() if self.uses_random else contextlib.nullcontext():
            return step.combined(self.exchange.complete(step.width, step.dtype, step.fill))


class _ShardedStep:
    """One gradient: a row per shard of weighted gradient, parts of the loss, and numbers per row of the batch."""

    def __init__(self, optimizer: FlatOptimizer, rows: Any, run: Pass, count: int, seed: int | None) -> None:
        self.optimizer, self.rows, self.run, self.seed = optimizer, rows, run, seed
        self.places = [slice(part.start, part.stop) for part in shares(rows.num_items, count)]
        self.size = len(optimizer.gradient)
        self.dtype = np.dtype(str(optimizer.gradient.dtype).removeprefix("torch."))
        self.end = self.size + MAX_PARTS
        self.width = self.end + self.places[0].stop * (len(rows) // max(rows.num_items, 1))
        self._total = _valid_rows(rows)
        self._parts: StepMetrics | None = None

    def fill(self, shard: int, row: Array) -> None:
        """Compute one shard and write its row."""
        place = self.places[shard]
        if place.start == place.stop:
            row[: self.end] = 0.0
            return
        part = self.rows.part(place)
        if self.seed is not None:
            seed_global_generators(self.seed + shard)
        self._parts = parts = self.run(part, place)
        share = _valid_rows(part) / max(self._total, 1)
        np.multiply(self.optimizer.gradient.cpu().numpy(), self.dtype.type(share), out=row[: self.size])
        numbers = [
            float(value.mean() if getattr(value, "ndim", 0) else value) * share
            for name, value in parts.items()
            if not _is_per_row(name, value)
        ]
        if len(numbers) > MAX_PARTS:
            raise UserError(
                f"a loss returned {len(numbers)} numbers; with learner_shards, use at most {MAX_PARTS}"
            )
        row[self.size : self.end] = 0.0
        row[self.size : self.size + len(numbers)] = numbers
        for name, value in parts.items():
            if _is_per_row(name, value):
                row[self.end : self.end + len(value)] = _array(value)

    def combined(self, found: Array) -> StepMetrics:
        """Write the sum of the gradients; return the parts of the loss of the whole batch."""
        if (
            self._parts is None
        ):  # none of this process's shards has rows: another one tells the names of the parts
            self.fill(0, np.empty(self.width, self.dtype))
        assert self._parts is not None
        self.optimizer.set_gradient([row[: self.size] for row in found])
        numbers = iter(found[:, self.size : self.end].sum(0, dtype=np.float64).tolist())
        return {
            name: self._joined(found, like) if _is_per_row(name, like) else next(numbers)
            for name, like in self._parts.items()
        }

    def _joined(self, found: Array, like: Numbers) -> Numbers:
        per_item = len(self.rows) // self.rows.num_items
        sizes = [(place.stop - place.start) * per_item for place in self.places]
        pieces = [row[self.end : self.end + size] for row, size in zip(found, sizes, strict=True)]
        joined = np.concatenate(pieces)
        return torch.from_numpy(joined).to(like) if isinstance(like, Tensor) else joined.astype(like.dtype)


class ShardedObjective:
    """An objective that runs on the shards of a batch: `forward` runs both passes, as shards follow each other."""

    def __init__(self, objective: Any, optimizer: FlatOptimizer, shards: Shards) -> None:
        """`objective` has `forward(rows, ...)`, which returns the parts of a loss and gradients, and `backward`."""
        self.objective, self._optimizer, self._shards = objective, optimizer, shards

    def __getattr__(self, name: str) -> Any:
        return getattr(self.objective, name)

    def forward(self, rows: Any, *arguments: Any, **settings: Any) -> tuple[StepMetrics, Any]:
        """Return the parts of the loss for a minibatch, and nothing for `backward`."""

        def run(part: Any, _: slice) -> StepMetrics:
            parts, gradients = self.objective.forward(part, *arguments, **settings)
            self.objective.backward(gradients)
            return dict(parts)

        return self._shards.differentiate(self._optimizer, rows, run), None

    def backward(self, gradients: Any) -> None:
        """Do nothing: the gradient has been written."""


def _valid_rows(rows: Any) -> int:
    valid = getattr(rows, "valid", None)
    return len(rows) if valid is None else int(valid.sum())


def _is_per_row(name: str, value: Numbers) -> bool:
    return name in (ERRORS, LOGPROBS) and getattr(value, "ndim", 0) == 1


def _array(value: Numbers) -> Array:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value


def _drawn_seed() -> int:
    return int(torch.randint(2**48, ()))
