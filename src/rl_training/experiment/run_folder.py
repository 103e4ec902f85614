"""Run folders: creating one, finding one, and the record of how a run started (`.origin.json`)."""

import errno
import json
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig, config_from_dict, read_settings
from rl_training.core.errors import UserError
from rl_training.experiment.building import NO_OBJECTS, UserObjects, own_algorithm
from rl_training.experiment.checkpoints.folders import has_checkpoints, read_newest, readable_path
from rl_training.experiment.checkpoints.format import Checkpoint
from rl_training.experiment.checkpoints.trust import Trust, imports_nothing, is_signed, sign_text
from rl_training.experiment.files import (
    algorithm_folder,
    read_json,
    read_plain,
    safe_name,
    write_json,
    write_text,
)

MAX_SHOWN = 200
"""Characters of a path that an error message shows."""
RECORDS = ("metrics.jsonl", "evaluations.jsonl")
"""Files that a started run writes; a run with rows but no checkpoint has lost its checkpoints."""


def make_run_dir(
    cfg: TrainConfig,
    *,
    start_from: Path | None = None,
    given: UserObjects = NO_OBJECTS,
    started_from: dict[str, Any] | None = None,
    fill: Callable[[Path], None] = lambda folder: None,
) -> Path:
    """Create and return `output_dir/<algo>__<env_id>__seed<seed>__<stamp>`; two runs never share a folder.

    Without an environment, the name of the dataset takes the place of the id.

    The folder appears together with its `config.yaml` and the files that `fill` writes, so that a run killed at once
    can be started again. `started_from` describes the pretrained weights that are copied into the folder.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    name = f"{algorithm_folder(cfg.algo)}__{safe_name(cfg.task)}__seed{cfg.seed}__{stamp}"
    prepared = Path(cfg.output_dir) / f".{secrets.token_hex(8)}.tmp"
    try:
        prepared.mkdir(parents=True)
        fill(prepared)
        Origin(
            cfg,
            None if start_from is None else str(start_from),
            own_algorithm(cfg),
            started_from,
            given.factory is not None,
            given.loss_names(cfg),
        ).write(prepared)
        return _published(prepared, Path(cfg.output_dir) / name)
    except UserError:  # an agent that `fill` copies cannot be written
        shutil.rmtree(prepared, ignore_errors=True)
        raise
    except FileExistsError:
        raise UserError(f"output_dir '{cfg.output_dir}' is a file; choose a folder") from None
    except NotADirectoryError:
        raise UserError(f"output_dir '{cfg.output_dir}' lies below a file; choose a folder") from None
    except OSError as error:
        shutil.rmtree(prepared, ignore_errors=True)
        shown = cfg.output_dir if len(cfg.output_dir) <= MAX_SHOWN else f"{cfg.output_dir[:MAX_SHOWN]}…"
        raise UserError(f"output_dir '{shown}' cannot be written: {error.strerror}") from error


def _published(prepared: Path, path: Path) -> Path:
    """Rename a prepared folder to its name, with a number appended if the name is taken."""
    attempt = 0
    while True:
        free = path.with_name(f"{path.name}-{attempt}") if attempt else path
        try:
            os.rename(prepared, free)  # fails if there is a file or a folder that is not empty
            return free
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            attempt += 1


def find_run_dir(path: Path) -> Path:
    """Return the run folder that a run, a checkpoint of it, or `last`/`best` of it belongs to."""
    whole = readable_path(path).absolute()  # because `.` has no parents
    for candidate in (path, path.parent, path.parent.parent, whole.parent, whole.parent.parent):
        if (candidate / "metadata.json").is_file() or has_checkpoints(candidate):
            return candidate
    if (path / "config.yaml").is_file() and not (path / "manifest.json").exists():
        return path
    problem = "is not part of a run" if path.exists() else "does not exist"
    raise UserError(f"{path} {problem}; resume takes a run folder")


def run_folder_of(path: str | os.PathLike[str] | None) -> Path | None:
    """Return the run folder that a run or a checkpoint belongs to; None if it belongs to none, or is gone."""
    if path is None:
        return None
    try:
        return find_run_dir(Path(path))
    except UserError:
        return None


def newest_checkpoint_or_none(run_dir: Path, trust: Trust) -> Checkpoint | None:
    """Return the newest intact checkpoint, or None if the run was killed before its first one."""
    has_rows = any((run_dir / name).is_file() and (run_dir / name).stat().st_size for name in RECORDS)
    if has_checkpoints(run_dir) or has_rows or not (run_dir / "config.yaml").is_file():
        return read_newest(run_dir, trust)
    return None


NAME = ".origin.json"
ORIGIN_KEYS = ("start_from", "algorithm", "started_from", "env_factory", "losses")


@dataclass(frozen=True)
class Origin:
    """How a run started: its config, its first checkpoint and its algorithm class."""

    config: TrainConfig
    start_from: str | None = None
    algorithm: str | None = None
    """`module:Class` of an algorithm of the user's own."""
    started_from: dict[str, Any] | None = None
    """The source of pretrained weights; `start_from` then is their copy in the run folder."""
    env_factory: bool = False
    """The environment was built by a function, which the run does not contain."""
    losses: dict[str, str] = field(default_factory=dict)
    """Names of the replaced losses."""
    signed: bool = False
    """Written by this user and unchanged since."""

    def write(self, folder: Path) -> None:
        """Write `config.yaml` and `.origin.json`."""
        text = self.config.to_yaml()
        write_text(folder / "config.yaml", text)
        record = {name: getattr(self, name) for name in ORIGIN_KEYS}
        if imports_nothing(self.config):
            record["signature"] = sign_text(_signed_text(text, record))
        write_json(folder / NAME, record)


def read_origin(run_dir: Path, trust: Trust) -> Origin:
    """Return how a run started; only the config if there is no `.origin.json`."""
    file = run_dir / "config.yaml"
    settings, record, signed = read_settings(file), dict[str, Any](), False
    if (run_dir / NAME).is_file():
        record = read_json(run_dir / NAME)
        if not isinstance(record, dict):
            raise UserError(f"{run_dir / NAME} is damaged; delete it to start from config.yaml alone")
        text = read_plain(file).decode("utf-8")
        signed = is_signed(_signed_text(text, record), record.get("signature"))
    start_from, algorithm = (
        None if record.get(name) is None else str(record[name]) for name in ("start_from", "algorithm")
    )
    settings["algo"] = algorithm or settings.get("algo")
    known = None
    if isinstance(settings["algo"], str):  # otherwise the config is reported as wrong
        known = trust.algorithm_of(run_dir, settings["algo"], signed=signed).config_class
    config = config_from_dict(settings, str(file), known)
    started_from = record["started_from"] if isinstance(record.get("started_from"), dict) else None
    losses = record["losses"] if isinstance(record.get("losses"), dict) else {}
    names = {str(name): str(function) for name, function in losses.items()}
    return Origin(
        config, start_from, algorithm, started_from, record.get("env_factory") is True, names, signed
    )


def _signed_text(config: str, record: dict[str, Any]) -> str:
    return config + json.dumps({name: record.get(name) for name in ORIGIN_KEYS})
