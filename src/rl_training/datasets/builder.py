"""Fills the columns of a dataset episode by episode, and collects everything that is wrong with them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.core.errors import MAX_PROBLEMS, ConfigError
from rl_training.core.spaces.action_units import ActionAdapter
from rl_training.core.spaces.layout import action_layout, float_dtype, leaf_dtype, observation_leaves
from rl_training.core.types import Array, ObsArray, joined
from rl_training.datasets.dataset import Dataset, RecordedIn

Allocate = Callable[[tuple[int, ...], Any], Array]
TOLERANCE = 1e-5
"""How far an action may lie outside of its bounds, relative to their distance: rounding of 32-bit numbers."""


class DatasetBuilder:
    """Preallocated columns for `num_steps` transitions in `num_episodes` episodes; `finish` returns the dataset."""

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        num_steps: int,
        num_episodes: int,
        *,
        allocate: Allocate = np.empty,
    ) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self._leaves, self._adapter = observation_leaves(observation_space), ActionAdapter(action_space)
        shape, dtype = action_layout(action_space)
        rows = num_steps + num_episodes
        self._obs = {
            key: allocate((rows, *(leaf.shape or ())), leaf_dtype(leaf)) for key, leaf in self._leaves.items()
        }
        self._actions = allocate((num_steps, *shape), dtype)
        self._rewards = allocate((num_steps,), float_dtype())
        self._terminated = allocate((num_steps,), np.bool_)
        self._ends = np.zeros(num_episodes, np.int64)
        self.problems: list[str] = []
        self._step = self._episode = 0

    def add(
        self, obs: Mapping[str, Array], actions: Array, rewards: Array, terminated: Array, truncated: Array
    ) -> None:
        """Copy an episode: observations [T + 1, ...] by flattened key, and T of everything else, in env units."""
        where = f"episode {self._episode}"
        steps = len(rewards)
        wrong = self._shape_problems(obs, actions, terminated, truncated, steps)
        if not wrong and self._step + steps > len(self._rewards):
            wrong = [f"there are more steps than the files announce ({len(self._rewards):,})"]
        if not wrong:
            wrong = self._value_problems(obs, actions, rewards, terminated, truncated)
        self.problems += [f"{where}: {problem}" for problem in wrong]
        if not wrong:
            first, own = self._step + self._episode, slice(self._step, self._step + steps)
            for key, array in self._obs.items():
                array[first : first + steps + 1] = obs[key]
            self._actions[own] = self._adapter.from_env(actions)
            self._rewards[own], self._terminated[own] = rewards, terminated
            self._step += steps
            self._ends[self._episode] = self._step
        self._episode += 1

    def _shape_problems(
        self, obs: Mapping[str, Array], actions: Array, terminated: Array, truncated: Array, steps: int
    ) -> list[str]:
        if not steps:
            return ["it has no steps"]
        found = []
        if set(obs) != set(self._leaves):
            found.append(f"observations have entries {sorted(obs)}, but the space has {sorted(self._leaves)}")
            return found
        for key, leaf in self._leaves.items():
            wanted, shape = (steps + 1, *(leaf.shape or ())), np.shape(obs[key])
            if shape != wanted:
                found.append(
                    f"observations{_entry(key)} have shape {shape} instead of {wanted}: one more than rewards"
                )
        wanted = (steps, *(self.action_space.shape or ()))
        if np.shape(actions) != wanted:
            found.append(f"actions have shape {np.shape(actions)} instead of {wanted}")
        for name, array in (("terminations", terminated), ("truncations", truncated)):
            if np.shape(array) != (steps,):
                found.append(f"{name} have shape {np.shape(array)} instead of {(steps,)}")
        return found

    def _value_problems(
        self, obs: Mapping[str, Array], actions: Array, rewards: Array, terminated: Array, truncated: Array
    ) -> list[str]:
        found = []
        for key, leaf in self._leaves.items():
            found += [
                f"observations{_entry(key)} {problem}"
                for problem in value_problems(leaf, obs[key], strict=False)
            ]
        found += [f"actions {problem}" for problem in value_problems(self.action_space, actions)]
        if not np.issubdtype(np.asarray(rewards).dtype, np.number) or not np.isfinite(rewards).all():
            found.append("rewards have numbers that are not finite; remove the episode, or repair it")
        ended = np.asarray(terminated, np.bool_) | np.asarray(truncated, np.bool_)
        if ended[:-1].any():
            found.append(f"step {int(np.argmax(ended))} is an end, but the episode goes on")
        if not ended[-1]:
            found.append("it has no end: its last step is neither terminated nor truncated")
        return found

    def finish(self, name: str, recorded_in: RecordedIn, facts: Mapping[str, Any] | None = None) -> Dataset:
        """Return the dataset; raise one error for all problems."""
        if not self.problems and self._step < len(self._rewards):
            self.problems.append(
                f"there are {self._step:,} steps, but the files announce {len(self._rewards):,}"
            )
        if not self._episode:
            self.problems.append("it has no episodes")
        if self.problems:
            raise ConfigError(self.problems, f"dataset '{name}'")
        obs: ObsArray = joined(self._obs)
        found = Dataset(
            name, self.observation_space, self.action_space, obs, self._actions, self._rewards, self._terminated,
            self._ends, recorded_in, dict(facts or {}),
        )  # fmt: skip
        return replace(found, digest=found.computed_digest())

    @property
    def full_of_problems(self) -> bool:
        """Whether an error would not list more problems."""
        return len(self.problems) > MAX_PROBLEMS


def value_problems(space: Space[Any], values: Array, *, strict: bool = True) -> list[str]:
    """Return what is wrong with values [T, ...] of a leaf space; bounds of a Box count only if `strict`."""
    array = np.asarray(values)
    if array.dtype == object or not (np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
        return [f"are not numbers, but {array.dtype}"]
    if not np.isfinite(array).all():
        step = int(np.argwhere(~np.isfinite(array))[0][0])
        return [f"are not finite at step {step}"]
    if isinstance(space, spaces.Box):
        if not strict and np.issubdtype(space.dtype, np.floating):
            return []
        distance = np.where(np.isfinite(space.high) & np.isfinite(space.low), space.high - space.low, 0.0)
        slack = TOLERANCE * np.maximum(distance, 1e-30) if np.issubdtype(space.dtype, np.floating) else 0
        outside = (array < space.low - slack) | (array > space.high + slack)
    elif not np.array_equal(array, np.round(array)):
        return ["are not whole numbers"]
    elif isinstance(space, spaces.Discrete):
        outside = (array < space.start) | (array >= space.start + space.n)
    elif isinstance(space, spaces.MultiDiscrete):
        outside = (array < space.start) | (array >= space.start + space.nvec)
    else:
        outside = (array < 0) | (array > 1)
    if outside.any():
        place = np.argwhere(outside)[0]
        return [f"are outside of {_short(space)}: {array[tuple(place)]} at step {int(place[0])}"]
    return []


def flat_observations(obs: Any) -> dict[str, Array]:
    """Return the parts of nested observations [T + 1, ...] by flattened key, as `observation_leaves` names them."""
    found: dict[str, Array] = {}

    def collect(part: Any, key: str) -> None:
        if isinstance(part, dict):
            entries: Any = part.items()
        elif isinstance(part, tuple):
            entries = enumerate(part)
        else:
            found[key] = np.asarray(part)
            return
        for name, inner in entries:
            collect(inner, f"{key}/{name}" if key else str(name))

    collect(obs, "")
    return found


def _entry(key: str) -> str:
    return f" '{key}'" if key else ""


def _short(space: Space[Any]) -> str:
    if isinstance(space, spaces.Box):
        return f"the bounds {np.min(space.low):g} to {np.max(space.high):g}"
    return str(space)


__all__ = ["Allocate", "DatasetBuilder", "flat_observations", "value_problems"]
