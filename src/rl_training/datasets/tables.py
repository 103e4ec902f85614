"""A table as a recording: finds its columns by name, divides it into episodes, and infers the spaces."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.core.errors import ConfigError, did_you_mean
from rl_training.core.spaces.layout import observation_leaves
from rl_training.core.types import Array
from rl_training.datasets.checks import flag_problems, number_problems
from rl_training.datasets.dataset import NOWHERE, RecordedIn
from rl_training.datasets.recording import Episode, Recording, Spaces
from rl_training.datasets.table_files import read_columns

NAMES: dict[str, tuple[str, ...]] = {
    "observations": ("observations", "observation", "obs", "states", "state"),
    "actions": ("actions", "action", "acts", "act"),
    "rewards": ("rewards", "reward"),
    "terminations": ("terminations", "termination", "terminated", "terminals", "terminal", "dones", "done"),
    "truncations": ("truncations", "truncation", "truncated", "timeouts", "timeout"),
    "episode_id": ("episode_id", "episode_ids", "episode", "episodes", "trajectory_id", "trajectory"),
    "next_observations": ("next_observations", "next_observation", "next_obs", "next_states", "next_state"),
}
"""The columns of a table, and what they may be called."""
DONES = ("dones", "done")
"""Names that other libraries also use for the end of an episode by a time limit."""


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """What a table does not say: its columns, if they have other names, and the bounds of actions."""

    observations: str | None = None
    actions: str | None = None
    rewards: str | None = None
    terminations: str | None = None
    truncations: str | None = None
    episode_id: str | None = None
    next_observations: str | None = None
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()
    recorded_in: RecordedIn = NOWHERE


@dataclass(frozen=True)
class _Columns:
    """The columns of a table by what they mean."""

    obs: dict[str, Array]
    next_obs: dict[str, Array]
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    episode_id: Array | None
    has_truncations: bool


def open_table(path: Path, name: str, known: Spaces | None, options: TableOptions) -> Recording:
    """Return the episodes of a table, which is read as a whole; without `known` spaces, they are inferred."""
    columns = _chosen(read_columns(path, name), name, options)
    problems = _flag_column_problems(columns)
    starts, stops = _episode_bounds(columns, problems)
    if problems:
        raise ConfigError(problems, f"dataset '{name}'")
    if wrong := _successor_problems(columns, stops):
        raise ConfigError(wrong, f"dataset '{name}'")
    remarks = list[str]()
    if not columns.next_obs:
        stops = _without_successors(columns, starts, stops, remarks)
    kept = stops > starts
    starts, stops = starts[kept], stops[kept]
    obs_space, action_space = known or _inferred(columns, options, name)

    def episodes() -> Iterator[Episode]:
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            yield _episode(columns, start, stop, obs_space, action_space)

    return Recording(
        name, obs_space, action_space, int((stops - starts).sum()), len(starts), episodes, options.recorded_in,
        {"table": path.name}, tuple(remarks),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------ columns by name


def _chosen(columns: dict[str, Array], name: str, options: TableOptions) -> _Columns:
    """Return the columns of a table by what they mean; raise one error for all that are missing or unsuitable."""
    problems, called = list[str](), dict[str, str]()
    for kind, aliases in NAMES.items():
        given = getattr(options, kind)
        candidates = (given,) if given is not None else aliases
        for candidate in candidates:
            if _parts(columns, candidate):
                called[kind] = candidate
                break
        else:
            problems += _missing(kind, given, called, columns)
    found = {kind: _parts(columns, base) for kind, base in called.items()}
    for kind, parts in found.items():
        if kind not in ("observations", "next_observations") and set(parts) != {""}:
            problems.append(f"{kind} have entries {sorted(parts)}; only observations may have entries")
        if kind != "episode_id":
            for key, part in parts.items():
                problems += [f"{kind}{f' {key!r}' if key else ''} {text}" for text in _kind_problems(part)]
    if not problems and not len(found["rewards"][""]):
        problems.append("it has no rows")
    if problems:
        raise ConfigError(problems, f"dataset '{name}'")
    size = len(found["rewards"][""])
    nothing = {"": np.zeros(size, np.bool_)}
    flat = {kind: _flat(found.get(kind, nothing)[""]) for kind in ("rewards", "terminations", "truncations")}
    terminated = flat["terminations"]
    if called.get("terminations") in DONES and "truncations" in called:
        terminated = np.where(flat["truncations"].astype(np.bool_), 0, terminated)
    return _Columns(
        found["observations"], found.get("next_observations", {}), found["actions"][""], flat["rewards"], terminated,
        flat["truncations"], _flat(found["episode_id"][""]) if "episode_id" in found else None,
        "truncations" in called,
    )  # fmt: skip


def _missing(kind: str, given: str | None, called: dict[str, str], columns: dict[str, Array]) -> list[str]:
    if given is not None:
        return [f"there is no column '{given}'{did_you_mean(given, columns)}"]
    ends = kind == "terminations" and not any(_parts(columns, name) for name in NAMES["truncations"])
    if kind in ("observations", "actions", "rewards") or ends:
        flag = f"--{kind}"
        known = ", ".join(sorted(columns)[:12])
        return [f"there is no column for {kind}; name it with {flag} (columns are {known})"]
    return []


def _parts(columns: dict[str, Array], base: str) -> dict[str, Array]:
    """Return the entries of `base` by flattened key: `base` itself, `base/a`, or vectors of `base_0` and following."""
    if base in columns:
        return {"": columns[base]}
    if f"{base}_0" in columns:
        return {"": _vector(columns, base)}
    entries = {name.removeprefix(f"{base}/") for name in columns if name.startswith(f"{base}/")}
    found = dict[str, Array]()
    for entry in sorted(entries):
        stem, _, place = entry.rpartition("_")
        if stem and place.isdigit() and f"{base}/{stem}_0" in columns:
            found[stem] = _vector(columns, f"{base}/{stem}")
        else:
            found[entry] = columns[f"{base}/{entry}"]
    return found


def _vector(columns: dict[str, Array], base: str) -> Array:
    parts = list[Array]()
    while f"{base}_{len(parts)}" in columns:
        parts.append(columns[f"{base}_{len(parts)}"])
    return np.stack(parts, axis=1)


def _kind_problems(part: Array) -> list[str]:
    if part.dtype.kind in "biuf" or not len(part):
        return []
    what = "text" if part.dtype.kind in "USO" else str(part.dtype)
    return [f"are {what} instead of numbers"]


def _flat(column: Array) -> Array:
    """Return a column [T, 1] as [T]."""
    return column[:, 0] if column.ndim == 2 and column.shape[1] == 1 else column


# ------------------------------------------------------------------------------------------------- episodes


def _flag_column_problems(columns: _Columns) -> list[str]:
    found = []
    flags = {"terminations": columns.terminated, "truncations": columns.truncated}
    for name, column in {"rewards": columns.rewards, **flags}.items():
        if column.ndim != 1:
            found.append(f"{name} have shape {column.shape} instead of one value per row")
        elif name in flags:
            found += [f"{name} {problem}" for problem in flag_problems(column)]
    return found


def _episode_bounds(columns: _Columns, problems: list[str]) -> tuple[Array, Array]:
    """Return the first row of each episode [E], and the row after its last [E]."""
    size = len(columns.rewards)
    if problems:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    ended = columns.terminated.astype(np.bool_) | columns.truncated.astype(np.bool_)
    if columns.episode_id is None:
        if not ended[-1]:
            problems.append(
                "the last episode has no end: mark its last step in truncations, or add a column episode_id"
            )
        stops = np.flatnonzero(ended) + 1
    else:
        if columns.episode_id.ndim != 1:
            problems.append(f"episode_id has shape {columns.episode_id.shape} instead of one value per row")
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        changes = np.flatnonzero(columns.episode_id[1:] != columns.episode_id[:-1]) + 1
        stops = np.append(changes, size)
        ids, counts = np.unique(columns.episode_id[stops - 1], return_counts=True)
        problems += [
            f"episode id {number} returns after another one: sort the rows by episode"
            for number in ids[counts > 1][:5]
        ]
        if not columns.has_truncations:  # the id says where an episode ends
            columns.truncated[stops - 1] = ~columns.terminated[stops - 1].astype(np.bool_)
    return np.concatenate(([0], stops[:-1])), stops


def _successor_problems(columns: _Columns, stops: Array) -> list[str]:
    """Return where next observations are not those of the next row, as inside of an episode they are."""
    if not columns.next_obs:
        return []
    if set(columns.next_obs) != set(columns.obs):
        return [
            f"next_observations have entries {sorted(columns.next_obs)}, and observations {sorted(columns.obs)}"
        ]
    found = []
    inside = np.ones(len(columns.rewards), np.bool_)
    inside[stops - 1] = False
    for key, column in columns.obs.items():
        after = columns.next_obs[key]
        if after.shape != column.shape:
            found.append(f"next_observations have shape {after.shape}, and observations {column.shape}")
            continue
        same = (after[:-1] == column[1:]) | ((after[:-1] != after[:-1]) & (column[1:] != column[1:]))
        differs = inside[:-1] & ~same.reshape(len(same), -1).all(axis=1)
        if differs.any():
            step = int(np.argmax(differs))
            found.append(
                f"next_observations of step {step} are not the observations of step {step + 1}, although no episode "
                "ends there: mark its end, or sort the rows"
            )
    return found


def _without_successors(columns: _Columns, starts: Array, stops: Array, remarks: list[str]) -> Array:
    """Return the ends of episodes whose last observation is known: a truncated step has no successor in the table."""
    terminated = columns.terminated[stops - 1].astype(np.bool_)
    ended = terminated | columns.truncated[stops - 1].astype(np.bool_)
    cut = ended & ~terminated
    if not cut.any():
        return stops
    shorter = np.where(cut, stops - 1, stops)
    columns.truncated[(shorter - 1)[cut & (shorter > starts)]] = 1
    gone = int((shorter == starts).sum())
    remarks.append(
        f"the table has no next_observations, so the last step of {int(cut.sum()):,} truncated episode(s) has no "
        f"successor and was dropped{f'; {gone:,} episode(s) had no other step' if gone else ''}"
    )
    return shorter


def _episode(
    columns: _Columns, start: int, stop: int, obs_space: Space[Any], action_space: Space[Any]
) -> Episode:
    rows = slice(start, stop)
    leaves = observation_leaves(obs_space)
    obs = {}
    for key, column in columns.obs.items():
        last = (
            columns.next_obs[key][stop - 1 : stop] if key in columns.next_obs else _last(columns, key, stop)
        )
        obs[key] = _shaped(np.concatenate([column[rows], last]), leaves.get(key))
    actions = _shaped(columns.actions[rows], action_space)
    return Episode(obs, actions, columns.rewards[rows], columns.terminated[rows], columns.truncated[rows])


def _last(columns: _Columns, key: str, stop: int) -> Array:
    """Return the observation [1, ...] after row `stop` - 1: the next row's, except after a terminal step.

    There it is never used, and the last one is repeated.
    """
    column = columns.obs[key]
    place = stop - 1 if columns.terminated[stop - 1] else stop
    return column[place : place + 1]


def _shaped(column: Array, leaf: Space[Any] | None) -> Array:
    """Return a flat column in the shape of its space, such as [T, 1] for one action or [T, H, W, C] for an image."""
    wanted = leaf.shape if leaf is not None and leaf.shape is not None else column.shape[1:]
    if column.shape[1:] != wanted and prod(column.shape[1:]) == prod(wanted):
        return column.reshape(len(column), *wanted)
    return column


# --------------------------------------------------------------------------------------------------- spaces


def _inferred(columns: _Columns, options: TableOptions, name: str) -> Spaces:
    """Return spaces in which the columns fit; raise if the bounds of actions are unknown."""
    problems = list[str]()
    leaves = {key: _observation_space(column) for key, column in columns.obs.items()}
    action_space = _action_space(columns.actions, options, problems)
    if problems:
        raise ConfigError(problems, f"dataset '{name}'")
    return (leaves[""] if set(leaves) == {""} else spaces.Dict(leaves)), action_space


def _observation_space(column: Array) -> Space[Any]:
    shape, whole = column.shape[1:], column.dtype.kind in "biu"
    if column.dtype == np.uint8 and len(shape) >= 2:
        return spaces.Box(0, 255, shape, np.uint8)
    if whole and not shape and column.min(initial=0) >= 0:
        return spaces.Discrete(int(column.max(initial=0)) + 1)
    if column.dtype == np.bool_:
        return spaces.MultiBinary(shape)
    return spaces.Box(-np.inf, np.inf, shape or (1,), np.float32)


def _action_space(column: Array, options: TableOptions, problems: list[str]) -> Space[Any]:
    shape = column.shape[1:] or (1,)
    bounds = options.action_low, options.action_high
    if not any(bounds) and column.dtype.kind in "biu":
        if column.min(initial=0) < 0:
            problems.append(
                "actions are whole numbers below 0; give --action-low and --action-high, or --env-id"
            )
        elif column.ndim == 1 or column.shape[1:] == (1,):
            return spaces.Discrete(int(column.max(initial=0)) + 1)
        else:
            return spaces.MultiDiscrete(column.max(axis=0, initial=0).astype(np.int64) + 1)
        return spaces.Discrete(1)
    if wrong := number_problems(column):
        problems += [f"actions {problem}" for problem in wrong]
        return spaces.Discrete(1)
    if not any(bounds):
        if np.abs(column).max(initial=0) > 1:
            problems.append(
                f"actions are between {column.min():g} and {column.max():g}, and their bounds are unknown: give "
                "--action-low and --action-high, or --env-id (dataset import)"
            )
        bounds = ((-1.0,), (1.0,))
    low, high = (np.broadcast_to(_one_per_dimension(side, shape, problems), shape) for side in bounds)
    if not problems and not (low < high).all():
        problems.append(f"action_low {list(bounds[0])} is not below action_high {list(bounds[1])}")
    if problems:
        return spaces.Discrete(1)
    return spaces.Box(low.astype(np.float32), high.astype(np.float32), shape, np.float32)


def _one_per_dimension(side: tuple[float, ...], shape: tuple[int, ...], problems: list[str]) -> Array:
    if len(side) not in (1, prod(shape)) or not np.isfinite(side).all():
        problems.append(
            f"action_low and action_high need one finite number each, or {prod(shape)}, and got {len(side)}"
        )
        return np.zeros(1)
    return np.array(side) if len(side) == 1 else np.reshape(side, shape)
