"""Run folders: making a new one, and finding the one that a path belongs to."""

import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.experiment.building import NOTHING, Given, own_build
from rl_training.experiment.checkpoint_folders import has_checkpoints, possible, read_newest
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.origin import Origin

MAX_SHOWN = 200
"""Letters of a path in a sentence whose end must be read."""
RECORDS = ("metrics.jsonl", "evaluations.jsonl")
"""What a run that has begun writes into; one with rows but no checkpoint has lost its checkpoints."""


def make_run_dir(
    cfg: TrainConfig,
    *,
    start_from: Path | None = None,
    given: Given = NOTHING,
    started_from: dict[str, Any] | None = None,
    fill: Callable[[Path], None] = lambda folder: None,
) -> Path:
    """Create and return `output_dir/<algo>__<env_id>__seed<seed>__<stamp>`; two runs never share one.

    The folder appears with its `config.yaml` inside, so that a run killed in its first instant can be begun again, and
    with what `fill` puts there. `started_from` is the record of weights that were learned elsewhere, and lie there.
    """
    env_name = re.sub(r"[^A-Za-z0-9._-]+", "-", cfg.env_id)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    name = f"{cfg.algo}__{env_name}__seed{cfg.seed}__{stamp}"
    prepared = Path(cfg.output_dir) / f".{secrets.token_hex(8)}.tmp"
    try:
        prepared.mkdir(parents=True)
        fill(prepared)
        within = started_from is not None
        begun_with = None if start_from is None else str(start_from if within else start_from.resolve())
        Origin(cfg, begun_with, own_build(cfg, given), started_from, given.factory is not None).write(
            prepared
        )
        return _published(prepared, Path(cfg.output_dir) / name)
    except FileExistsError:
        raise UserError(f"output_dir '{cfg.output_dir}' is a file; choose a folder") from None
    except NotADirectoryError:
        raise UserError(f"output_dir '{cfg.output_dir}' lies below a file; choose a folder") from None
    except OSError as error:
        shutil.rmtree(prepared, ignore_errors=True)
        shown = cfg.output_dir if len(cfg.output_dir) <= MAX_SHOWN else f"{cfg.output_dir[:MAX_SHOWN]}…"
        raise UserError(f"output_dir '{shown}' cannot be written: {error.strerror}") from error


def _published(prepared: Path, path: Path) -> Path:
    """Give a prepared folder its name, or one with a number, if that is taken."""
    attempt = 0
    while True:
        free = path.with_name(f"{path.name}-{attempt}") if attempt else path
        try:
            os.rename(prepared, free)  # fails if there is a file, or a folder with something in it
            return free
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            attempt += 1


def run_of(path: Path) -> Path:
    """Return the run folder that a run, a checkpoint of it, or `last`/`best` of it belongs to."""
    whole = possible(path).absolute()  # `.` has no parents to look at
    for candidate in (path, path.parent, path.parent.parent, whole.parent, whole.parent.parent):
        if (candidate / "metadata.json").is_file() or has_checkpoints(candidate):
            return candidate
    if (path / "config.yaml").is_file() and not (path / "manifest.json").exists():
        return path
    problem = "is not part of a run" if path.exists() else "does not exist"
    raise UserError(f"{path} {problem}; resume takes a run folder")


def newest_or_none(run_dir: Path) -> Checkpoint | None:
    """Return the newest whole checkpoint, or None if the run was killed before its first one."""
    begun = any((run_dir / name).is_file() and (run_dir / name).stat().st_size for name in RECORDS)
    if has_checkpoints(run_dir) or begun or not (run_dir / "config.yaml").is_file():
        return read_newest(run_dir)
    return None
