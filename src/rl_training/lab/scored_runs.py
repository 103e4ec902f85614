"""Scored runs: the evaluations and the final score of each run, as benchmarks use them.

They are read from finished run folders, stored in `records.json`, and can be created for runs of other libraries.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.core.errors import UserError
from rl_training.experiment.files import MAX_RECORDS_BYTES, read_json, write_json
from rl_training.experiment.logs.rows import ELAPSED, clock_of, counts_updates, is_metrics_row, read_rows
from rl_training.experiment.records.read import DONE, RunRecord
from rl_training.experiment.records.scores import score_of

FORMAT = 1
UNITS = ("steps", "updates")
"""What a run counts: environment steps, or updates if it collects nothing."""


@dataclass(frozen=True)
class EvaluationPoint:
    """One evaluation: the run's steps or updates before it, mean return, and seconds since its start if known."""

    step: int
    mean_reward: float
    wall_time: float | None = None


@dataclass(frozen=True)
class ScoredRun:
    """One run: its task, name (an algorithm or a preset), seed, evaluations in order, and what it counts."""

    task: str
    name: str
    seed: int
    evaluations: Sequence[EvaluationPoint]
    unit: str = "steps"
    """One of `UNITS`."""

    def __post_init__(self) -> None:
        if problem := self._problem():
            raise UserError(f"the run of {self.name} on {self.task} with seed {self.seed} {problem}")

    def _problem(self) -> str | None:
        points = self.evaluations
        if self.unit not in UNITS:
            return f"counts {self.unit!r}; use one of {', '.join(UNITS)}"
        if not points:
            return "has no evaluations; train it with eval_every_timesteps"
        for point in points:
            if not math.isfinite(point.mean_reward):
                where = f"{self.unit.removesuffix('s')} {point.step:,}"
                return f"has an evaluation of {point.mean_reward} at {where}; exclude the run and report it"
        if any(after.step <= before.step for before, after in pairwise(points)):
            return f"has evaluations that are not in the order of their {self.unit}; sort them and remove duplicates"
        return None

    @property
    def score(self) -> float:
        """The score: see `SCORE_RULE`."""
        score = score_of([point.mean_reward for point in self.evaluations])
        assert score is not None  # there are evaluations
        return score

    @property
    def best(self) -> float:
        """The best evaluation, which is not a score: see `BEST_RULE`."""
        return max(point.mean_reward for point in self.evaluations)

    @property
    def times(self) -> list[float] | None:
        """Seconds of all evaluations, or None if one is unknown or they do not increase."""
        times = [point.wall_time for point in self.evaluations]
        known = [seconds for seconds in times if seconds is not None and math.isfinite(seconds)]
        grow = all(before < after for before, after in pairwise(known))
        return known if len(known) == len(times) and grow else None


def scored_run(run: RunRecord, *, name: str | None = None, task: str | None = None) -> ScoredRun:
    """Return a finished run as a scored run, by default named by its algorithm; raise for any other run."""
    if not run.is_run:
        raise UserError(f"{run.path} is not a run ({run.problem}); give a run folder")
    if run.status not in DONE:
        raise UserError(f"{run.path} is not finished ('{run.status}'); use rl-training resume to finish it")
    if run.algo is None or run.task is None or run.seed is None or run.num_damaged:
        problem = run.problem or "metadata.json has no algo, env_id and seed"
        raise UserError(f"{run.path} is damaged: {problem}; train it again")
    steps = [int(clock_of(row)) for row in run.evaluations]
    points = [
        EvaluationPoint(step, float(row["mean_reward"]), seconds)
        for step, row, seconds in zip(steps, run.evaluations, _seconds(run.path, steps), strict=True)
    ]
    unit = "updates" if any(map(counts_updates, run.evaluations)) else "steps"
    return ScoredRun(
        run.task if task is None else task, run.algo if name is None else name, run.seed, points, unit
    )


def _seconds(run_dir: Path, steps: Sequence[int]) -> list[float | None]:
    """Return the time at each number of steps or updates, interpolated linearly between the rows of metrics.

    It includes training, evaluation and checkpoints, without the time between an interruption and a resume.
    """
    rows = [
        row for row in read_rows(run_dir / "metrics.jsonl", is_metrics_row) if row.get(ELAPSED) is not None
    ]
    if not rows:
        return [None] * len(steps)
    logged, elapsed = [clock_of(row) for row in rows], [row[ELAPSED] for row in rows]
    # constant speed before the first row; unknown after the last one
    found = np.interp(steps, [0, *logged], [0.0, *elapsed])
    return [
        float(seconds) if step <= logged[-1] else None for step, seconds in zip(steps, found, strict=True)
    ]


def write_records(path: Path, records: Iterable[ScoredRun]) -> None:
    """Write records to a JSON file, which can be the baseline of later reports."""
    write_json(path, {"format": FORMAT, "records": [asdict(record) for record in records]})


def records_file(path: Path) -> Path:
    """Return the records file of a path: itself, or `records.json` in a report folder."""
    return path / "records.json" if path.is_dir() else path


def read_records(path: Path) -> list[ScoredRun]:
    """Return the records of a file, or of `records.json` in a report folder."""
    path = records_file(path)
    if not path.exists():
        raise UserError(f"{path} does not exist; give the folder of a report, or its records.json")
    try:
        data = read_json(path, MAX_RECORDS_BYTES)
    except UserError as error:
        raise UserError(f"{error}; create the report again") from error
    if (
        not isinstance(data, dict)
        or data.get("format") != FORMAT
        or not isinstance(data.get("records"), list)
    ):
        raise UserError(f"{path} has no records of format {FORMAT}; create the report again")
    return [_record(entry, path) for entry in data["records"]]


def _record(entry: Any, path: Path) -> ScoredRun:
    try:
        points = [
            EvaluationPoint(
                int(point["step"]),
                float(point["mean_reward"]),
                None if point["wall_time"] is None else float(point["wall_time"]),
            )
            for point in entry["evaluations"]
        ]
        unit = str(entry.get("unit", "steps"))  # older files have none
        return ScoredRun(str(entry["task"]), str(entry["name"]), int(entry["seed"]), points, unit)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{path} has a damaged record ({error}); create the report again") from error
    except UserError as error:
        raise UserError(f"{path} has an invalid record: {error}") from error
