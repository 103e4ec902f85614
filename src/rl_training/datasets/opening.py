"""Opens a dataset by the value of the setting `dataset`."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from rl_training.core.errors import UserError
from rl_training.datasets.builder import Allocate
from rl_training.datasets.dataset import Dataset
from rl_training.datasets.minari_files import is_minari_folder, minari_folder, read_minari

ReadRun = Callable[[Path, Allocate], Dataset]
"""Reads the replay data of a run folder."""


def open_dataset(name: str, *, read_run: ReadRun | None = None, allocate: Allocate = np.empty) -> Dataset:
    """Return the dataset that a name means: a folder, a file, or the id of a Minari dataset on this machine."""
    path = Path(name).expanduser()
    if path.is_dir():
        if is_minari_folder(path):
            return read_minari(path, name, allocate)
        if read_run is not None and (path / "config.yaml").is_file():
            return read_run(path, allocate)
        raise UserError(f"dataset '{name}' is a folder without a dataset; give a Minari dataset or a run")
    if path.exists() or path.suffix or path.is_absolute():
        raise UserError(f"dataset '{name}' does not exist")
    return read_minari(minari_folder(name), name, allocate)
