"""Our side of a measurement: a whole run through the public door, timed between two ends of collecting."""

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fair import TrainingClock, mean_return
from rows import Growth, Race, Speed

from rl_training.config import TrainConfig, load_config
from rl_training.core.types import Progress, UpdateResult
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import Callback, StopTraining, TrainingContext

QUIET: dict[str, Any] = {
    "log_every_timesteps": 10**9,
    "eval_every_timesteps": 0,
    "checkpoint_every_timesteps": 0,
    "num_eval_episodes": 1,
    "max_eval_episode_steps": 10,
}
FAST_PATHS = frozenset({"explicit"})
"""What `update_path` in a run's metadata says when the fast path ran. The one place to change."""


def checked_path(row: Speed, metadata: dict[str, Any]) -> str | None:
    """Return which way updates went, if the run says it; refuse a slow one where the fast one is expected."""
    path = metadata.get("update_path")
    if path is not None and row.fast_path and path not in FAST_PATHS:
        raise SystemExit(
            f"{row.name}: updates took the path {path!r}, and not {' or '.join(sorted(FAST_PATHS))}; a figure for it "
            "would be of another program. Set fast_path=False in rows.py if that is meant."
        )
    return path


class Stopwatch(Callback):
    """Times whole iterations, from the first end of collecting after `warm_up` steps to the last one."""

    def __init__(self, warm_up: int) -> None:
        self.warm_up = warm_up
        self.first: tuple[int, float] | None = None
        self.last = (0, 0.0)
        self.updating = 0.0
        self._updated = 0.0

    def on_collect(self, progress: Progress) -> None:
        """Note the time; the updates of the iteration before have ended."""
        now = time.perf_counter()
        if self.first is not None:
            self.updating += max(0.0, self._updated - self.last[1])
        elif progress.timesteps >= self.warm_up:
            self.first = (progress.timesteps, now)
        self.last = (progress.timesteps, now)

    def on_update(self, progress: Progress, result: UpdateResult) -> None:
        """Note the time."""
        self._updated = time.perf_counter()

    def result(self) -> dict[str, float]:
        """Return steps per second, and the part of the time that drawing batches and learning from them took."""
        assert self.first is not None, "the run ended before its warm-up"
        steps, seconds = self.last[0] - self.first[0], self.last[1] - self.first[1]
        return {
            "steps_per_second": steps / seconds,
            "updating": self.updating / seconds,
            "steps": steps,
            "seconds": seconds,
        }


def speed(row: Speed, side: str) -> dict[str, Any]:
    """Train by the row's settings, or by those of a variant."""
    config = TrainConfig(algo=row.algo, env_id=row.env_id, seed=1, num_envs=row.num_envs).with_overrides(
        preprocessing=row.preprocessing, total_timesteps=row.warm_up + row.steps, **row.settings
    )
    if row.preprocessing == "atari":
        config = config.with_overrides(rebuild_envs="off")  # else games are tried out first, which takes long
    watch = Stopwatch(row.warm_up)
    with tempfile.TemporaryDirectory() as folder:
        changes = QUIET | {"output_dir": folder} | row.variants.get(side, {})
        run_dir = train(config.with_overrides(**changes), callbacks=[watch]).run_dir
        metadata = json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))
    return watch.result() | {"update_path": checked_path(row, metadata)}


def growth(row: Growth, base: Speed, point: str) -> dict[str, Any]:
    """Train by the settings of another row with one of them changed."""
    changes = dict(row.points[point])
    own = {name: changes.pop(name) for name in ("num_envs", "steps", "warm_up") if name in changes}
    return speed(replace(base, settings=base.settings | changes, variants={}, **own), point)


class Goal(Callback):
    """Stops once the policy is good; its own games do not count."""

    def __init__(self, row: Race) -> None:
        self.row = row
        self.clock = TrainingClock(row.evaluate_every)

    def on_start(self, context: TrainingContext) -> None:
        """Start the clock."""
        self.agent = context.agent
        self.clock.start()

    def on_update(self, progress: Progress, result: UpdateResult) -> None:
        """Play if it is time."""
        if self.clock.due(progress.timesteps):
            self.clock.stop()
            found = mean_return(self.agent.predict, self.row.num_episodes)
            if self.clock.noted(progress.timesteps, found, self.row.threshold):
                raise StopTraining("good enough")
            self.clock.start()


def race(row: Race, seed: int) -> dict[str, Any]:
    """Train by the preset until the policy is good."""
    goal = Goal(row)
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(row.preset).with_overrides(seed=seed, total_timesteps=row.total_timesteps)
        train(config.with_overrides(**QUIET, output_dir=str(Path(folder))), callbacks=[goal])
    return goal.clock.result()
