"""The one training loop: collect, update, and the jobs that are due. No algorithm's mathematics."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rl_training.core.errors import RunFault
from rl_training.core.protocols import Evaluate, ExperienceSource, Learner, Logger, SaveCheckpoint
from rl_training.core.types import Progress, State, UpdateResult
from rl_training.runtime.callbacks import Callback, PauseTraining, StopTraining
from rl_training.runtime.collector import Collector
from rl_training.runtime.metrics import MetricMeans, first_non_finite


class Trigger:
    """Is due once per crossed multiple of `every` timesteps, however large the steps; never if `every` is 0."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.fired = 0

    def due(self, timesteps: int) -> bool:
        """Tell whether a multiple was crossed since the last time it was."""
        crossed = timesteps // self.every if self.every else 0
        if crossed <= self.fired:
            return False
        self.fired = crossed
        return True


@dataclass(frozen=True)
class Cadence:
    """How often the jobs run, in timesteps; 0 is only at the end."""

    log: int
    evaluate: int
    checkpoint: int


class Trainer:
    """Drives one collector, source and learner to the end of the budget.

    Jobs run at update boundaries, in the order evaluate, log (one row for both), checkpoint; each runs once more at
    the end. A new best evaluation is always followed by a checkpoint.
    """

    def __init__(
        self,
        collector: Collector,
        source: ExperienceSource[Any],
        learner: Learner[Any],
        *,
        cadence: Cadence,
        logger: Logger,
        evaluate: Evaluate,
        save_checkpoint: SaveCheckpoint,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.collector, self.source, self.learner = collector, source, learner
        self.logger, self.evaluate, self.save_checkpoint = logger, evaluate, save_checkpoint
        self.callbacks = callbacks
        self.metrics = MetricMeans()
        self.stop_reason: str | None = None
        self.paused = False
        self.best_reward: float | None = None
        self.last_evaluation: dict[str, Any] | None = None
        self._log_due = Trigger(cadence.log)
        self._evaluate_due = Trigger(cadence.evaluate)
        self._checkpoint_due = Trigger(cadence.checkpoint)
        self._evaluated_at = -1
        self._elapsed_before = 0.0
        self._started, self._started_timesteps = time.monotonic(), 0

    def fit(self, progress: Progress) -> Progress:
        """Train from `progress` until the budget is used up or a callback stops the run."""
        self._started, self._started_timesteps = time.monotonic(), progress.timesteps
        while not progress.done and self.stop_reason is None:
            counted = self.collector.collect(self.source.steps_per_collect, progress)
            progress = progress.advanced(timesteps=counted)
            self._notify("on_collect", progress)
            result = None
            for batch in self.source.batches(progress):
                result = self.learner.update(batch, progress)
                self.source.feedback(batch, result)
                progress = progress.advanced(updates=1)
                self.metrics.add(result.metrics)
                self._notify("on_update", progress, result)
            if result is not None:
                self._refuse_non_finite(result, progress)
            self._run_due_jobs(progress, last=progress.done or self._stopped)
        if (
            progress.done and self.paused
        ):  # asked to pause in the last iteration: there is nothing left to resume
            self.stop_reason, self.paused = None, False
        for callback in self.callbacks:
            callback.on_end(progress)
        return progress

    def _run_due_jobs(self, progress: Progress, *, last: bool) -> None:
        now = progress.timesteps
        log_due = self._log_due.due(now) or last
        evaluate_due = self._evaluate_due.due(now) or last
        checkpoint_due = self._checkpoint_due.due(now) or last
        improved = False
        if log_due or evaluate_due:
            row = self._training_row(progress)
            improved = evaluate_due and self._evaluate(progress, row)
            self.logger.log(row, now)
        if (
            checkpoint_due or improved or self.stop_reason is not None
        ):  # the evaluation may have stopped the run
            self._checkpoint(progress, improved)

    def _refuse_non_finite(self, result: UpdateResult, progress: Progress) -> None:
        """Stop before the environments see actions of a broken policy and get the blame.

        The last update of an iteration tells: once a weight is not finite, no later loss is.
        """
        name = first_non_finite(result.metrics)
        if name is not None:
            value = float(result.metrics[name])
            raise RunFault(
                f"{name} is {value} in update {progress.updates}, after {progress.timesteps:,} steps; a smaller "
                "learning_rate or normalised observations and rewards may help"
            )

    @property
    def _stopped(self) -> bool:
        return self.stop_reason is not None and not self.paused

    def _training_row(self, progress: Progress) -> dict[str, float]:
        elapsed = time.monotonic() - self._started
        times = {
            "time/total_timesteps": float(progress.timesteps),
            "time/iterations": float(progress.updates),
            "time/episodes": float(self.collector.episodes.total_episodes),
            "time/time_elapsed": self._elapsed_before + elapsed,
            "time/fps": (progress.timesteps - self._started_timesteps) / max(elapsed, 1e-9),
        }
        return times | self.collector.episodes.means() | self.metrics.drain()

    def _evaluate(self, progress: Progress, row: dict[str, float]) -> bool:
        """Evaluate, add the result to the log row, and tell whether it is a new best."""
        summary = self.evaluate().summary()
        self.last_evaluation = summary
        self._evaluated_at = progress.timesteps
        row["eval/mean_reward"] = summary["mean_reward"]
        row["eval/std_reward"] = summary["std_reward"]
        row["eval/mean_ep_length"] = summary["mean_ep_length"]
        improved = self.best_reward is None or summary["mean_reward"] > self.best_reward
        if improved:
            self.best_reward = summary["mean_reward"]
        self._notify("on_evaluate", progress, summary)
        return improved

    def _checkpoint(self, progress: Progress, improved: bool) -> None:
        evaluation = self.last_evaluation if self._evaluated_at == progress.timesteps else None
        self.save_checkpoint(progress, evaluation=evaluation, best=improved)

    def _notify(self, event: str, *arguments: Any) -> None:
        """Call every callback; a stop takes effect at the end of the iteration, so every run ends at a boundary."""
        for callback in self.callbacks:
            try:
                getattr(callback, event)(*arguments)
            except StopTraining as stop:
                if not self._stopped:  # a real stop overrides a pause, not the other way round
                    self.stop_reason, self.paused = str(stop), isinstance(stop, PauseTraining)

    def state_dict(self) -> State:
        """Return which jobs have run, what waits to be logged, and what the callbacks remember."""
        return {
            "log_fired": self._log_due.fired,
            "evaluate_fired": self._evaluate_due.fired,
            "checkpoint_fired": self._checkpoint_due.fired,
            "best_reward": self.best_reward,
            "elapsed": self._elapsed_before + time.monotonic() - self._started,
            "metrics": self.metrics.state_dict(),
            "episodes": self.collector.episodes.state_dict(),
            "callbacks": [[type(callback).__name__, callback.state_dict()] for callback in self.callbacks],
        }

    def load_state_dict(self, state: State, *, lost: Sequence[int] = ()) -> None:
        """Continue; callbacks are matched by class and order, and `lost` environments begin a fresh episode."""
        self._log_due.fired = int(state["log_fired"])
        self._evaluate_due.fired = int(state["evaluate_fired"])
        self._checkpoint_due.fired = int(state["checkpoint_fired"])
        best = state["best_reward"]
        self.best_reward = None if best is None else float(best)
        self._elapsed_before = float(state["elapsed"])
        self.metrics.load_state_dict(state["metrics"])
        self.collector.episodes.load_state_dict(state["episodes"], lost=lost)
        waiting = list(state["callbacks"])
        for callback in self.callbacks:
            saved = next((entry for entry in waiting if entry[0] == type(callback).__name__), None)
            if saved is not None:
                waiting.remove(saved)
                callback.load_state_dict(saved[1])
