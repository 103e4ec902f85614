"""The hidden state of a recurrent policy in recorded data: which columns hold it, and in which order.

An explorer records one column per part of the state, and a column that marks where episodes begin. A buffer gives the
parts back as a tuple in the same order, which is the order of `initial_state` and of the network's own state.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from rl_training.core.columns import Column

EPISODE_STARTS = "episode_starts"
"""The column that marks the first step of each episode; the state before such a step is zero."""
_PREFIX = "memory/"

ArrayT = TypeVar("ArrayT")


def state_column(part: int) -> str:
    """Return the name of the column that holds one part of the state before each step."""
    return f"{_PREFIX}{part}"


def state_columns(sizes: Sequence[int]) -> tuple[Column, ...]:
    """Return the columns to record for a state whose parts have these sizes.

    >>> [column.name for column in state_columns((4, 4))]
    ['episode_starts', 'memory/0', 'memory/1']
    """
    parts = (Column(state_column(number), (size,)) for number, size in enumerate(sizes))
    return Column(EPISODE_STARTS, dtype=np.bool_), *parts


def split_state(columns: Mapping[str, ArrayT]) -> tuple[dict[str, ArrayT], tuple[ArrayT, ...]]:
    """Return the columns that are not part of the state, and the parts of the state in order."""
    count = sum(name.startswith(_PREFIX) for name in columns)
    others = {name: column for name, column in columns.items() if not name.startswith(_PREFIX)}
    return others, tuple(columns[state_column(number)] for number in range(count))
