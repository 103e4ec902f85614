"""One recorded episode, in the units of its environment."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.core.types import Array


@dataclass(frozen=True)
class Episode:
    """T steps of one episode: T + 1 observations and T of everything else."""

    observations: dict[str, Array]
    """Arrays [T + 1, ...] by flattened key, in the types of their spaces."""
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    infos: dict[str, Array] = field(default_factory=dict)
    """Entries of `info` [T + 1, ...], such as action masks."""
    seed: int = 0
    """The seed that the environment was reset with."""
    behaviour: str = ""
    """Who acted."""

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def nbytes(self) -> int:
        """Memory of the observations, which are most of it, and the actions."""
        return sum(array.nbytes for array in self.observations.values()) + self.actions.nbytes

    @property
    def total_reward(self) -> float:
        return float(np.sum(self.rewards, dtype=np.float64))


def nested(space: Space[Any], parts: dict[str, Array], key: str = "") -> Any:
    """Return arrays by flattened key as dicts and tuples, nested as their space is."""
    if isinstance(space, spaces.Dict):
        entries: Any = space.spaces.items()
    elif isinstance(space, spaces.Tuple):
        entries = enumerate(space.spaces)
    else:
        return parts[key]
    found = {name: nested(part, parts, f"{key}/{name}" if key else str(name)) for name, part in entries}
    return tuple(found.values()) if isinstance(space, spaces.Tuple) else found


__all__ = ["Episode", "nested"]
