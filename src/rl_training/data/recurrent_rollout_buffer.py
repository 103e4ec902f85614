"""Rollouts for recurrent policies, split into sequences of equal length, so that no step is padded."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.core.recurrent_state import split_state
from rl_training.core.tensor_struct import taken
from rl_training.core.types import Array
from rl_training.data.rollout_buffer import RolloutBatch, RolloutBuffer


@dataclass(frozen=True)
class SequenceBatch(RolloutBatch):
    """Rows of a rollout as sequences of equal length L. Episodes may begin anywhere in a sequence.

    `extra["episode_starts"]` marks the first step of each episode.
    """

    sequences: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.int64))
    """The row numbers of each sequence [S, L], in time order."""
    memory: tuple[Tensor, ...] = ()
    """The hidden state before the first step of each sequence: parts [S, ...], in the order of `initial_state`."""

    def minibatches(self, batch_size: int, rng: np.random.Generator | None) -> Iterator["SequenceBatch"]:
        """Partition the sequences into minibatches of about `batch_size` rows, shuffled if `rng` is given.

        The rows [L * B] of a minibatch are in time order: all first steps, then all second steps, and so on.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be positive, got {batch_size}")
        count, length = self.sequences.shape
        order = np.arange(count) if rng is None else rng.permutation(count)
        at_once = max(batch_size // length, 1)
        for start in range(0, count, at_once):
            yield self._chosen(order[start : start + at_once])

    @property
    def num_items(self) -> int:
        """The number of sequences."""
        return len(self.sequences)

    def part(self, place: slice) -> "SequenceBatch":
        """Return some of the sequences in order, copied."""
        return self._chosen(np.arange(self.num_items)[place])

    def _chosen(self, chosen: Array) -> "SequenceBatch":
        """Return some sequences, their rows [L * B] in time order."""
        length = self.sequences.shape[1]
        steps = RolloutBatch(**{part.name: getattr(self, part.name) for part in fields(RolloutBatch)})
        rows = steps.take(taken(self.sequences, chosen).T.reshape(-1))
        places = np.arange(length * len(chosen)).reshape(length, -1).T
        return SequenceBatch(
            **vars(rows),
            sequences=torch.from_numpy(places) if isinstance(self.sequences, Tensor) else places,
            memory=tuple(taken(part, chosen) for part in self.memory),
        )


class RecurrentRolloutBuffer(RolloutBuffer):
    """A rollout [T, N] that is split into sequences of `sequence_length` steps.

    The explorer records the hidden state before each step and where episodes begin, in the columns of
    `core.recurrent_state`. Only the state before the first step of each sequence is used.
    """

    def __init__(self, *, sequence_length: int = 1, **settings: Any) -> None:
        """`settings` are those of `RolloutBuffer`."""
        super().__init__(**settings)
        if sequence_length < 1 or self.num_steps % sequence_length:
            raise ValueError(
                f"sequence_length is {sequence_length}; it must divide num_steps, {self.num_steps}"
            )
        self.sequence_length = sequence_length

    def flat(self) -> SequenceBatch:
        """Return all rows [T * N] as views in time order, and the row numbers of each sequence.

        With `turns`, `valid` marks the rows that are learned from: a memory advances in all of them. Sequences without
        such a row are left out.
        """
        rows = self.all_rows()
        numbers = torch.arange(len(rows)).view(-1, self.sequence_length, self.num_envs)
        sequences = numbers.transpose(1, 2).reshape(-1, self.sequence_length)
        if self.turns and rows.valid is not None:
            sequences = sequences[rows.valid[sequences].any(dim=1)]
        known: dict[str, Any] = dict(vars(rows))
        extra, state = split_state(known.pop("extra"))
        memory = tuple(part[sequences[:, 0]] for part in state)
        return SequenceBatch(**known, extra=extra, sequences=sequences, memory=memory)
