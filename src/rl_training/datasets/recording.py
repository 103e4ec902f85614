"""A recording: the episodes of a file or a folder, in the environment's units, yielded one at a time."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from gymnasium import Space

from rl_training.core.errors import UserError
from rl_training.core.types import Array
from rl_training.datasets.dataset import NOWHERE, RecordedIn

Spaces: TypeAlias = tuple[Space[Any], Space[Any]]
"""The observation space and the action space."""
MOST_COMPRESSED = 1000
"""How many times larger data may be than its compressed file."""
SMALL = 2**20
"""Bytes of data that even an empty file may announce."""


@dataclass(frozen=True)
class Episode:
    """The T steps of one episode, in the environment's units."""

    obs: Mapping[str, Array]
    """Observations [T + 1, ...] by flattened key, as `observation_leaves` names them; "" for a plain one."""
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    infos: Mapping[str, Array] = field(default_factory=dict)
    """Entries of `info` [T + 1, ...], such as action masks."""
    seed: int | None = None
    """The seed that the environment was reset with, if it is known."""
    behaviour: str = ""
    """Who acted, if that is known."""

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def num_steps(self) -> int:
        return len(self.rewards)

    @property
    def nbytes(self) -> int:
        """Memory of the observations, which are most of it, and the actions."""
        return sum(array.nbytes for array in self.obs.values()) + self.actions.nbytes

    @property
    def total_reward(self) -> float:
        return float(np.sum(self.rewards, dtype=np.float64))


@dataclass(frozen=True)
class Recording:
    """Episodes and what is known about them; nothing is checked yet, and the sizes are what the files announce."""

    name: str
    observation_space: Space[Any]
    action_space: Space[Any]
    num_steps: int
    num_episodes: int
    episodes: Callable[[], Iterator[Episode]]
    """Starts reading from the first episode; may be called several times."""
    recorded_in: RecordedIn = NOWHERE
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Other descriptions in the files, such as who recorded the dataset."""
    remarks: tuple[str, ...] = ()
    """What a user should know about how the files were read, such as steps that were dropped."""
    file_bytes: int | None = None
    """Size of the files, which limits what their sizes may announce; None if the data is in memory."""

    @property
    def spaces(self) -> Spaces:
        return self.observation_space, self.action_space


def plausible_size(announced: int, file_bytes: int) -> bool:
    """Return whether files may hold this number of bytes of data, compressed or not."""
    return announced <= MOST_COMPRESSED * file_bytes + SMALL


def folder_bytes(folder: Path) -> int:
    """Return the size of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def merged(recordings: list[Recording], name: str) -> Recording:
    """Return the episodes of all recordings, one recording after the other; raise if their spaces differ."""
    first = recordings[0]
    for other in recordings[1:]:
        for what, ours, theirs in zip(("observation", "action"), first.spaces, other.spaces, strict=True):
            if ours != theirs:
                raise UserError(
                    f"'{first.name}' and '{other.name}' cannot be merged: the {what} spaces are {ours} and {theirs}"
                )
    same = all(other.recorded_in == first.recorded_in for other in recordings)
    return Recording(
        name,
        *first.spaces,
        sum(each.num_steps for each in recordings),
        sum(each.num_episodes for each in recordings),
        lambda: (episode for each in recordings for episode in each.episodes()),
        first.recorded_in if same else NOWHERE,
        {"merged_from": [each.name for each in recordings]},
        tuple(remark for each in recordings for remark in each.remarks),
    )


def split(recording: Recording, fractions: list[float], seed: int, names: list[str]) -> list[Recording]:
    """Return recordings with shares of the episodes, which are drawn at random; each keeps their order."""
    total = sum(fractions)
    if len(fractions) < 2 or min(fractions) <= 0 or not np.isclose(total, 1.0):
        raise UserError(f"fractions are {fractions}; use two or more that are positive and add up to 1")
    num = recording.num_episodes
    edges = np.round(np.cumsum([0.0, *fractions]) / total * num).astype(np.int64)
    order = np.random.default_rng(seed).permutation(num)
    parts = [set(order[start:stop].tolist()) for start, stop in pairwise(edges)]
    if not all(parts):
        raise UserError(f"a part of {num} episodes would be empty; use larger fractions, or fewer parts")
    lengths = np.array([episode.num_steps for episode in recording.episodes()])
    return [
        Recording(
            name, *recording.spaces, int(lengths[sorted(part)].sum()), len(part), _only(recording, part),
            recording.recorded_in, {**recording.facts, "split_from": recording.name}, recording.remarks,
        )
        for name, part in zip(names, parts, strict=True)
    ]  # fmt: skip


def _only(recording: Recording, numbers: set[int]) -> Callable[[], Iterator[Episode]]:
    return lambda: (episode for number, episode in enumerate(recording.episodes()) if number in numbers)
