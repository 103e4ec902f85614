"""Reads run folders into records, without torch and without trusting the files.

Everything that lists, compares or exports runs uses these records. A damaged run, or a folder that is not a run, has a
record as well, with a text that explains the problem.
"""

import contextlib
import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

from rl_training.config.presets import dataset_name
from rl_training.config.strict_yaml import MAX_BYTES, read_yaml
from rl_training.core.errors import UserError, printable, readable
from rl_training.experiment.checkpoints.locking import is_held
from rl_training.experiment.files import MAX_METADATA_BYTES, MAX_RECORDS_BYTES, read_mapping, read_plain
from rl_training.experiment.logs.rows import (
    MAX_ROWS,
    as_count,
    clock_of,
    is_evaluation,
    is_metrics_row,
    last_row,
    lines_of,
    parse_rows,
    valid_rows,
)
from rl_training.experiment.records.scores import score_of

ENDED = ("finished", "stopped", "paused", "failed", "interrupted")
STATUSES = ("running", *ENDED, "abandoned", "damaged")
"""`stopped` is an early stop; `abandoned` means that the status is running but no process holds the lock."""
DONE = ("finished", "stopped")
"""Training is complete: all timesteps are done, or the run stopped early."""
NO_RUN = "not a run"
TRACES = {".origin.json", ".lock", "metadata.json", "metrics.jsonl", "evaluations.jsonl"}
"""Files that a run writes next to its config."""
SCALARS = (str, int, float, bool, NoneType)
Evaluation = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class RunRecord:
    """A run, or a folder that is not one; unknown entries are None."""

    path: Path
    name: str
    """Path of the folder relative to the folder that was searched."""
    status: str
    """One of `STATUSES`, or `not a run`."""
    problem: str | None = None
    """What is wrong with the folder."""
    algo: str | None = None
    env_id: str | None = None
    seed: int | None = None
    timesteps: int | None = None
    """Logged steps so far."""
    total_timesteps: int | None = None
    """Its length; in updates if it learns from a dataset alone, as are `timesteps`."""
    dataset: str | None = None
    """The dataset that it learns from."""
    counts_updates: bool = False
    """Whether it learns from a dataset alone."""
    score: float | None = None
    """See `SCORE_RULE`."""
    best: float | None = None
    """See `BEST_RULE`."""
    started: datetime | None = None
    finished: datetime | None = None
    num_evaluations: int = 0
    num_damaged: int = 0
    """Damaged rows of evaluations, which are skipped."""
    metadata: dict[str, Any] = field(default_factory=dict, repr=False)
    """Content of `metadata.json`."""
    written: bytes = field(default=b"", repr=False)
    """Bytes of `evaluations.jsonl`, parsed on demand to save memory."""

    @property
    def is_run(self) -> bool:
        """Whether the folder is a run, intact or damaged."""
        return self.status != NO_RUN

    @property
    def task(self) -> str | None:
        """Its environment, or the name of its dataset if it has none."""
        return self.env_id or (dataset_name(self.dataset) if self.dataset else None)

    @property
    def unit(self) -> str:
        """What it counts: `steps` or `updates`."""
        return "updates" if self.counts_updates else "steps"

    def metadata_entry(self, name: str) -> Any:
        """Return an entry of the metadata: a scalar, or a list or dict of scalars; None for anything else."""
        value = self.metadata.get(name)
        if isinstance(value, dict):
            return scalars(value)
        if isinstance(value, list):
            return [part for part in value if isinstance(part, SCALARS)]
        return value if isinstance(value, SCALARS) else None

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        """The evaluations with the return of every episode; damaged rows are skipped."""
        return _parsed(self.written)[0]

    @cached_property
    def config(self) -> dict[str, Any]:
        """All settings in one flat dict, with `env_kwargs.x` for nested ones; empty if they cannot be read."""
        try:
            return flattened(read_settings(self.path / "config.yaml"))
        except UserError:
            return {}


def scalars(values: dict[str, Any]) -> dict[str, Any]:
    """Return the scalar entries of a dict."""
    return {key: part for key, part in values.items() if isinstance(part, SCALARS)}


