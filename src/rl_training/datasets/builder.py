"""Fills the columns of a dataset episode by episode, and collects everything that is wrong with them."""

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.core.errors import MAX_PROBLEMS, ConfigError, UserError
from rl_training.core.spaces.action_units import ActionAdapter
from rl_training.core.spaces.layout import action_layout, float_dtype, leaf_dtype, observation_leaves
from rl_training.core.types import ObsArray, joined
from rl_training.datasets.checks import episode_problems
from rl_training.datasets.dataset import Dataset
from rl_training.datasets.disk_columns import ColumnStore
from rl_training.datasets.recording import Episode, Recording, plausible_size


def collected(recording: Recording, max_memory: int | None = None) -> Dataset:
    """Return the episodes of a recording as a dataset; raise one error for all problems.

    Columns that do not fit into `max_memory` bytes are on disk, in unnamed temporary files.
    """
    builder = DatasetBuilder(recording, max_memory)
    for episode in recording.episodes():
        builder.add(episode)
        if builder.full_of_problems:
            break
    return builder.finish()


class DatasetBuilder:
    """Columns for as many steps and episodes as a recording announces; `finish` returns the dataset."""

    def __init__(self, recording: Recording, max_memory: int | None = None) -> None:
        self.recording = recording
        self._adapter = ActionAdapter(recording.action_space)
        self._leaves = observation_leaves(recording.observation_space)
        steps, rows = recording.num_steps, recording.num_steps + recording.num_episodes
        size = num_bytes(*recording.spaces, steps, recording.num_episodes)
        if recording.file_bytes is not None and not plausible_size(size, recording.file_bytes):
            raise UserError(
                f"dataset '{recording.name}' announces {steps:,} steps and {recording.num_episodes:,} episodes, but "
                f"its files have only {recording.file_bytes:,} bytes"
            )
        # observations last: what does not fit into memory is on disk, and they are the largest
        allocate = ColumnStore(max_memory).allocate
        shape, dtype = action_layout(recording.action_space)
        self._actions = allocate((steps, *shape), dtype)
        self._rewards = allocate((steps,), float_dtype())
        self._terminated = allocate((steps,), np.bool_)
        self._obs = {
            key: allocate((rows, *(leaf.shape or ())), leaf_dtype(leaf)) for key, leaf in self._leaves.items()
        }
        self._ends = np.zeros(recording.num_episodes, np.int64)
        self.problems: list[str] = []
        self._step = self._episode = 0

    def add(self, episode: Episode) -> None:
        """Copy an episode, or note what is wrong with it."""
        wrong = episode_problems(episode, *self.recording.spaces)
        too_many = self._episode >= len(self._ends)
        if not wrong and (too_many or self._step + episode.num_steps > len(self._rewards)):
            wrong = [f"there are more steps than the files announce ({len(self._rewards):,})"]
        self.problems += [f"episode {self._episode}: {problem}" for problem in wrong]
        if not wrong:
            self._copy(episode)
        self._episode += 1

    def _copy(self, episode: Episode) -> None:
        steps, space = episode.num_steps, self.recording.action_space
        first, own = self._step + self._episode, slice(self._step, self._step + steps)
        for key, array in self._obs.items():
            array[first : first + steps + 1] = episode.obs[key]
        actions = episode.actions
        if isinstance(space, spaces.Box):  # rounding may have taken them over their bounds
            actions = np.clip(actions, space.low, space.high)
        self._actions[own] = self._adapter.from_env(actions)
        self._rewards[own], self._terminated[own] = episode.rewards, episode.terminated
        self._step += steps
        self._ends[self._episode] = self._step

    def finish(self) -> Dataset:
        """Return the dataset; raise one error for all problems."""
        recording = self.recording
        if not self._episode:
            self.problems.append("it has no episodes")
        elif not self.problems and (self._step, self._episode) != (len(self._rewards), len(self._ends)):
            self.problems.append(
                f"there are {self._step:,} steps in {self._episode:,} episodes, but the files announce "
                f"{len(self._rewards):,} in {len(self._ends):,}"
            )
        if self.problems:
            raise ConfigError(self.problems, f"dataset '{recording.name}'")
        obs: ObsArray = joined(self._obs)
        found = Dataset(
            recording.name, *recording.spaces, obs, self._actions, self._rewards, self._terminated, self._ends,
            recording.recorded_in, dict(recording.facts), remarks=recording.remarks,
        )  # fmt: skip
        return replace(found, digest=found.computed_digest())

    @property
    def full_of_problems(self) -> bool:
        """Whether an error would not list more problems."""
        return len(self.problems) > MAX_PROBLEMS


def num_bytes(
    observation_space: Space[Any], action_space: Space[Any], num_steps: int, num_episodes: int
) -> int:
    """Return the size of the columns of a dataset."""
    shape, dtype = action_layout(action_space)
    row: int = sum(
        prod(leaf.shape or ()) * np.dtype(leaf_dtype(leaf)).itemsize
        for leaf in observation_leaves(observation_space).values()
    )
    step: int = prod(shape) * np.dtype(dtype).itemsize + np.dtype(float_dtype()).itemsize + 1
    return (num_steps + num_episodes) * row + num_steps * step + 8 * num_episodes
