"""One clock per run: timesteps where something is collected, updates where nothing is."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from rl_training.core.types import Evaluation, Progress, UpdateResult
from rl_training.experiment.console import PlainConsole
from rl_training.experiment.logs.curves import learning_curve
from rl_training.experiment.logs.rows import clock_of, counts_updates, is_evaluation, is_metrics_row
from rl_training.experiment.logs.sinks import EvaluationLog
from rl_training.runtime.callbacks import OnEvaluation, SaveEvery
from rl_training.runtime.trainer import Cadence, Trainer


class Dataset:
    """A source, learner and logger that collects nothing: three batches per iteration."""

    steps_per_collect = 0

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.logged_at: list[int] = []
        self.checkpoints: list[int] = []
        self.saved: list[str] = []

    def batches(self, progress: Progress) -> Iterator[int]:
        yield from range(3)

    def update(self, batch: int, progress: Progress) -> UpdateResult:
        return UpdateResult({"loss": torch.tensor(1.0)})

    def feedback(self, batch: int, result: UpdateResult) -> None:
        pass

    def log(self, metrics: dict[str, float], clock: int) -> None:
        self.rows.append(metrics)
        self.logged_at.append(clock)

    def checkpoint(self, progress: Progress, *, evaluation: Any, best: bool) -> None:
        self.checkpoints.append(progress.clock)

    def save(self, path: Path) -> None:
        self.saved.append(path.name)


def trained(tmp_path: Path, *callbacks: Any) -> tuple[Dataset, Progress]:
    data = Dataset()
    log = EvaluationLog(tmp_path / "evaluations.jsonl")
    log.path.touch()
    trainer = Trainer(
        None,
        data,  # type: ignore[arg-type]
        data,  # type: ignore[arg-type]
        cadence=Cadence(log=6, evaluate=12, checkpoint=9),
        logger=data,
        evaluate=lambda: Evaluation([1.0], [1]),
        save_checkpoint=data.checkpoint,
        callbacks=[*callbacks, log],
    )
    start = Progress(total_timesteps=10**9, total_updates=24)
    context: Any = SimpleNamespace(agent=data, run_dir=tmp_path, start=start)
    trainer.begin(context)
    return data, trainer.fit(start)


def test_cadence_checkpoints_rows_and_callbacks_count_updates(tmp_path: Path) -> None:
    evaluated: list[int] = []
    data, end = trained(tmp_path, SaveEvery(10), OnEvaluation(lambda clock, summary: evaluated.append(clock)))
    assert (end.updates, end.timesteps, end.clock, end.unit, end.done) == (24, 0, 24, "updates", True)
    assert data.logged_at == [6, 12, 18, 24]
    assert evaluated == [12, 24]
    assert sorted(set(data.checkpoints)) == [9, 12, 18, 24]  # 12 is the best evaluation
    assert data.saved == ["step_10", "step_20"]


def test_rows_evaluations_and_curves_count_updates(tmp_path: Path) -> None:
    data, _ = trained(tmp_path)
    assert all(is_metrics_row(row) and counts_updates(row) for row in data.rows)
    assert [clock_of(row) for row in data.rows] == [6.0, 12.0, 18.0, 24.0]
    assert not any("time/total_timesteps" in row for row in data.rows)
    lines = (tmp_path / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()
    evaluations = [json.loads(line) for line in lines]
    assert [row["updates"] for row in evaluations] == [12, 24]
    assert all(is_evaluation(row) for row in evaluations)
    (axes,) = learning_curve(tmp_path, "from data").axes
    assert axes.get_xlabel() == "updates"
    assert axes.lines[-1].get_xdata().tolist() == [12, 24]


def test_the_console_counts_updates(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = PlainConsole(stream, seconds_between_lines=0.0)
    console.start(Progress(total_timesteps=10**9, total_updates=24))
    trained(tmp_path, console)
    lines = stream.getvalue().splitlines()
    assert lines[0].split()[:4] == ["1", "/", "24", "updates"]
    assert len(lines) == 23, "the end has a row of its own"


def test_a_run_that_collects_counts_timesteps() -> None:
    progress = Progress(timesteps=40, updates=3, total_timesteps=80)
    assert (progress.clock, progress.total, progress.unit, progress.fraction) == (40, 80, "steps", 0.5)
    assert clock_of({"time/total_timesteps": 40.0, "time/iterations": 3.0}) == 40.0
    assert clock_of({"timesteps": 40}) == 40
    assert clock_of({"mean_reward": 1.0}) is None
