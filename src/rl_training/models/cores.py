"""Recurrent cores, between encoder and heads, over sequences that may contain several episodes."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

CoreName: TypeAlias = Literal["lstm", "gru"]
CELLS: dict[CoreName, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}
Memory: TypeAlias = tuple[Tensor, ...]
"""The hidden state: parts [B, num_layers * size]; every episode begins with zeros."""


class RecurrentCore(nn.Module):
    """An LSTM (two parts of state) or a GRU (one part), with one or more layers."""

    def __init__(
        self,
        kind: CoreName,
        input_size: int,
        size: int,
        *,
        num_layers: int = 1,
        orthogonal: bool = True,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        if kind not in CELLS:
            raise ValueError(f"core is '{kind}'; use {' or '.join(CELLS)}")
        if min(input_size, size, num_layers) < 1:
            raise ValueError(
                f"input_size, size and num_layers must be positive, got {input_size}, {size} and {num_layers}"
            )
        self.kind, self.size, self.num_layers = kind, size, num_layers
        # skip its initialisation, which would use the global generator
        cells = CELLS[kind](input_size, size, num_layers, device="meta")
        self.cells: nn.RNNBase = cells.to_empty(device="cpu")
        for name, parameter in self.cells.named_parameters():
            if not orthogonal:  # torch's default
                nn.init.uniform_(parameter, -(size**-0.5), size**-0.5, generator=generator)
            elif "weight" in name:
                nn.init.orthogonal_(parameter, generator=generator)
            else:
                nn.init.zeros_(parameter)

    @property
    def memory_sizes(self) -> tuple[int, ...]:
        """The size of each part of the state, per row."""
        return (self.size * self.num_layers,) * (2 if self.kind == "lstm" else 1)

    def forward(self, features: Tensor, memory: Memory, starts: Tensor) -> tuple[Tensor, Memory]:
        """Return outputs [L * B, size] and the state after the last step, for features [L * B, D] in time order.

        The state is reset before each step where `starts` [L * B] is true. Consecutive steps without an episode start
        in any row run in one call.
        """
        rows = len(memory[0])
        steps, begins = features.view(-1, rows, features.shape[-1]), starts.view(-1, rows)
        hidden = tuple(part.view(rows, self.num_layers, self.size).transpose(0, 1) for part in memory)
        outputs = []
        for first, last, resets in _stretches(begins):
            if resets:
                kept = (~begins[first]).to(features.dtype).view(1, rows, 1)
                hidden = tuple(part * kept for part in hidden)
            out, hidden = self._run(steps[first:last], hidden)
            outputs.append(out)
        after = tuple(part.transpose(0, 1).reshape(rows, -1) for part in hidden)
        return torch.cat(outputs).view(-1, self.size), after

    def _run(self, steps: Tensor, hidden: Memory) -> tuple[Tensor, Memory]:
        hidden = tuple(part.contiguous() for part in hidden)
        if self.kind == "lstm":
            out, hidden = self.cells(steps, hidden)
            return out, hidden
        out, last = self.cells(steps, hidden[0])
        return out, (last,)


class IdentityCore(nn.Module):
    """Returns the features unchanged and has no state: a recurrent network without recurrence."""

    def __init__(self, input_size: int) -> None:
        super().__init__()
        self.size = input_size
        self.memory_sizes: tuple[int, ...] = ()

    def forward(self, features: Tensor, memory: Memory, starts: Tensor) -> tuple[Tensor, Memory]:
        return features, memory


def _stretches(begins: Tensor) -> Iterator[tuple[int, int, bool]]:
    """Yield (first step, last step + 1, whether an episode begins at the first) for starts [L, B]; synchronises."""
    resets = begins.any(dim=1).tolist()
    bounds = [0, *(t for t in range(1, len(resets)) if resets[t]), len(resets)]
    for first, last in pairwise(bounds):
        yield first, last, resets[first]
