"""Deletes runs, but never one that is in use or partially. Needs no torch."""

import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_training.core.errors import UserError
from rl_training.experiment.checkpoints.locking import RunLock, is_held
from rl_training.experiment.files import sync_folder
from rl_training.experiment.records.read import RunRecord, read_run
from rl_training.experiment.records.search import search

REMOVED = ".rl-training-removed"
"""Suffix of a run's temporary name while it is deleted."""
OURS = {
    "config.yaml", "metadata.json", "metrics.csv", "metrics.jsonl", "evaluations.jsonl", "learning_curve.png",
    "checkpoints", "tensorboard", "wandb", "error.txt", "profile.json", "timeline.png", "elo.png", "started_from",
    ".origin.json", ".lock",
}  # fmt: skip


def check_removable(path: Path) -> RunRecord:
    """Return the record of a run that may be deleted; raise for links, other folders, and runs in use."""
    if path.is_symlink():
        raise UserError(
            f"{path} is a link, and rm does not follow links; give the folder itself, {path.resolve()}"
        )
    if not path.exists():
        raise UserError(f"{path} does not exist; give run folders")
    record = read_run(path)
    if not record.is_run:
        raise UserError(f"{path} is not a run ({record.problem}); rm deletes runs only")
    folders = [
        path / name
        for name in foreign_files(path)
        if (path / name).is_dir() and not (path / name).is_symlink()
    ]
    for inside in [run for folder in folders for run in search(folder) if run.is_run]:
        raise UserError(f"{path} contains another run, {inside.path}; move or remove that run first")
    if Path.cwd().is_relative_to(path.resolve()):
        raise UserError(f"{path} is or contains the working folder; change to another folder first")
    if is_held(path):
        with RunLock(path):  # raises an error that names the process
            pass
    return record


def remove_runs(paths: Sequence[Path]) -> None:
    """Delete runs, each renamed under its lock first; leftovers of a killed rm are deleted as well."""
    for folder in dict.fromkeys(path.resolve().parent for path in paths):
        for leftover in leftovers(folder):
            shutil.rmtree(leftover, ignore_errors=True)
    for path in paths:
        check_removable(path)  # it may have changed since the user confirmed
        nameless = path.resolve().with_name(f".{secrets.token_hex(8)}{REMOVED}")
        with RunLock(path):
            try:
                os.rename(path, nameless)
                sync_folder(nameless.parent)
            except OSError as error:
                raise UserError(f"{path} cannot be removed: {error.strerror}") from error
        _delete(nameless, path)


def foreign_files(path: Path) -> list[str]:
    """Return the entries of a run folder that no run creates."""
    return sorted(name for name in os.listdir(path) if name not in OURS and not name.endswith(".tmp"))


def leftovers(folder: Path) -> list[Path]:
    """Return the renamed folders of runs whose removal was interrupted."""
    return [path for path in folder.glob(f".*{REMOVED}") if path.is_dir() and not path.is_symlink()]


def _delete(nameless: Path, path: Path) -> None:
    """Delete a renamed folder; another rm may be deleting it as well."""
    failures: list[OSError] = []

    def keep(function: Any, culprit: str, found: Any) -> None:
        error = found[1]
        if not isinstance(error, FileNotFoundError):
            failures.append(error)

    shutil.rmtree(nameless, onerror=keep)
    if failures:
        raise UserError(
            f"{path} was only partially deleted ({failures[0].strerror}: {failures[0].filename}); the next rm in the "
            "same folder deletes the rest"
        )
