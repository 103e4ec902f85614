"""The folder of a recording: settings, finished episodes and, at the end, the dataset.

    recording.json    the settings; the same command goes on, another one is refused
    episodes/         files of consecutive whole episodes, until the dataset is finished
    data/             the Minari dataset; it appears at once, when it is complete

Every file and the folder `data` are written under a temporary name and renamed, so that nothing half-written counts.
"""

import io
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.core.errors import UserError, reason
from rl_training.core.types import Array
from rl_training.datasets.minari_files import is_minari_folder
from rl_training.datasets.recording import Episode
from rl_training.experiment.files import read_mapping, sync_folder, write_bytes, write_json

SETTINGS, EPISODES, DATA = "recording.json", "episodes", "data"
OURS = {SETTINGS, EPISODES, DATA, ".lock", f".{SETTINGS}.tmp", f".{DATA}.tmp"}
PART = re.compile(r"episodes_(\d+)_(\d+)\.npz")
SCALARS = ("seed", "behaviour")


class RecordingFolder:
    """Keeps what was recorded so far; the caller holds the folder's lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_episodes = 0
        """Episodes that are in files: those with the numbers below."""
        self.num_steps = 0

    @property
    def is_complete(self) -> bool:
        return is_minari_folder(self.path)

    def refuse_foreign(self) -> None:
        """Raise if the path is a file, or a folder with anything that is not of a recording."""
        if not self.path.is_dir():
            if self.path.exists() or self.path.is_symlink():
                raise UserError(f"{self.path} is not a folder; choose another one")
            return
        others = sorted(entry.name for entry in self.path.iterdir() if entry.name not in OURS)
        started = (self.path / SETTINGS).is_file()
        if others or (not started and (self.is_complete or (self.path / EPISODES).exists())):
            what = others[0] if others else DATA
            raise UserError(
                f"{self.path} contains '{what}', which is not of a recording; choose another folder"
            )

    def begin(self, settings: Mapping[str, Any], compared: Callable[[Mapping[str, Any]], Any]) -> None:
        """Write the settings, or raise if the folder has others; then find the episodes that are there."""
        file = self.path / SETTINGS
        if file.exists():
            known = read_mapping(file)
            _refuse_other_settings(self.path, compared(known), compared(settings))
        else:
            write_json(file, dict(settings))
        (self.path / EPISODES).mkdir(exist_ok=True)
        self.num_episodes = self.num_steps = 0
        for part in sorted((self.path / EPISODES).iterdir()):
            found = PART.fullmatch(part.name)
            if found is None or int(found[1]) != self.num_episodes or not self._count(part, int(found[2])):
                part.unlink()  # half-written, or after a gap

    @property
    def settings(self) -> dict[str, Any]:
        """The settings with which it began."""
        return read_mapping(self.path / SETTINGS)

    def add(self, episodes: Sequence[Episode]) -> None:
        """Write the next episodes as one file."""
        first, last = self.num_episodes, self.num_episodes + len(episodes) - 1
        content = io.BytesIO()
        columns: dict[str, Any] = _columns_of(episodes)
        np.savez(content, **columns)
        write_bytes(self.path / EPISODES / f"episodes_{first:09}_{last:09}.npz", content.getvalue())
        self.num_episodes += len(episodes)
        self.num_steps += sum(map(len, episodes))

    def episodes(self) -> Iterator[Episode]:
        """Iterate over everything that is in files."""
        for part in sorted((self.path / EPISODES).iterdir()):
            with part.open("rb") as file, np.load(file) as columns:
                yield from _episodes_in(dict(columns))

    def finish(self, write: Callable[[Path], None]) -> None:
        """Let `write` fill a folder with the dataset, which then takes its place; the files are no longer needed."""
        temporary = self.path / f".{DATA}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        write(temporary)
        _sync_files(temporary)
        os.replace(temporary, self.path / DATA)
        sync_folder(self.path)
        self.tidy()

    def tidy(self) -> None:
        """Delete what a complete recording does not need."""
        shutil.rmtree(self.path / EPISODES, ignore_errors=True)
        shutil.rmtree(self.path / f".{DATA}.tmp", ignore_errors=True)

    def _count(self, part: Path, last: int) -> bool:
        try:
            with part.open("rb") as file, np.load(file) as columns:
                lengths = columns["lengths"]
        except Exception as error:  # whatever zipfile and NumPy raise for damaged files
            raise UserError(
                f"{part} is damaged: {reason(error)}; delete it, and the same command records its episodes again"
            ) from error
        self.num_episodes, self.num_steps = last + 1, self.num_steps + int(lengths.sum())
        return True


def _refuse_other_settings(path: Path, known: Any, now: Any) -> None:
    names = [name for name in now if known.get(name) != now[name]]
    if not names:
        return
    shown = "; ".join(f"{name} was {known.get(name)} and is now {now[name]}" for name in names)
    raise UserError(
        f"{path} holds a recording with other settings: {shown}; give the same settings to go on, or choose another "
        "folder"
    )


def _columns_of(episodes: Sequence[Episode]) -> dict[str, Array]:
    """Return the episodes side by side, as arrays that need no pickle."""
    first = episodes[0]
    columns = {
        f"observations:{key}": np.concatenate([each.obs[key] for each in episodes]) for key in first.obs
    }
    columns |= {f"infos:{key}": np.concatenate([each.infos[key] for each in episodes]) for key in first.infos}
    for name in ("actions", "rewards", "terminated", "truncated"):
        columns[name] = np.concatenate([getattr(each, name) for each in episodes])
    for name in SCALARS:
        columns[name] = np.array([getattr(each, name) for each in episodes])
    return columns | {"lengths": np.array([len(each) for each in episodes])}


def _episodes_in(columns: dict[str, Array]) -> Iterator[Episode]:
    start = 0
    for number, length in enumerate(columns["lengths"].tolist()):
        steps, rows = slice(start, start + length), slice(start + number, start + number + length + 1)
        yield Episode(
            obs=_entries("observations", columns, rows),
            infos=_entries("infos", columns, rows),
            **{name: columns[name][steps] for name in ("actions", "rewards", "terminated", "truncated")},
            seed=int(columns["seed"][number]),
            behaviour=str(columns["behaviour"][number]),
        )
        start += length


def _entries(kind: str, columns: dict[str, Array], rows: slice) -> dict[str, Array]:
    return {
        name.partition(":")[2]: array[rows] for name, array in columns.items() if name.startswith(f"{kind}:")
    }


def _sync_files(folder: Path) -> None:
    """Make all files and folders below `folder` durable."""
    for path, _, files in os.walk(folder, topdown=False):
        for name in files:
            descriptor = os.open(Path(path) / name, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(Path(path))


__all__ = ["RecordingFolder"]