def read_run(path: Path, name: str | None = None) -> RunRecord:
    """Return the record of any folder."""
    name = printable(name if name is not None else path.name or path)
    try:
        files = set(os.listdir(path))
    except (OSError, ValueError) as error:  # ValueError: not a valid file name
        problem = error.strerror if isinstance(error, OSError) else error
        return RunRecord(path, name, NO_RUN, f"cannot be read: {problem}")
    if not files:
        return RunRecord(path, name, NO_RUN, "empty")
    problems: list[str] = []
    held = is_held(path)  # before the metadata, which a run writes before it releases its lock
    metadata: dict[str, Any] = _read(_read_metadata, path / "metadata.json", files, problems, {})
    known = _identity(path, files, metadata, problems)
    if known is None:
        return RunRecord(path, name, NO_RUN, _what_else(files, problems))
    written = _read(_read_evaluations, path / "evaluations.jsonl", files, problems, b"")
    damaged: list[int] = []
    rows = valid_rows(lines_of(io.BytesIO(written)), _is_finite_evaluation, damaged)
    returns = [float(row["mean_reward"]) for row in rows]  # the rows are not kept
    if damaged:
        problems.append(f"evaluations.jsonl: skipped {len(damaged)} damaged row(s)")
    status, remark = _status(path, files, metadata, held)
    problem = "; ".join([*([remark] if remark else []), *problems]) or None
    budget = budget_of(path)
    return RunRecord(
        path,
        name,
        status,
        readable(problem) if problem else None,
        **known,
        timesteps=_timesteps(path, files, metadata),
        total_timesteps=budget[0],
        dataset=budget[1],
        counts_updates=budget[2],
        score=score_of(returns),
        best=max(returns, default=None),
        started=_time(metadata.get("started")),
        finished=_time(metadata.get("finished")),
        num_evaluations=len(returns),
        num_damaged=len(damaged),
        metadata=metadata,
        written=written,
    )


def _read(read: Callable[[Path], T], file: Path, files: set[str], problems: list[str], otherwise: T) -> T:
    """Return the content of a file of a run; `otherwise` if it is missing, or if it cannot be read, with a problem."""
    if file.name not in files:
        return otherwise
    try:
        return read(file)
    except UserError as error:
        problems.append(str(error).replace(f"{file.parent}{os.sep}", ""))
        return otherwise


def _identity(
    path: Path, files: set[str], metadata: dict[str, Any], problems: list[str]
) -> dict[str, Any] | None:
    """Return algorithm, environment and seed; None if the folder is not a run."""
    found = metadata
    if not _names_run(metadata):
        if "metadata.json" in files and not problems:
            problems.append("metadata.json has no algorithm and environment")
        found = _read(read_settings, path / "config.yaml", files, problems, {})
        if not _names_run(found):
            found = {}
            if ".origin.json" not in files and not _has_checkpoint(path, files):
                return None
            if "config.yaml" not in files:
                problems.append("config.yaml is missing")
        elif not files & TRACES and not _has_checkpoint(path, files):
            return None  # only a config file, perhaps of another project
    return {
        "algo": readable(found["algo"]) if found else None,
        "env_id": readable(found["env_id"]) if found else None,
        "seed": as_count(found.get("seed")),
    }


def _names_run(data: dict[str, Any]) -> bool:
    return all(isinstance(data.get(key), str) for key in ("algo", "env_id"))


def _has_checkpoint(path: Path, files: set[str]) -> bool:
    """Return whether there is a checkpoint, intact or damaged."""
    if "checkpoints" not in files:
        return False
    with contextlib.suppress(OSError):
        for name in os.listdir(path / "checkpoints"):
            if name.startswith("step_") and (path / "checkpoints" / name / "manifest.json").is_file():
                return True
    return False


def _what_else(files: set[str], problems: list[str]) -> str:
    """Return what a folder is instead of a run."""
    if "manifest.json" in files and "model.safetensors" in files:
        return "a checkpoint or a saved agent"
    if "job.yaml" in files:
        return "the folder of a job whose run has not started"
    return "; ".join(["it has no files of a run", *problems])


