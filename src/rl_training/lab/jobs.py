"""Jobs of a launch: their folder, their records and their status.

A job is a config with its seed, identified by the config's fingerprint and the seed: listing it again, under any name,
finds the existing run. The folder contains

    jobs/<key>.json     the record of a finished or failed job, a few kilobytes
    runs/<key>/         its run folder, config and output
"""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeGuard

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.experiment.files import algorithm_folder, read_json, safe_name, write_json
from rl_training.experiment.logs.metadata import read_metadata, versions
from rl_training.experiment.logs.rows import ELAPSED, is_metrics_row, last_row
from rl_training.experiment.records.read import DONE, read_run
from rl_training.lab.scored_runs import EvaluationPoint, ScoredRun, scored_run

FORMAT = 1
MAX_NAME = 60
MAX_LOSSES = 5
"""How often the worker of a job may be lost; after one more time the job counts as failed."""


@dataclass(frozen=True)
class Job:
    """One config with its seed; `name` is the display name of the config."""

    name: str
    config: TrainConfig

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the config, without seed and folder."""
        return self.config.fingerprint()

    @cached_property
    def key(self) -> str:
        """The name of its files: the same for the same config and seed, whatever its display name."""
        algo, env = algorithm_folder(self.config.algo), safe_name(self.config.task)[-MAX_NAME:]
        return f"{algo}__{env}__{self.fingerprint}__seed{self.config.seed}"

    def __str__(self) -> str:
        return f"{self.name} seed {self.config.seed}"


def jobs_of(configs: Iterable[tuple[str, TrainConfig]], seeds: Iterable[int]) -> list[Job]:
    """Return a job for every config and seed, seed by seed, so that an early end has results of each config."""
    named = list(configs)
    return [Job(name, config.with_overrides(seed=seed)) for seed in seeds for name, config in named]


class JobFolder:
    """The folder of a launch."""

    def __init__(self, folder: Path) -> None:
        self.path = folder

    def make(self) -> None:
        """Create the folder; raise if it is a run folder, in which other runs would not be listed."""
        if read_run(self.path).is_run:
            raise UserError(f"output_dir '{self.path}' is a run folder; choose another folder")
        try:
            for part in ("jobs", "runs"):
                (self.path / part).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if os.path.isfile(self.path):  # False for an invalid name, where Path.is_file raises
                raise UserError(f"output_dir '{self.path}' is a file; choose a folder") from None
            for part in ("jobs", "runs"):
                if os.path.isfile(self.path / part):
                    raise UserError(
                        f"{self.path / part} is a file, but must be a folder; move it, or choose another output_dir"
                    ) from None
            raise UserError(
                f"output_dir '{self.path}' cannot be written: {error.strerror}; choose another folder"
            ) from error

    def home(self, job: Job) -> Path:
        """Return the folder in which a job's run is created."""
        return self.path / "runs" / job.key

    def run_dir(self, job: Job) -> Path | None:
        """Return the job's run folder, if it has started."""
        found = sorted(path.parent for path in self.home(job).glob("[!.]*/config.yaml"))
        return found[-1] if found else None

    def record(self, job: Job) -> dict[str, Any] | None:
        """Return the record of a finished or failed job, or None."""
        path = self._record_path(job)
        if not path.is_file():
            return None
        remedy = "delete it to create it again from the run"
        try:
            record = read_json(path)
        except UserError as error:
            raise UserError(f"{error}; {remedy}") from error
        if not _is_record(record, job):
            raise UserError(f"{path} is not the record of a job; {remedy}")
        return record

    def write_record(self, job: Job, record: dict[str, Any]) -> dict[str, Any]:
        """Write a record at once, and return it."""
        write_json(self._record_path(job), record)
        return record

    def retry_failed_job(self, job: Job) -> None:
        """Delete the record of a failed job, so that it runs again from its last checkpoint.

        If its run has ended and cannot be scored, the job starts a new run, and the old one moves up one folder.
        """
        record, run_dir = self.record(job), self.run_dir(job)
        if record is None or record["status"] != "failed":
            return
        if run_dir is not None and has_ended(run_dir) and ended_record(job, run_dir)["status"] == "failed":
            self.release(job)
        self._record_path(job).unlink(missing_ok=True)

    def release(self, job: Job) -> None:
        """Move the run of a job up one folder and delete its record, so that the job can run again."""
        run_dir = self.run_dir(job)
        if run_dir is not None:
            run_dir.rename(self.path / run_dir.name)
        self._record_path(job).unlink(missing_ok=True)

    def _record_path(self, job: Job) -> Path:
        return self.path / "jobs" / f"{job.key}.json"


