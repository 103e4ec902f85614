"""Metric files: the same rows as JSON lines, CSV and TensorBoard events, and in a tracker."""

import contextlib
import importlib.util
import json
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError, text_of
from rl_training.core.types import Array, Progress
from rl_training.experiment.faults import disk_fault
from rl_training.experiment.files import unshare
from rl_training.experiment.logs.csv_metrics import CsvTable
from rl_training.experiment.logs.rows import end_of_last_row
from rl_training.experiment.logs.tensorboard import TensorBoardWriter
from rl_training.runtime.callbacks import Callback

WALL_CLOCK = (
    "time/fps", "time/time_elapsed", "time/checkpoint_seconds", "time/checkpoint_bytes", "time/sampled_fps",
    "time/learner_waits", "time/samplers_wait", "time/sampler_restarts", "time/lost_rollouts",
    "time/learned_fps", "time/learner_restarts",
)  # fmt: skip
"""Columns that differ between two runs of the same seed."""
EVENTS = "tensorboard/events.out.tfevents.scalars"


class Sink(Protocol):
    """A destination for rows of metrics."""

    def log(self, metrics: dict[str, float], timesteps: int) -> None: ...
    def close(self) -> None: ...


class JsonLines:
    """`metrics.jsonl`, from which the other files can be recreated. Numbers that are not finite become null."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def log(self, metrics: dict[str, float], timesteps: int) -> None:
        self._file.write(json.dumps(_finite(metrics)) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class WandbTracker:
    """Weights & Biases; `WANDB_MODE=offline` keeps everything in the run folder."""

    def __init__(self, run_dir: Path, config: TrainConfig) -> None:
        try:
            import wandb
        except ImportError as error:
            raise UserError(
                "track is 'wandb', but it is not installed; pip install 'rl-training[wandb]'"
            ) from error
        try:
            self._run: Any = wandb.init(
                project="rl_training",
                name=run_dir.name,
                dir=str(run_dir),
                config=config.to_dict(),
                reinit="create_new",
            )
        except Exception as error:  # no network, no account
            raise UserError(f"wandb cannot be started: {error}; fix that, or use track 'none'") from error

    def log(self, metrics: dict[str, float], timesteps: int) -> None:
        """Send one row; after a failure nothing more is sent, and the run continues."""
        if self._run is None:
            return
        try:
            self._run.log(metrics, step=timesteps)
        except Exception as error:
            self._run = None
            warnings.warn(f"wandb failed, tracking stops: {error}", stacklevel=2)

    def close(self) -> None:
        """Finish the tracked run."""
        if self._run is None:
            return
        try:
            self._run.finish()
        except Exception as error:
            warnings.warn(f"wandb could not be finished: {error}", stacklevel=2)


class MetricFiles:
    """All sinks of a run. Given the `positions` of a checkpoint, the files are truncated to them."""

    def __init__(self, run_dir: Path, config: TrainConfig, positions: Mapping[str, int]) -> None:
        self.paths = {name: run_dir / name for name in ("metrics.jsonl", "evaluations.jsonl", EVENTS)}
        (run_dir / EVENTS).parent.mkdir(exist_ok=True)
        for name, path in self.paths.items():
            path.touch()
            unshare(path)
            _cut(path, positions.get(name, 0))
        tracker: dict[str, Sink] = {"wandb": WandbTracker(run_dir, config)} if config.track == "wandb" else {}
        table = CsvTable(run_dir / "metrics.csv", self.paths["metrics.jsonl"])
        lines, self._events = JsonLines(self.paths["metrics.jsonl"]), TensorBoardWriter(self.paths[EVENTS])
        self.run_dir = run_dir
        self.sinks: dict[str, Sink] = {
            "metrics.jsonl": lines,
            "metrics.csv": table,
            EVENTS: self._events,
            **tracker,
        }

    def log(self, metrics: dict[str, float], timesteps: int) -> None:
        for name, sink in self.sinks.items():
            try:
                sink.log(metrics, timesteps)
            except OSError as error:
                raise disk_fault(error, name, self.run_dir) from error

    def log_histograms(self, numbers: Mapping[str, Array], timesteps: int) -> None:
        """Write a histogram of each array to the TensorBoard file."""
        try:
            self._events.log_histograms(numbers, timesteps)
        except OSError as error:
            raise disk_fault(error, EVENTS, self.run_dir) from error

    def positions(self) -> dict[str, int]:
        """Flush the files to disk and return their lengths."""
        found = {}
        for name, path in self.paths.items():
            try:
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                    found[name] = os.fstat(file.fileno()).st_size
            except OSError as error:
                raise disk_fault(error, name, self.run_dir) from error
        return found

    def close(self) -> None:
        """Close all files; a full disk has been reported already."""
        for sink in self.sinks.values():
            with contextlib.suppress(OSError):
                sink.close()


class EvaluationLog(Callback):
    """Appends every evaluation, with all its episodes, to `evaluations.jsonl`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_evaluate(self, progress: Progress, summary: dict[str, Any]) -> None:
        unit = "updates" if progress.counts_updates else "timesteps"
        try:
            with self.path.open("r+", encoding="utf-8") as file:  # "a" would create a deleted file again
                file.seek(0, os.SEEK_END)
                file.write(json.dumps({unit: progress.clock, **summary}) + "\n")
        except OSError as error:
            raise disk_fault(error, self.path.name, self.path.parent) from error


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def check_tracker(config: TrainConfig) -> None:
    """Raise if the tracker is not installed or has no key, before the run folder is created."""
    if config.track != "wandb":
        return
    if importlib.util.find_spec("wandb") is None:
        raise UserError("track is 'wandb', but it is not installed; pip install 'rl-training[wandb]'")
    if os.environ.get("WANDB_MODE", "online") not in ("online", "shared"):
        return
    import wandb

    try:
        wandb.login(verify=False)  # asks in a terminal, and raises elsewhere
    except Exception as error:
        raise UserError(
            f"wandb has no API key ({text_of(error)}); set WANDB_API_KEY, run 'wandb login', or use WANDB_MODE=offline "
            "or track 'none'"
        ) from error


def _cut(path: Path, size: int) -> None:
    if path.stat().st_size < size:
        warnings.warn(
            f"{path} is shorter than when the checkpoint was written; rows are missing", stacklevel=3
        )
        # without an incomplete last row
        size = end_of_last_row(path) if path.suffix == ".jsonl" else path.stat().st_size
    os.truncate(path, size)
