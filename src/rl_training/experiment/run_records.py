"""What a run of a benchmark scored: read from its folder, kept in a file, judged by its end and not by its best."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.core.errors import UserError
from rl_training.experiment.files import read_json, write_json
from rl_training.experiment.logging import STEP, is_metrics_row, is_number, read_rows

SCORE_RULE = "the mean of the last tenth of a run's evaluations (rounded down, at least one)"
BEST_RULE = (
    "the highest evaluation of a run, which chance favours: shown beside the score, and never used as one"
)
FORMAT = 1
ENDED = ("finished", "stopped")
"""How the metadata of a run that needs no more training says so: its budget is spent, or it stopped itself early."""
ELAPSED = "time/time_elapsed"


@dataclass(frozen=True)
class EvaluationPoint:
    """One evaluation: environment steps trained before it, mean return, seconds since the run began if known."""

    step: int
    mean_reward: float
    wall_time: float | None = None


@dataclass(frozen=True)
class RunRecord:
    """One run: which task, by whom (an algorithm or a preset), with which seed, and its evaluations in order."""

    task: str
    name: str
    seed: int
    evaluations: Sequence[EvaluationPoint]

    def __post_init__(self) -> None:
        if problem := self._problem():
            raise UserError(f"the run of {self.name} on {self.task} with seed {self.seed} {problem}")

    def _problem(self) -> str | None:
        points = self.evaluations
        if not points:
            return "has no evaluations; train it with eval_every_timesteps"
        for point in points:
            if not math.isfinite(point.mean_reward):
                return f"was evaluated as {point.mean_reward} at step {point.step:,}; leave it out and say so"
        if any(after.step <= before.step for before, after in pairwise(points)):
            return "has evaluations that are not in the order of their steps; sort them and keep one of each"
        return None

    @property
    def score(self) -> float:
        """What counts: see `SCORE_RULE`."""
        last = self.evaluations[-max(1, len(self.evaluations) // 10) :]
        return math.fsum(point.mean_reward for point in last) / len(last)

    @property
    def best(self) -> float:
        """What does not count: see `BEST_RULE`."""
        return max(point.mean_reward for point in self.evaluations)

    @property
    def times(self) -> list[float] | None:
        """Seconds of all evaluations, or None if one is unknown or they do not grow."""
        times = [point.wall_time for point in self.evaluations]
        known = [seconds for seconds in times if seconds is not None and math.isfinite(seconds)]
        grow = all(before < after for before, after in pairwise(known))
        return known if len(known) == len(times) and grow else None


def read_run(run_dir: Path, *, name: str | None = None, task: str | None = None) -> RunRecord:
    """Return the record of a finished run folder; by default its algorithm on its environment.

    A run that goes on, or failed, has no end to be judged by and is refused.
    """
    facts = read_json(run_dir / "metadata.json")
    if not isinstance(facts, dict) or not {"algo", "env_id", "seed", "status"} <= facts.keys():
        raise UserError(f"{run_dir / 'metadata.json'} does not tell algo, env_id, seed and status of a run")
    if facts["status"] not in ENDED:
        raise UserError(
            f"{run_dir} is '{facts['status']}' and not finished; rl-training resume it before it is scored"
        )
    try:
        return RunRecord(
            str(facts["env_id"]) if task is None else task,
            str(facts["algo"]) if name is None else name,
            int(facts["seed"]),
            _evaluations(run_dir),
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"the files of {run_dir} are damaged: {error}") from error


def _evaluations(run_dir: Path) -> list[EvaluationPoint]:
    rows = read_rows(run_dir / "evaluations.jsonl", _is_evaluation)
    steps = [int(row["timesteps"]) for row in rows]
    return [
        EvaluationPoint(step, float(row["mean_reward"]), seconds)
        for step, row, seconds in zip(steps, rows, _seconds(run_dir, steps), strict=True)
    ]


def _is_evaluation(row: dict[str, Any]) -> bool:
    return is_number(row.get("timesteps")) and is_number(row.get("mean_reward"))


def _seconds(run_dir: Path, steps: Sequence[int]) -> list[float | None]:
    """Return when a run had made so many steps, by the rows of its metrics, linear between two of them.

    The time is that of training, evaluating and saving, and goes on where a resumed run had stopped.
    """
    rows = [
        row for row in read_rows(run_dir / "metrics.jsonl", is_metrics_row) if row.get(ELAPSED) is not None
    ]
    if not rows:
        return [None] * len(steps)
    logged, elapsed = [row[STEP] for row in rows], [row[ELAPSED] for row in rows]
    # until the first row a run is as fast as up to it; after the last one nothing is known
    found = np.interp(steps, [0, *logged], [0.0, *elapsed])
    return [
        float(seconds) if step <= logged[-1] else None for step, seconds in zip(steps, found, strict=True)
    ]


def write_records(path: Path, records: Iterable[RunRecord]) -> None:
    """Keep records in a JSON file, as the baseline of later ones."""
    write_json(path, {"format": FORMAT, "records": [asdict(record) for record in records]})


def read_records(path: Path) -> list[RunRecord]:
    """Return the records of a file, or of `records.json` in the folder of a report."""
    path = path / "records.json" if path.is_dir() else path
    data = read_json(path)
    if (
        not isinstance(data, dict)
        or data.get("format") != FORMAT
        or not isinstance(data.get("records"), list)
    ):
        raise UserError(f"{path} holds no records of format {FORMAT}; make the report again")
    return [_record(entry, path) for entry in data["records"]]


def _record(entry: Any, path: Path) -> RunRecord:
    try:
        points = [
            EvaluationPoint(
                int(point["step"]),
                float(point["mean_reward"]),
                None if point["wall_time"] is None else float(point["wall_time"]),
            )
            for point in entry["evaluations"]
        ]
        return RunRecord(str(entry["task"]), str(entry["name"]), int(entry["seed"]), points)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{path} has a damaged record ({error}); make the report again") from error
