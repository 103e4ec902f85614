"""What is wrong with the numbers of an episode, as text."""

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.core.spaces.layout import float_dtype, observation_leaves
from rl_training.core.types import Array
from rl_training.datasets.recording import Episode

TOLERANCE = 1e-5
"""How far an action may lie outside of its bounds, relative to their distance: rounding of 32-bit numbers."""


def episode_problems(episode: Episode, observation_space: Space[Any], action_space: Space[Any]) -> list[str]:
    """Return what is wrong with an episode of these spaces; an empty list if it can be learned from."""
    leaves = observation_leaves(observation_space)
    found = _shape_problems(episode, leaves, action_space)
    return found or _value_problems(episode, leaves, action_space)


def _shape_problems(episode: Episode, leaves: dict[str, Space[Any]], action_space: Space[Any]) -> list[str]:
    if np.ndim(episode.rewards) != 1:
        return [f"rewards have shape {np.shape(episode.rewards)} instead of one number per step"]
    steps = episode.num_steps
    if not steps:
        return ["it has no steps"]
    if set(episode.obs) != set(leaves):
        return [f"observations have entries {sorted(episode.obs)}, but the space has {sorted(leaves)}"]
    found = []
    for key, leaf in leaves.items():
        wanted, shape = (steps + 1, *(leaf.shape or ())), np.shape(episode.obs[key])
        if shape != wanted:
            found.append(
                f"observations{_entry(key)} have shape {shape} instead of {wanted}: one more than rewards"
            )
    wanted = (steps, *(action_space.shape or ()))
    if np.shape(episode.actions) != wanted:
        found.append(f"actions have shape {np.shape(episode.actions)} instead of {wanted}")
    for name, array in (("terminations", episode.terminated), ("truncations", episode.truncated)):
        if np.shape(array) != (steps,):
            found.append(f"{name} have shape {np.shape(array)} instead of {(steps,)}")
    return found


def _value_problems(episode: Episode, leaves: dict[str, Space[Any]], action_space: Space[Any]) -> list[str]:
    found = []
    for key, leaf in leaves.items():
        problems = value_problems(leaf, episode.obs[key], strict=False)
        found += [f"observations{_entry(key)} {problem}" for problem in problems]
    found += [f"actions {problem}" for problem in value_problems(action_space, episode.actions)]
    found += [f"rewards {problem}" for problem in number_problems(episode.rewards)]
    flags = {"terminations": episode.terminated, "truncations": episode.truncated}
    wrong = [f"{name} {problem}" for name, array in flags.items() for problem in flag_problems(array)]
    return found + (wrong or _end_problems(episode))


def _end_problems(episode: Episode) -> list[str]:
    ended = np.asarray(episode.terminated, np.bool_) | np.asarray(episode.truncated, np.bool_)
    found = []
    if ended[:-1].any():
        found.append(f"step {int(np.argmax(ended))} is an end, but the episode goes on")
    if not ended[-1]:
        found.append("it has no end: its last step is neither terminated nor truncated")
    return found


def number_problems(values: Array) -> list[str]:
    """Return why values are not numbers that can be stored."""
    array = np.asarray(values)
    real = np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)
    if not real and array.dtype != np.bool_:
        return [f"are not numbers, but {array.dtype}"]
    if array.dtype == np.bool_ or not array.size:
        return []
    with np.errstate(over="ignore"):  # a number that does not fit becomes infinite
        fits = np.isfinite(array if np.issubdtype(array.dtype, np.integer) else array.astype(float_dtype()))
    if not fits.all():
        step = int(np.argwhere(~fits)[0][0])
        return [f"are not finite, or too large for {np.dtype(float_dtype())}, at step {step}"]
    return []


def flag_problems(values: Array) -> list[str]:
    """Return why values are not true or false; a text such as "False" would count as true."""
    array = np.asarray(values)
    if array.dtype == np.bool_:
        return []
    if problems := number_problems(array):
        return problems
    return [] if np.isin(array, (0, 1)).all() else ["are neither 0 nor 1"]


def value_problems(space: Space[Any], values: Array, *, strict: bool = True) -> list[str]:
    """Return what is wrong with values [T, ...] of a leaf space; bounds of a Box of floats count only if `strict`."""
    array = np.asarray(values)
    if problems := number_problems(array):
        return problems
    floating = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)
    if (
        not floating
        and np.issubdtype(array.dtype, np.floating)
        and not np.array_equal(array, np.round(array))
    ):
        return ["are not whole numbers"]
    if floating and not strict:
        return []
    low, high = _bounds(space)
    outside = (array < low) | (array > high)
    if outside.any():
        place = np.argwhere(outside)[0]
        return [f"are outside of {_short(space)}: {array[tuple(place)]} at step {int(place[0])}"]
    return []


def _bounds(space: Space[Any]) -> tuple[Any, Any]:
    """Return the smallest and the largest value of each entry, with some slack for rounding."""
    if isinstance(space, spaces.Box):
        if not np.issubdtype(space.dtype, np.floating):
            return space.low, space.high
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        finite = np.isfinite(high) & np.isfinite(low)
        slack = TOLERANCE * np.where(finite, np.where(finite, high, 0.0) - np.where(finite, low, 0.0), 0.0)
        return low - slack, high + slack
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return 0, 1


def _entry(key: str) -> str:
    return f" '{key}'" if key else ""


def _short(space: Space[Any]) -> str:
    if isinstance(space, spaces.Box):
        return f"the bounds {np.min(space.low):g} to {np.max(space.high):g}"
    return str(space)