def _is_record(record: Any, job: Job) -> TypeGuard[dict[str, Any]]:
    """Return whether a value is a valid record of this job."""
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        return False
    if (record.get("seed"), record.get("fingerprint")) != (job.config.seed, job.fingerprint):
        return False
    if record.get("status") == "failed":
        return isinstance(record.get("error"), str)
    try:
        scored = scored_job(record, "", "")
        times = [record["seconds"], *(point.wall_time for point in scored.evaluations)]
        whole = scored.score == record["score"] and isinstance(record["versions"], dict)
        whole = whole and all(time is None or isinstance(time, int | float) for time in times)
    except (KeyError, TypeError, UserError):
        return False
    return whole and record.get("status") == "finished"


def scored_job(record: Mapping[str, Any], task: str, name: str) -> ScoredRun:
    """Return the record of a finished job as a scored run."""
    points = [EvaluationPoint(**point) for point in record["evaluations"]]
    unit = record.get("unit", "steps")  # records of earlier versions have none
    return ScoredRun(task, name, record["seed"], points, unit)


def has_ended(run_dir: Path) -> bool:
    """Return whether the training of a run is complete."""
    return read_metadata(run_dir).get("status") in DONE


def ended_record(job: Job, run_dir: Path) -> dict[str, Any]:
    """Return the record of a run that has ended; a run whose evaluations cannot be scored counts as failed."""
    run = read_run(run_dir)
    try:
        scored = scored_run(run)
    except UserError as error:
        return failed_record(job, str(error), run_dir)
    return _head(job, "finished", run.metadata_entry("versions")) | {
        "score": scored.score,
        "unit": scored.unit,
        "evaluations": [asdict(point) for point in scored.evaluations],
        "seconds": last_row(run_dir / "metrics.jsonl", is_metrics_row).get(ELAPSED),
        "stop_reason": run.metadata_entry("stop_reason"),
        "run": run_dir.name,
    }


def failed_record(job: Job, error: str, run_dir: Path | None) -> dict[str, Any]:
    """Return the record of a failed job."""
    return _head(job, "failed", None) | {"error": error, "run": run_dir.name if run_dir else None}


def _head(job: Job, status: str, made_by: Any) -> dict[str, Any]:
    config = job.config
    return {
        "format": FORMAT,
        "status": status,
        "name": job.name,
        "algo": config.algo,
        "env_id": config.task,
        "seed": config.seed,
        "fingerprint": job.fingerprint,
        "total_timesteps": config.budget,
        "versions": made_by if isinstance(made_by, dict) else dict(versions()),
    }


Status = Literal["waiting", "training", "finished", "failed", "paused"]


@dataclass
class JobState:
    """The status of a job, for `Board`."""

    job: Job
    status: Status = "waiting"
    steps: int = 0
    """Steps so far, or updates if its run counts them."""
    evaluation: float | None = None
    """Mean return of the latest evaluation (not the score)."""
    earlier: bool = False
    """It finished or failed before this launch."""
    held: bool = False
    """It waits for another process that uses its run."""
    losses: int = 0
    """How often its worker was lost, and the job continued elsewhere."""
    lost: str = ""
    """Why its worker was lost the last time."""
    error: str = ""
    record: dict[str, Any] | None = None
    began: float = 0.0
    began_at: int = 0

    @property
    def seconds_left(self) -> float | None:
        """Estimate from the speed since its start; None if unknown."""
        done, seconds = self.steps - self.began_at, time.monotonic() - self.began
        if self.status != "training" or done <= 0:
            return None
        return max(self.job.config.budget - self.steps, 0) * seconds / done


class Board:
    """Base class for displays of a launch; shows nothing."""

    def event(self, state: JobState) -> None:
        """Called when a job starts, ends or was done earlier."""

    def show(self, states: Sequence[JobState]) -> None:
        """Called regularly with the status of all jobs."""

    def close(self) -> None:
        """Called at the end."""


@dataclass(frozen=True)
class Launched:
    """The result of a launch."""

    jobs: Sequence[Job]
    states: list[JobState]
    """One per config and seed."""
    stopped_by: int | None = None
    """The signal that ended the launch early."""

    @property
    def records(self) -> list[dict[str, Any]]:
        """Records of finished jobs, in the order and with the names of the job list."""
        found = {state.job.key: state.record for state in self.having("finished")}
        return [
            record | {"name": job.name} for job in self.jobs if (record := found.get(job.key)) is not None
        ]

    def having(self, *statuses: Status) -> list[JobState]:
        """Return the jobs with one of these statuses."""
        return [state for state in self.states if state.status in statuses]
