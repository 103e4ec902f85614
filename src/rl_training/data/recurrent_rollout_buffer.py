"""Rollouts that are learned from in sequences: equally long, so that nothing is padded."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from rl_training.core.tensor_struct import taken
from rl_training.data.rollout_buffer import RolloutBatch, RolloutBuffer

MEMORY = "memory/"


@dataclass(frozen=True)
class SequenceBatch(RolloutBatch):
    """Rows of a rollout that belong to sequences of equal length L, in which episodes may begin anywhere.

    `extra["episode_starts"]` says where; `valid` masks the rows that do not count.
    """

    sequences: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.int64))
    """The row numbers of each sequence [S, L], in the order of time."""
    memory: dict[str, Tensor] = field(default_factory=dict)
    """What was remembered before the first step of each sequence; parts [S, ...]."""

    def minibatches(self, batch_size: int, rng: np.random.Generator | None) -> Iterator["SequenceBatch"]:
        """Partition the sequences into parts of about `batch_size` rows, shuffled by `rng` if given.

        The rows of a part are in time order: [L * B], all first steps before all second ones.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be positive, got {batch_size}")
        count, length = self.sequences.shape
        order = np.arange(count) if rng is None else rng.permutation(count)
        steps = RolloutBatch(**{part.name: getattr(self, part.name) for part in fields(RolloutBatch)})
        at_once = max(batch_size // length, 1)
        for start in range(0, count, at_once):
            chosen = order[start : start + at_once]
            rows = steps.take(taken(self.sequences, chosen).T.reshape(-1))
            places = np.arange(length * len(chosen)).reshape(length, -1).T
            yield SequenceBatch(
                **vars(rows),
                sequences=torch.from_numpy(places) if isinstance(self.sequences, Tensor) else places,
                memory={name: taken(part, chosen) for name, part in self.memory.items()},
            )


class RecurrentRolloutBuffer(RolloutBuffer):
    """A rollout [T, N] whose rows are learned from in sequences of `sequence_length` steps.

    What a policy remembered before each step is among the columns, as `memory/0` and so on, and where episodes begin
    as `episode_starts`; only the memory before the first step of a sequence is used.
    """

    def __init__(self, *, sequence_length: int = 1, **settings: Any) -> None:
        """`settings` are those of `RolloutBuffer`."""
        super().__init__(**settings)
        self._use_sequences_of(sequence_length)

    @classmethod
    def for_spaces(cls, *spaces: Space[Any], sequence_length: int = 1, **settings: Any) -> Self:
        """Return a buffer with the shapes and types of the observation and action space."""
        buffer = super().for_spaces(*spaces, **settings)
        buffer._use_sequences_of(sequence_length)
        return buffer

    def _use_sequences_of(self, length: int) -> None:
        if length < 1 or self.num_steps % length:
            raise ValueError(f"sequence_length is {length}; it must divide num_steps, {self.num_steps}")
        self.sequence_length = length

    def flat(self) -> SequenceBatch:
        """Return all rows [T * N] as views, in the order of time, and which of them are sequences."""
        rows = super().flat()
        numbers = torch.arange(len(rows)).view(-1, self.sequence_length, self.num_envs)
        sequences = numbers.transpose(1, 2).reshape(-1, self.sequence_length)
        known: dict[str, Any] = dict(vars(rows))
        extra = known.pop("extra")
        return SequenceBatch(
            **known,
            extra={name: column for name, column in extra.items() if not name.startswith(MEMORY)},
            sequences=sequences,
            memory={
                name: column[sequences[:, 0]] for name, column in extra.items() if name.startswith(MEMORY)
            },
        )
