"""Running statistics that wrappers keep across episodes: read, put back, held still."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import torch

from rl_training.core.types import State

MOMENTS = ("mean", "var", "count")
DISCOUNTED = "discounted_reward"
"""What Gymnasium's NormalizeReward carries from step to step, and from one episode into the next."""

Statistics: TypeAlias = dict[str, dict[str, Any]]
"""By place in the chain of wrappers and attribute: arrays, and plain numbers where the wrapper has plain numbers."""


class WrapperStatistics:
    """The statistics of one environment's wrappers, such as Gymnasium's NormalizeObservation and NormalizeReward.

    Any attribute of a wrapper with a mean, a var and a count that can be set is one. They span all episodes, so they
    must travel with a checkpoint: they are no function of the current episode's seed and actions.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._found = list(_holders(env))

    def __bool__(self) -> bool:
        return bool(self._found)

    def read(self) -> Statistics:
        """Return a copy of all of them."""
        return {
            name: {part: _copied(getattr(holder, part)) for part in parts}
            for name, _, holder, parts in self._found
        }

    def write(self, statistics: Statistics) -> None:
        """Put back what `read` returned; what belongs to a wrapper that is not here or has another shape is left."""
        for name, _, holder, parts in self._found:
            values = statistics.get(name, {})
            for part in parts:
                if part in values and np.shape(values[part]) == np.shape(getattr(holder, part)):
                    setattr(holder, part, _copied(values[part]))

    def freeze(self) -> None:
        """Let them be used, but no longer changed, by the wrappers that know how to."""
        for _, wrapper, _, _ in self._found:
            if hasattr(wrapper, "update_running_mean"):
                wrapper.update_running_mean = False


def _holders(env: gymnasium.Env[Any, Any]) -> Iterator[tuple[str, Any, Any, tuple[str, ...]]]:
    """Iterate over (name, wrapper, object that holds the numbers, their attributes)."""
    depth = 0
    while isinstance(env, gymnasium.Wrapper):
        found = [(name, value) for name, value in vars(env).items() if _is_running(value)]
        for name, value in found:
            yield f"{depth}.{name}", env, value, MOMENTS
        if found and _is_number(getattr(env, DISCOUNTED, None)):
            yield f"{depth}.{DISCOUNTED}", env, env, (DISCOUNTED,)
        env, depth = env.env, depth + 1


def _is_running(value: Any) -> bool:
    """Tell whether something has moments that can be read and put back; somebody's properties may refuse either."""
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
    """Return a copy; a plain number stays one, as NumPy's types would change the precision of what follows."""
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
