"""Opens a dataset by the value of the setting `dataset`."""

import os
from collections.abc import Callable
from pathlib import Path

from rl_training.core.errors import UserError
from rl_training.datasets.builder import collected
from rl_training.datasets.dataset import Dataset
from rl_training.datasets.minari_files import is_minari_folder, minari_folder, open_minari
from rl_training.datasets.recording import Recording, Spaces
from rl_training.datasets.table_files import SUFFIXES
from rl_training.datasets.tables import TableOptions, open_table

ReadRun = Callable[[Path], Recording]
"""Reads the replay data of a run folder."""


def is_table(name: str) -> bool:
    """Return whether a name is that of a table."""
    return Path(name).suffix.lower() in SUFFIXES


def open_recording(
    name: str,
    *,
    read_run: ReadRun | None = None,
    spaces: Spaces | None = None,
    options: TableOptions | None = None,
) -> Recording:
    """Return the episodes that a name means: a folder, a file, or the id of a Minari dataset on this machine.

    `spaces` and `options` are for tables, which do not contain spaces.
    """
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            os.listdir(path)  # raises if it may not be read
            if is_minari_folder(path):
                return open_minari(path, name)
            if read_run is not None and (path / "config.yaml").is_file():
                return read_run(path)
            if (path / "recording.json").is_file():
                raise UserError(
                    f"dataset '{name}' is an unfinished recording; repeat its command to finish it"
                )
            raise UserError(f"dataset '{name}' is a folder without a dataset; give a Minari dataset or a run")
        if path.is_file():
            return open_table(path, name, spaces, options or TableOptions())
        if path.exists():
            raise UserError(f"dataset '{name}' is neither a file nor a folder")
    except OSError as error:
        raise UserError(f"dataset '{name}' cannot be read: {error.strerror or error}") from error
    refuse_missing(name)
    return open_minari(minari_folder(name), name)


def refuse_missing(name: str) -> None:
    """Raise if a name means nothing on this machine; what is there is not opened."""
    path = Path(name).expanduser()
    if path.exists():
        return
    if path.suffix or path.is_absolute() or path.parts[:1] == ("..",):
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise UserError(f"dataset '{name}' does not exist{where}")
    minari_folder(name)


def open_dataset(
    name: str,
    *,
    read_run: ReadRun | None = None,
    spaces: Spaces | None = None,
    max_memory: int | None = None,
) -> Dataset:
    """Return the dataset that a name means; what is larger than `max_memory` bytes stays on disk."""
    return collected(open_recording(name, read_run=read_run, spaces=spaces), max_memory)
