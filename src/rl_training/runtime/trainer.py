"""The training loop: collect, update, and run the jobs that are due. Independent of the algorithm."""

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rl_training.core.errors import RunFault
from rl_training.core.protocols import Evaluate, ExperienceSource, Learner, Logger, Sampler, SaveCheckpoint
from rl_training.core.types import Progress, State, UpdateResult
from rl_training.runtime.callbacks import (
    Best,
    Callback,
    PauseTraining,
    StopTraining,
    TrainingContext,
    overriding,
)
from rl_training.runtime.metrics import MetricMeans, MissingKeywords, RecentEpisodes, first_non_finite
from rl_training.runtime.profiler import Profiler

EVALUATION_COLUMNS = (
    "mean_reward", "std_reward", "mean_ep_length", "success_rate", "win_rate", "draw_rate", "loss_rate", "score",
)  # fmt: skip


def columns_of(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of an evaluation's summary that are logged; a success rate only if it was reported."""
    names = [
        *EVALUATION_COLUMNS,
        *(name for name in evaluation if name.startswith(("info/", "mean_reward/", "win_rate/"))),
    ]
    return {name: evaluation[name] for name in names if name in evaluation}


class Trigger:
    """Is due once per crossed multiple of `every` on the run's clock; never if `every` is 0."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.fired = 0

    def pending(self, clock: int) -> bool:
        """Return whether a multiple was crossed since the last time it was due."""
        return self._crossed(clock) > self.fired

    def due(self, clock: int) -> bool:
        """Return the same, and count it as done."""
        pending = self.pending(clock)
        self.fired = max(self.fired, self._crossed(clock))
        return pending

    def _crossed(self, clock: int) -> int:
        return clock // self.every if self.every else 0


@dataclass(frozen=True)
class Cadence:
    """How often the jobs run, by the run's clock; 0 means only at the end."""

    log: int
    evaluate: int
    checkpoint: int


class Trainer:
    """Drives one sampler, source and learner to the end of the budget.

    Without a sampler it only learns; without `evaluate` there are no evaluations and no best checkpoint.

    Jobs run at update boundaries, in the order evaluate, log (one row for both), checkpoint; each runs once more at the
    end. Where an evaluation is due together with a checkpoint, one is written before it as well, so that an evaluation
    that never ends loses nothing; the job counts as undone there, and a resumed run begins with it. A new best, and the
    evaluation that ends a run, are always followed by a checkpoint. A pause leaves every other job to the resumed run.
    """

    def __init__(
        self,
        sampler: Sampler | None,
        source: ExperienceSource[Any],
        learner: Learner[Any],
        *,
        cadence: Cadence,
        logger: Logger,
        evaluate: Evaluate | None,
        save_checkpoint: SaveCheckpoint,
        callbacks: Sequence[Callback] = (),
        best_by: str = "reward",
        info_keywords: Sequence[str] = (),
    ) -> None:
        self.sampler, self.source, self.learner = sampler, source, learner
        self.logger, self.evaluate, self.save_checkpoint = logger, evaluate, save_checkpoint
        self.callbacks, self._rollout_callbacks = callbacks, list[Callback]()
        self.progress = Progress()
        self.metrics, self.own_metrics = MetricMeans(), MetricMeans(str)
        self.episodes, self.missing_info = RecentEpisodes(), MissingKeywords(info_keywords)
        self.stop_reason: str | None = None
        self.pause_reason: str | None = None
        self.best = Best(best_by)
        self.learning_rate: float | None = None
        self.last_evaluation: dict[str, Any] | None = None
        self._jobs = {name: Trigger(getattr(cadence, name)) for name in ("log", "evaluate", "checkpoint")}
        self._evaluated_at = -1
        self._ended_at = -1
        self._resumed = False
        self._elapsed_before = 0.0
        self._started, self._started_at = time.monotonic(), 0

    def begin(self, context: TrainingContext) -> None:
        """Pass the run to the callbacks; if one stops the run here, the last evaluation still takes place."""
        for callback in self.callbacks:
            if isinstance(callback, Profiler):
                callback.watch(self)
        self._watch_steps(context.start)
        self._notify("on_start", context)

    def _watch_steps(self, start: Progress) -> None:
        """Pass steps and batches to the callbacks that override `on_step` and `on_rollout`, if there are any."""
        step_callbacks = overriding(self.callbacks, "on_step")
        self._rollout_callbacks = overriding(self.callbacks, "on_rollout")
        if step_callbacks and self.sampler is not None:
            self.sampler.watch(
                lambda step: self._notify("on_step", step, callbacks=step_callbacks), start.timesteps
            )

    def fit(self, progress: Progress) -> Progress:
        """Train from `progress` until the budget is used up or a callback stops the run."""
        self.progress = progress
        self._started, self._started_at = time.monotonic(), progress.clock
        if not self._resumed:  # a run that begins with another run's agent starts counting here
            for trigger in self._jobs.values():
                trigger.due(progress.clock)
        self._run_due_jobs()  # jobs that an interruption left undone
        while not self.progress.done and self.stop_reason is None and self.pause_reason is None:
            if self.sampler is not None:
                collected = self.sampler.collect(self.source.steps_per_collect, self.progress)
                self.progress = self.progress.advanced(timesteps=collected.timesteps)
                self.episodes.add(collected.episodes)
                self.missing_info.add(collected.info_names)
                self._notify("on_collect", self.progress)
            result = None
            for batch in self.source.batches(self.progress):
                if self._rollout_callbacks:
                    self._notify("on_rollout", batch, callbacks=self._rollout_callbacks)
                result = self.learner.update(batch, self.progress)
                self.source.feedback(batch, result)
                self.progress = self.progress.advanced(updates=result.updates)
                self.metrics.add(result.metrics)
                self._notify("on_update", self.progress, result)
            if result is not None:
                self._refuse_non_finite(result, self.progress)
            self._run_due_jobs()
        for callback in self.callbacks:
            with contextlib.suppress(StopTraining):  # it has
                callback.on_end(self.progress)
        return self.progress

    @property
    def paused(self) -> bool:
        """Whether a resumed run would have something left to do."""
        return self.pause_reason is not None and self._ended_at != self.progress.clock

    def log(self, name: str, value: float) -> None:
        """Add a callback's own value to the next row; several values are averaged."""
        self.own_metrics.add({name: torch.tensor(float(value), dtype=torch.float64)})

    def set_learning_rate(self, value: float | None) -> None:
        """Replace the learning rate and its schedule from the next update on; None returns to the settings."""
        if value is not None and not 0.0 <= float(value) < math.inf:
            raise ValueError(
                f"learning rate {value!r} is not a finite number ≥ 0; use None for the settings' own"
            )
        self.learning_rate = self.learner.fixed_learning_rate = None if value is None else float(value)

    def _run_due_jobs(self) -> None:
        now = self.progress.clock
        times = self._times()  # before jobs that take long: steps per second are of training
        last = self._ending and self._ended_at != now
        checkpoint_due = self._jobs["checkpoint"].due(now) or last
        if self.pause_reason is not None:
            self._checkpoint()
            return
        evaluate_due = self.evaluate is not None and (self._jobs["evaluate"].pending(now) or last)
        improved = False
        if evaluate_due:
            if checkpoint_due:
                self._checkpoint()
            try:
                improved = self._evaluate()
            except PauseTraining as pause:
                self.pause_reason = str(pause)
                if not checkpoint_due:
                    self._checkpoint()
                return
        ended = self._ending and (evaluate_due or last)  # the evaluation itself may have stopped the run
        if ended:
            self._ended_at = now
        if self._jobs["log"].due(now) or evaluate_due or last:
            self.logger.log(times | self._row(), now)
            if self.missing_info.due(self.episodes.total, last=last):
                self.missing_info.check(self.episodes.recent)
        paused = self.pause_reason is not None
        if improved or paused or ended or (checkpoint_due and not evaluate_due):
            self._checkpoint(improved)

    @property
    def _ending(self) -> bool:
        return self.progress.done or self.stop_reason is not None

    def _refuse_non_finite(self, result: UpdateResult, progress: Progress) -> None:
        """Raise an error before a policy with non-finite weights acts in the environments.

        The last update of an iteration suffices: once a weight is not finite, no later loss is.
        """
        name = first_non_finite(result.metrics)
        if name is not None:
            value = float(result.metrics[name])
            raise RunFault(
                f"{name} is {value} in update {progress.updates}, after {progress.clock:,} {progress.unit}; a smaller "
                "learning_rate or normalised observations and rewards may help"
            )

    def _times(self) -> dict[str, float]:
        progress, elapsed = self.progress, time.monotonic() - self._started
        collected = {} if progress.counts_updates else {"time/total_timesteps": float(progress.timesteps)}
        return collected | {
            "time/iterations": float(progress.updates),
            "time/episodes": float(self.episodes.total),
            "time/time_elapsed": self._elapsed_before + elapsed,
            "time/fps": (progress.clock - self._started_at) / max(elapsed, 1e-9),
        }

    def _row(self) -> dict[str, float]:
        row = self.episodes.means() | self.metrics.drain()
        if self.sampler is not None:
            row |= self.sampler.metrics()
        if self.last_evaluation is not None and self._evaluated_at == self.progress.clock:
            row |= {f"eval/{name}": value for name, value in columns_of(self.last_evaluation).items()}
        return row | self.own_metrics.drain()

    def _evaluate(self) -> bool:
        """Evaluate, and return whether it is a new best."""
        assert self.evaluate is not None
        summary = self.evaluate().summary()
        self.last_evaluation, self._evaluated_at = summary, self.progress.clock
        self._jobs["evaluate"].due(self.progress.clock)
        improved = self.best.improved(summary)
        self._notify("on_evaluate", self.progress, summary)
        return improved

    def _checkpoint(self, improved: bool = False) -> None:
        evaluation = self.last_evaluation if self._evaluated_at == self.progress.clock else None
        self.save_checkpoint(self.progress, evaluation=evaluation, best=improved)

    def _notify(self, event: str, *arguments: Any, callbacks: Sequence[Callback] | None = None) -> None:
        """Call every callback; a stop takes effect at the end of the iteration, so every run ends at a boundary."""
        for callback in self.callbacks if callbacks is None else callbacks:
            try:
                getattr(callback, event)(*arguments)
            except PauseTraining as pause:
                if self.stop_reason is None:
                    self.pause_reason = self.pause_reason or str(pause)
            except StopTraining as stop:  # it overrides a pause: a resumed run would only stop as well
                self.stop_reason, self.pause_reason = self.stop_reason or str(stop), None

    def state_dict(self) -> State:
        """Return which jobs have run, the metrics since the last log row, and the state of the callbacks."""
        return {
            **{f"{name}_fired": trigger.fired for name, trigger in self._jobs.items()},
            "best_reward": self.best.reward,
            "best_success": self.best.told_success,
            "stop_reason": self.stop_reason,
            "ended_at": self._ended_at,
            "elapsed": self._elapsed_before + time.monotonic() - self._started,
            "metrics": self.metrics.state_dict(),
            "own_metrics": self.own_metrics.state_dict(),
            "episodes": self.episodes.state_dict(),
            "info_checked": self.missing_info.checked,
            "learning_rate": self.learning_rate,
            "callbacks": [
                [type(each).__name__, own] for each in self.callbacks if (own := each.state_dict())
            ],
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state; callbacks are matched by class and order."""
        self._resumed = True
        for name, trigger in self._jobs.items():
            trigger.fired = int(state[f"{name}_fired"])
        self.best.load(state["best_reward"], state.get("best_success"))
        self.stop_reason = state.get("stop_reason")
        self._ended_at = int(state["ended_at"])
        self._elapsed_before = float(state["elapsed"])
        self.metrics.load_state_dict(state["metrics"])
        self.own_metrics.load_state_dict(state["own_metrics"])
        self.episodes.load_state_dict(state["episodes"])
        if state.get("learning_rate") is not None:
            self.set_learning_rate(state["learning_rate"])
        self.missing_info.checked |= bool(state.get("info_checked"))
        waiting = list(state["callbacks"])
        for callback in self.callbacks:
            saved = next((entry for entry in waiting if entry[0] == type(callback).__name__), None)
            if saved is not None:
                waiting.remove(saved)
                callback.load_state_dict(saved[1])
