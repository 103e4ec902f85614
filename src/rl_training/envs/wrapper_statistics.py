"""Running statistics of wrappers, such as NormalizeObservation: read, restored, frozen."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import torch

from rl_training.core.types import State

MOMENTS = ("mean", "var", "count")
DISCOUNTED = "discounted_reward"
"""State of Gymnasium's NormalizeReward that it keeps across episodes."""

Statistics: TypeAlias = dict[str, dict[str, Any]]
"""By depth of the wrapper and attribute: arrays, or plain numbers if the wrapper has plain numbers."""


class WrapperStatistics:
    """The statistics of one environment's wrappers, such as Gymnasium's NormalizeObservation and NormalizeReward.

    Any attribute of a wrapper with a mean, a var and a count that can be set counts. They depend on all episodes, so
    they are saved in checkpoints.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._found = list(_holders(env))

    def __bool__(self) -> bool:
        return bool(self._found)

    def read(self) -> Statistics:
        """Return a copy of all statistics."""
        found = self._found
        return {name: {part: _copied(getattr(it, part)) for part in parts} for name, _, it, parts in found}

    def write(self, statistics: Statistics) -> None:
        """Restore what `read` returned; entries of other wrappers or shapes are ignored."""
        for name, _, holder, parts in self._found:
            values = statistics.get(name, {})
            for part in parts:
                if part in values and np.shape(values[part]) == np.shape(getattr(holder, part)):
                    setattr(holder, part, _copied(values[part]))

    def freeze(self) -> None:
        """Stop updating the statistics in wrappers that support this."""
        for _, wrapper, _, _ in self._found:
            if hasattr(wrapper, "update_running_mean"):
                wrapper.update_running_mean = False


def _holders(env: gymnasium.Env[Any, Any]) -> Iterator[tuple[str, Any, Any, tuple[str, ...]]]:
    """Iterate over (name, wrapper, object with the statistics, its attributes)."""
    depth = 0
    while isinstance(env, gymnasium.Wrapper):
        found = [(name, value) for name, value in vars(env).items() if _is_running(value)]
        for name, value in found:
            yield f"{depth}.{name}", env, value, MOMENTS
        if found and _is_number(getattr(env, DISCOUNTED, None)):
            yield f"{depth}.{DISCOUNTED}", env, env, (DISCOUNTED,)
        env, depth = env.env, depth + 1


def _is_running(value: Any) -> bool:
    """Return whether a value has moments that can be read and set."""
    try:
        moments = {part: getattr(value, part, None) for part in MOMENTS}
        if not all(_is_number(moment) for moment in moments.values()):
            return False
        for part, moment in moments.items():
            setattr(value, part, moment)
    except Exception:
        return False
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.ndarray | np.generic)


def _copied(value: Any) -> Any:
    """Return a copy; a plain number stays one, because NumPy scalars would change the precision."""
    return value if isinstance(value, int | float) and not isinstance(value, np.generic) else np.array(value)


def statistics_state(statistics: Statistics) -> State:
    """Return statistics as tensors and plain numbers, for a checkpoint."""
    return {
        name: {
            part: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            for part, value in parts.items()
        }
        for name, parts in statistics.items()
    }


def statistics_from(state: Mapping[str, Any]) -> Statistics:
    """Return what `statistics_state` was made from."""
    return {
        str(name): {str(part): _number(value) for part, value in parts.items()}
        for name, parts in state.items()
    }


def _number(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, int | float):
        return value
    raise ValueError(f"a running statistic is {value!r}")