def _status(path: Path, files: set[str], metadata: dict[str, Any], held: bool) -> tuple[str, str | None]:
    """Return the status of a run and a remark on it."""
    said = metadata.get("status")
    # the metadata says so only after a run is restored, and a new run may have taken its lock just now
    if held or (said not in ENDED and is_held(path)):
        return "running", None
    if said in ENDED:
        word = metadata.get("error") or metadata.get("stop_reason")
        return str(said), readable(word) if isinstance(word, str) else None
    if said == "running":
        return "abandoned", "no process is training it"
    if "metadata.json" in files:
        word = repr(said) if isinstance(said, SCALARS) else "not a string"
        return "damaged", f"its status is {word}" if metadata else None
    if "metrics.jsonl" in files or "checkpoints" in files:
        return "damaged", "metadata.json is missing; resume continues the run"
    return "abandoned", "it ended before its first step; resume starts it again"


def _read_metadata(path: Path) -> dict[str, Any]:
    return read_mapping(path, MAX_METADATA_BYTES)


def _read_evaluations(path: Path) -> bytes:
    """Return the content of `evaluations.jsonl`, if it has not too many rows."""
    written = read_plain(path, MAX_RECORDS_BYTES)
    if (count := written.count(b"\n")) > MAX_ROWS:
        raise UserError(f"{path} has {count:,} rows; at most {MAX_ROWS:,} are read")
    return written


def _parsed(written: bytes) -> tuple[list[Evaluation], list[int]]:
    return parse_rows(lines_of(io.BytesIO(written)), _is_finite_evaluation)


def _timesteps(path: Path, files: set[str], metadata: dict[str, Any]) -> int | None:
    """Return the number of steps from the metadata, or from the last row of metrics."""
    metrics = metadata.get("metrics")
    steps = metrics.get("global_step") if isinstance(metrics, dict) else None
    if steps is None and "metrics.jsonl" in files:
        steps = clock_of(last_row(path / "metrics.jsonl", is_metrics_row)) or 0
    return as_count(steps)


def _is_finite_evaluation(row: dict[str, Any]) -> bool:
    # integers in a file may be larger than any float
    return is_evaluation(row) and abs(row["mean_reward"]) < 1e300 and 0 <= clock_of(row) < 2**64


def _time(text: object) -> datetime | None:
    """Parse a time of the metadata."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


TOTAL = re.compile(rb"^total_timesteps: (\d{1,18})$", re.MULTILINE)
"""As runs without a dataset write it; for any other spelling the whole file is parsed as YAML."""
NO_DATASET = re.compile(rb"^dataset: null$", re.MULTILINE)


def read_settings(path: Path) -> dict[str, Any]:
    """Return the content of a run's `config.yaml`, unchecked: another version may have written it."""
    return read_yaml(path, path)


def flattened(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings as one flat dict; those of nested dicts, except `algorithm`, get names with a dot.

    >>> flattened({"seed": 1, "env_kwargs": {"g": 9.8}, "algorithm": {"gamma": 0.99, "encoder_kwargs": {}}})
    {'seed': 1, 'env_kwargs.g': 9.8, 'gamma': 0.99}
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if not isinstance(value, dict):
            found[str(key)] = value
            continue
        prefix = "" if key == "algorithm" else f"{key}."
        found |= {f"{prefix}{inner}": part for inner, part in flattened(value).items()}
    return found


def budget_of(run_dir: Path) -> tuple[int | None, str | None, bool]:
    """Return the length of a run from its config, where `resume` changes it, its dataset, and if it counts updates."""
    path = run_dir / "config.yaml"
    with contextlib.suppress(UserError):
        text = read_plain(path, MAX_BYTES)
        found = TOTAL.search(text)
        if found and (NO_DATASET.search(text) or b"\ndataset:" not in text):
            return as_count(int(found[1])), None, False
        settings = read_settings(path)
        dataset = settings.get("dataset")
        offline = isinstance(dataset, str) and settings.get("dataset_fraction", 1.0) == 1.0
        length = settings.get("total_updates" if offline else "total_timesteps")
        return as_count(length), readable(dataset) if isinstance(dataset, str) else None, offline
    return None, None, False
