"""Metric files: one row per log interval, the same in JSON lines, CSV, TensorBoard and a tracker."""

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.protocols import Logger
from rl_training.experiment.files import write_text
from rl_training.experiment.tensorboard import TensorBoardWriter

STEP = "time/total_timesteps"
WALL_CLOCK = ("time/fps", "time/time_elapsed")
"""Columns that differ between two runs of the same seed."""


class RunLogger:
    """Sends every row to all sinks."""

    def __init__(self, sinks: Sequence[Logger]) -> None:
        self.sinks = sinks

    def log(self, metrics: dict[str, float], timesteps: int) -> None:
        """Write one row."""
        for sink in self.sinks:
            sink.log(metrics, timesteps)

    def close(self) -> None:
        """Close all files."""
        for sink in self.sinks:
            sink.close()


class JsonLines:
    """`metrics.jsonl`: the record the others can be made from. Numbers JSON cannot hold become null."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def log(self, metrics: dict[str, float], timesteps: int) -> None:
        """Append one line."""
        row = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class CsvTable:
    """`metrics.csv`: a new column, such as the first evaluation's, rewrites the file with a wider header."""

    def __init__(self, path: Path, rows: Sequence[dict[str, Any]] = ()) -> None:
        self.path = path
        self._columns: list[str] = []
        self._file: io.TextIOWrapper | None = None
        self._rewrite(list(rows))

    def log(self, metrics: dict[str, float], timesteps: int) -> None:
        """Append one line."""
        if any(name not in self._columns for name in metrics):
            with self.path.open(encoding="utf-8", newline="") as file:
                self._rewrite([*csv.DictReader(file), metrics])
            return
        assert self._file is not None
        csv.DictWriter(self._file, self._columns, lineterminator="\n").writerow(metrics)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _rewrite(self, rows: list[dict[str, Any]]) -> None:
        self.close()
        self._columns += [
            name for name in dict.fromkeys(n for row in rows for n in row) if name not in self._columns
        ]
        table = io.StringIO()
        writer = csv.DictWriter(table, self._columns, lineterminator="\n")
        if rows:
            writer.writeheader()
            writer.writerows(rows)
        write_text(self.path, table.getvalue())
        self._file = self.path.open("a", encoding="utf-8", newline="")


class WandbTracker:
    """Weights & Biases; `WANDB_MODE=offline` keeps everything in the run folder."""

    def __init__(self, run_dir: Path, config: TrainConfig) -> None:
        try:
            import wandb
        except ImportError as error:
            raise UserError(
                "track is 'wandb', but it is not installed; pip install 'rl-training[wandb]'"
            ) from error
        self._run = wandb.init(
            project="rl_training",
            name=run_dir.name,
            dir=str(run_dir),
            config=config.to_dict(),
            reinit="create_new",
        )

    def log(self, metrics: dict[str, float], timesteps: int) -> None:
        """Send one row."""
        self._run.log(metrics, step=timesteps)

    def close(self) -> None:
        """Finish the tracked run."""
        self._run.finish()


def open_logger(run_dir: Path, config: TrainConfig, *, timesteps: int = 0) -> RunLogger:
    """Open all sinks of a run; rows beyond `timesteps`, written after the checkpoint we go on from, are cut."""
    rows = cut_rows(run_dir / "metrics.jsonl", timesteps)
    cut_rows(run_dir / "evaluations.jsonl", timesteps, key="timesteps")
    sinks: list[Logger] = [
        JsonLines(run_dir / "metrics.jsonl"),
        CsvTable(run_dir / "metrics.csv", rows),
        TensorBoardWriter(run_dir / "tensorboard"),
    ]
    if config.track == "wandb":
        sinks.append(WandbTracker(run_dir, config))
    return RunLogger(sinks)


def cut_rows(path: Path, timesteps: int, key: str = STEP) -> list[dict[str, Any]]:
    """Drop the lines of a JSON-lines file that lie beyond `timesteps`; return those that stay."""
    rows = [row for row in read_rows(path) if row.get(key, 0) <= timesteps]
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    return rows


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a JSON-lines file; a line torn by a crash is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows
