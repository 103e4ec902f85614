"""Columns: the quantities that are stored per step, each declared once by name, shape and type."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from gymnasium import Space

from rl_training.core.spaces.layout import action_layout, float_dtype, leaf_dtype, observation_leaves
from rl_training.core.types import ActArrays, Array, EnvSpec

Shape: TypeAlias = tuple[int, ...]
Allocator: TypeAlias = Callable[[tuple[int, ...], Any], Array]
"""Returns zeros of a shape and type: ordinary memory by default, shared memory for samplers in other processes."""


@dataclass(frozen=True)
class Column:
    """One quantity per row; the default type is torch's default floating type."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: Any = None

    @property
    def type(self) -> np.dtype[Any]:
        """Its NumPy type."""
        kept: np.dtype[Any] = np.dtype(float_dtype() if self.dtype is None else self.dtype)
        return kept

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.type.itemsize


def observation_columns(space: Space[Any], kind: str = "obs") -> dict[str, Column]:
    """Return a column per leaf of an observation, by its key: `obs` for a plain space, `obs/a/b` for nested ones.

    >>> from gymnasium import spaces
    >>> [column.name for column in observation_columns(spaces.Dict({"a": spaces.Discrete(2)})).values()]
    ['obs/a']
    """
    return {
        key: Column(field_name(kind, key), tuple(leaf.shape or ()), leaf_dtype(leaf))
        for key, leaf in observation_leaves(space).items()
    }


def shaped_columns(shapes: Any, dtypes: Any, kind: str = "obs") -> dict[str, Column]:
    """Return the columns for a plain shape, or for mappings of shapes and types by key."""
    by_key = shapes if isinstance(shapes, Mapping) else {"": shapes}
    types = dtypes if isinstance(dtypes, Mapping) else {"": dtypes}
    return {key: Column(field_name(kind, key), tuple(shape), types.get(key)) for key, shape in by_key.items()}


def layout_of(observation_space: Space[Any], action_space: Space[Any]) -> dict[str, Any]:
    """Return the shapes and types of a buffer for these spaces, as its keyword arguments."""
    seen, action = observation_columns(observation_space), action_column(action_space)
    return {
        "obs_shape": {key: column.shape for key, column in seen.items()},
        "obs_dtype": {key: column.type for key, column in seen.items()},
        "action_shape": action.shape,
        "action_dtype": action.type,
    }


def action_column(space: Space[Any]) -> Column:
    """Return the column of stored actions."""
    return Column("actions", *action_layout(space))


def field_name(kind: str, key: str) -> str:
    """Return the name of the column for leaf `key` of an observation."""
    return f"{kind}/{key}" if key else kind


def allocated(columns: Iterable[Column], *leading: int, allocate: Allocator = np.zeros) -> dict[str, Array]:
    """Return one array [*leading, *shape] per column, by name."""
    return {column.name: allocate((*leading, *column.shape), column.type) for column in columns}


def act_arrays(spec: EnvSpec, columns: Iterable[Column] | Mapping[str, Iterable[Column]]) -> ActArrays:
    """Return the arrays for an explorer's outputs; `columns` are its own, or those of each team's explorer."""
    if isinstance(columns, Mapping):
        assert spec.game is not None
        num_games = spec.num_envs // len(spec.game.seats)
        specs = spec.game.team_specs(num_games)
        teams = {name: act_arrays(specs[name], own) for name, own in columns.items()}
        whole = act_arrays(specs[next(iter(specs))], ())
        whole.action = tuple(team.action for team in teams.values())  # type: ignore[assignment]  # of each team
        whole.teams = teams
        return whole
    shape, dtype = action_layout(spec.action_space)
    n, real = spec.num_envs, float_dtype()
    return ActArrays(
        action=np.zeros((n, *shape), dtype),
        logprob=np.zeros(n, real),
        value=np.zeros(n, real),
        final_value=np.zeros(n, real),
        last_value=np.zeros(n, real),
        extra=allocated(columns, n),
    )
