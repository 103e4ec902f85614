"""One run in detail: changed settings, what happened, and its checkpoints. Imports torch for the default settings."""

import os
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig, algorithm_config_class
from rl_training.core.errors import ConfigError
from rl_training.experiment.checkpoints.folders import POINTERS, read_pointer
from rl_training.experiment.checkpoints.format import step_of
from rl_training.experiment.records.read import RunRecord, flattened, scalars
from rl_training.experiment.records.search import row_of

IDENTITY = ("algo", "env_id", "seed", "total_timesteps", "output_dir")
"""Settings without a meaningful default, or shown anyway."""


def describe(run: RunRecord) -> dict[str, Any]:
    """Return the description of a run as plain data."""
    entries = (
        "arguments",
        "versions",
        "machine",
        "update_path",
        "losses",
        "started_from",
        "stop_reason",
        "error",
    )
    return row_of(run) | {
        "last_evaluation": scalars(run.evaluations[-1]) if run.evaluations else None,
        "resumes": _length(run.metadata.get("resumes")),
        "restarts": _length(run.metadata.get("restarts")),
        **{name: run.metadata_entry(name) for name in entries},
        "changed_settings": changed_settings(run),
        "checkpoints": _checkpoints(run.path / "checkpoints"),
        "replay_bytes": size_of(run.path / "checkpoints" / "replay"),
        "bytes": size_of(run.path),
    }


def changed_settings(run: RunRecord) -> dict[str, Any]:
    """Return the settings that differ from the defaults of this version."""
    defaults: dict[str, Any] = {}
    if (
        run.algo is not None and ":" in run.algo
    ):  # the class is not imported, so only the run's settings are known
        defaults = flattened(TrainConfig(algo="ppo", env_id="CartPole-v1").to_dict() | {"algorithm": {}})
    elif run.algo is not None and algorithm_config_class(run.algo) is not None:
        defaults = flattened(_defaults_of(run.algo).to_dict())
    return {
        name: value
        for name, value in run.config.items()
        if name not in IDENTITY and (name not in defaults or value != defaults[name])
    }


def _defaults_of(algo: str) -> TrainConfig:
    try:
        return TrainConfig(algo=algo, env_id="CartPole-v1")
    except ConfigError:  # it needs a dataset
        return TrainConfig(algo=algo, env_id="CartPole-v1", dataset="unnamed")


def size_of(folder: Path) -> int:
    """Return the total size of all files below a folder; links and vanishing files do not count."""
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(path, name)).st_size
            except OSError:
                continue
    return total


def _checkpoints(folder: Path) -> list[dict[str, Any]]:
    """Return the checkpoints, oldest first, with the pointers that name them."""
    names = os.listdir(folder) if folder.is_dir() else []
    pointers = {pointer: read_pointer(folder, pointer) for pointer in POINTERS}
    return [
        {
            "name": name,
            "bytes": size_of(folder / name),
            "called": [pointer for pointer, target in pointers.items() if target == name],
        }
        for name in sorted((name for name in names if step_of(name) >= 0), key=step_of)
    ]


def _length(value: object) -> int:
    return len(value) if isinstance(value, list) else 0
