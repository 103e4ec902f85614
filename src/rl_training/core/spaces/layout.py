"""Flattens and checks observation and action spaces."""

import hashlib
import math
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces

from rl_training.core.errors import UserError
from rl_training.core.types import Array, ObsArray, joined, leaves

LEAF_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
CONTAINER_SPACES = (spaces.Dict, spaces.Tuple)
ANY_ACTION = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box)


def observation_leaves(space: Space[Any]) -> dict[str, Space[Any]]:
    """Return the leaf spaces of an observation by flattened key; {"": space} for a plain one.

    >>> observation_leaves(spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)})}))
    {'a/b': Discrete(2)}
    """
    found: dict[str, Space[Any]] = {}
    problems: list[str] = []
    _collect_leaves(space, "", found, problems)
    if problems:
        others = isinstance(space, CONTAINER_SPACES) and len(problems) < len(found)
        remedy = ", or leave it out with gymnasium.wrappers.FilterObservation" if others else ""
        raise UserError("; ".join(problems) + remedy)
    if not found:
        raise UserError(
            f"observation space {space} has no entries; give it at least one Box, Discrete or Multi… space"
        )
    return found


def _collect_leaves(space: Space[Any], key: str, found: dict[str, Space[Any]], problems: list[str]) -> None:
    if isinstance(space, CONTAINER_SPACES):
        entries = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for name, part in entries:
            _collect_leaves(part, f"{key}/{name}" if key else str(name), found, problems)
        return
    where = f" (entry '{key}')" if key else ""
    if not isinstance(space, LEAF_SPACES):
        problems.append(
            f"observation space {type(space).__name__}{where} is not supported; "
            "use Box, Discrete, MultiDiscrete, MultiBinary, or Dict/Tuple of these"
        )
    elif key in found:
        problems.append(f"two observation entries flatten to the same key '{key}'; rename one of them")
    found[key] = space


def float_dtype() -> Any:
    """Return the NumPy type of torch's default floating type."""
    return torch.zeros(0, device="cpu").numpy().dtype.type


def leaf_dtype(space: Space[Any]) -> Any:
    """Return the NumPy type of a stored observation leaf: torch's default for floats, its own for others."""
    return float_dtype() if np.issubdtype(space.dtype, np.floating) else space.dtype


def zeros_for(space: Space[Any], *leading: int) -> ObsArray:
    """Return zeros [*leading, ...] for observations of `space`, a dict for containers."""
    found = observation_leaves(space).items()
    return joined({key: np.zeros((*leading, *(leaf.shape or ())), leaf_dtype(leaf)) for key, leaf in found})


def take_rows(obs: ObsArray, index: Array) -> ObsArray:
    """Return the rows `index` of an observation, copied."""
    return joined({key: array[index] for key, array in leaves(obs)})


def space_text(space: Space[Any]) -> str:
    """Return a space as text that does not depend on Gymnasium's version, as checkpoints compare it.

    >>> space_text(spaces.Box(-1, 1, (2,)))
    'Box(shape=(2,), dtype=float32, low=-1.0, high=1.0)'
    """
    if isinstance(space, spaces.Dict):
        return f"Dict({', '.join(f'{name}: {space_text(part)}' for name, part in space.spaces.items())})"
    if isinstance(space, spaces.Tuple):
        return f"Tuple({', '.join(space_text(part) for part in space.spaces)})"
    if isinstance(space, spaces.Box):
        bounds = f"low={_array_text(space.low)}, high={_array_text(space.high)}"
        return f"Box(shape={tuple(space.shape)}, dtype={np.dtype(space.dtype).name}, {bounds})"
    if isinstance(space, spaces.Discrete):
        return f"Discrete({space.n})" if space.start == 0 else f"Discrete({space.n}, start={space.start})"
    if isinstance(space, spaces.MultiDiscrete):
        start = f", start={space.start.tolist()}" if np.any(space.start) else ""
        return f"MultiDiscrete({space.nvec.tolist()}{start})"
    if isinstance(space, spaces.MultiBinary):
        return f"MultiBinary({list(space.shape)})"
    return str(space)


def _array_text(array: Array) -> str:
    values = array.reshape(-1).tolist()
    if len(set(values)) <= 1:
        return repr(values[0]) if values else "[]"
    if len(values) <= 32:
        return repr(values)
    return f"sha256:{hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]}"


def action_layout(space: Space[Any]) -> tuple[tuple[int, ...], Any]:
    """Return (shape, NumPy type) of one stored action: continuous ones are flat vectors."""
    if isinstance(space, spaces.Discrete):
        return (), np.int64
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return (int(np.prod(space.shape)),), np.int64
    if isinstance(space, spaces.Box):
        return (int(np.prod(space.shape)),), float_dtype()
    raise UserError(
        f"action space {type(space).__name__} is not supported; use Discrete, MultiDiscrete, MultiBinary or Box"
    )


def num_features(space: Space[Any]) -> int:
    """Return the number of features of a flat encoding: one per number, and one per value of a category."""
    return sum(_num_outcomes(leaf) for leaf in observation_leaves(space).values())


def num_choices(space: Space[Any]) -> int:
    """Return the minimum number of network outputs for an action of `space`."""
    action_layout(space)  # refuses unsupported spaces
    return _num_outcomes(space)


def _num_outcomes(space: Space[Any]) -> int:
    """Return the number of values of all categories of a leaf, or of its numbers, without overflow."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return sum(int(count) for count in space.nvec.reshape(-1))
    return math.prod(space.shape or ())
