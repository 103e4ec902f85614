"""Callbacks: user hooks with read-only arguments, and ready-made ones for common needs."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.core.protocols import LiveAgent
from rl_training.core.types import Progress, State, UpdateResult
from rl_training.runtime.steps import StepContext

if TYPE_CHECKING:
    from rl_training.config import TrainConfig


NEVER_TOLD = -1.0
"""The rate of evaluations without one: lower than any real rate."""
RATES = {"success": "success_rate", "win_rate": "score"}
"""What an evaluation calls the rate that decides, by `best_by`."""


class StopTraining(Exception):
    """Raise from a callback to end the run cleanly, with a checkpoint; the message becomes the run's reason."""


class PauseTraining(StopTraining):
    """Raise to interrupt a run that is to be resumed: a checkpoint, but no final evaluation and no extra log row.

    A paused and resumed run leaves the same metric files as one that was never paused.
    """


@dataclass(frozen=True)
class TrainingContext:
    """The run that a callback belongs to."""

    agent: LiveAgent
    """The agent as it is at this moment: predict, evaluate and save it whenever you like."""
    run_dir: Path
    """The run's folder; your own files in it are kept."""
    config: "TrainConfig"
    """Every setting, resolved."""
    start: Progress
    """Where the run begins: at 0, or at the checkpoint that it continues from."""
    log: Callable[[str, float], None]
    """`log("my/number", 3.0)` adds a column to the next row of the metric files; several values are averaged."""
    set_learning_rate: Callable[[float | None], None]
    """`set_learning_rate(1e-4)` replaces the learning rate and its schedule from the next update on, also in a resumed
    run; None returns to the settings."""


class Callback:
    """Override what you need. Called in the order start, step, collect, rollout, update, evaluate, end.

    Evaluation, logging and checkpointing are not callbacks: the trainer does them, in that order.
    """

    def on_start(self, context: TrainingContext) -> None:
        """Once, before the first step of a run or of its resumption."""

    def on_step(self, context: StepContext) -> None:
        """After each step of all environments, with its arrays and infos.

        Every step is copied for it, which slows a run with fast environments down; without it nothing is copied. A
        resumed run continues with the step after its checkpoint.
        """

    def on_collect(self, progress: Progress) -> None:
        """After the environments were stepped."""

    def on_rollout(self, batch: Any) -> None:
        """Before each update, with the batch that the learner receives; do not change its tensors.

        On-policy it is the rollout, a `RolloutBatch` of T * N rows in the order of time with `obs`, `actions`,
        `logprobs`, `values`, `advantages` and `returns`; in games whose agents wait or die, only of the rows that are
        learned from. Off-policy it is a sample of the replay buffer, `Transitions`
        with `obs`, `actions`, `rewards`, `discounts` and `next_obs`, the rows of one batch or of several.
        """

    def on_update(self, progress: Progress, result: UpdateResult) -> None:
        """After the updates that were due together; `result.updates` is their number."""

    def on_evaluate(self, progress: Progress, summary: dict[str, Any]) -> None:
        """After each evaluation; `summary` has `mean_reward` and the rest."""

    def on_end(self, progress: Progress) -> None:
        """Once, after the last checkpoint."""

    def state_dict(self) -> State:
        """Return whatever must survive a resume, as plain data."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Restore it."""


class StopAtReward(Callback):
    """Stops once an evaluation's mean return reaches `threshold`."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def on_evaluate(self, progress: Progress, summary: dict[str, Any]) -> None:
        if summary["mean_reward"] >= self.threshold:
            raise StopTraining(f"mean return {summary['mean_reward']:.1f} reached {self.threshold:g}")


class StopAtSuccess(Callback):
    """Stops once an evaluation's success rate reaches `rate`; the environment must report `is_success`."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def on_evaluate(self, progress: Progress, summary: dict[str, Any]) -> None:
        if summary.get("success_rate", -1.0) >= self.rate:
            raise StopTraining(f"success rate {summary['success_rate']:.0%} reached {self.rate:.0%}")


class Best:
    """The best evaluation so far: by its mean return, or first by the rate of successes or of games won.

    A draw counts as half a game won.
    """

    def __init__(self, by: str = "reward") -> None:
        self.by = by
        self.reward: float | None = None
        self.success = NEVER_TOLD

    def improved(self, summary: Mapping[str, Any]) -> bool:
        """Return whether an evaluation is better than all before it, and keep it if it is."""
        success = float(summary.get(RATES[self.by], NEVER_TOLD)) if self.by in RATES else NEVER_TOLD
        reward = summary["mean_reward"]
        if self.reward is not None and (success, reward) <= (self.success, self.reward):
            return False
        self.success, self.reward = success, reward
        return True

    def load(self, reward: float | None, success: float | None) -> None:
        """Continue from saved values; `success` is None where no rate was reported."""
        self.reward = None if reward is None else float(reward)
        self.success = NEVER_TOLD if success is None else float(success)

    @property
    def told_success(self) -> float | None:
        """The rate of the best evaluation, None if it does not count or was not reported."""
        return None if self.success == NEVER_TOLD else self.success


class StopOnPlateau(Callback):
    """Stops after `patience` evaluations in a row without a new best."""

    def __init__(self, patience: int, best_by: str = "reward") -> None:
        self.patience = patience
        self._best = Best(best_by)
        self.stale = 0

    @property
    def best(self) -> float:
        """The mean return of the best one."""
        return float("-inf") if self._best.reward is None else self._best.reward

    def on_evaluate(self, progress: Progress, summary: dict[str, Any]) -> None:
        self.stale = 0 if self._best.improved(summary) else self.stale + 1
        if self.stale >= self.patience:
            rate = self._best.told_success
            name = "score" if self._best.by == "win_rate" else "success rate"
            told = "" if rate is None else f"a {name} of {rate:.0%} and "
            raise StopTraining(f"{self.stale} evaluations without improvement on {told}{self.best:.1f}")

    def state_dict(self) -> State:
        """Return the best mean return (None before the first), its success rate if that counts, and the count."""
        rate = self._best.told_success
        success = {} if rate is None else {"best_success": rate}
        return {"best": self._best.reward, "stale": self.stale} | success

    def load_state_dict(self, state: State) -> None:
        self._best.load(state["best"], state.get("best_success"))
        self.stale = int(state["stale"])


class TellOfNoSuccess(Callback):
    """Warns once if `best_by` is success and an evaluation reports no success."""

    def __init__(self) -> None:
        self._told = False

    def on_evaluate(self, progress: Progress, summary: dict[str, Any]) -> None:
        if "success_rate" not in summary and not self._told:
            self._told = True
            warnings.warn(
                "best_by is success, but no episode of this evaluation reports is_success in its last info, so the "
                "best is chosen by the mean return; report it in the environment, or leave best_by out",
                stacklevel=2,
            )


class SaveEvery(Callback):
    """Saves the agent every `timesteps` steps as `step_<N>` in `folder`, by default `agents` in the run's folder.

    A run that collects nothing counts updates. The saved agents are kept; the checkpoints that the run resumes from are
    written and removed independently.
    """

    def __init__(self, timesteps: int, folder: str | PathLike[str] | None = None) -> None:
        if timesteps < 1:
            raise ValueError(f"timesteps is {timesteps}; use 1 or more")
        self.every, self.folder = timesteps, folder

    def on_start(self, context: TrainingContext) -> None:
        """Count from where the run begins; the agent it begins with is not saved."""
        self._agent = context.agent
        self._folder = Path(self.folder) if self.folder is not None else context.run_dir / "agents"
        self._saved = context.start.clock // self.every

    def on_update(self, progress: Progress, result: UpdateResult) -> None:
        if progress.clock // self.every > self._saved:
            self._saved = progress.clock // self.every
            self._agent.save(self._folder / f"step_{progress.clock}")


class OnEvaluation(Callback):
    """Calls a function with the clock (timesteps, or updates if the run collects nothing) and each evaluation."""

    def __init__(self, function: Callable[[int, dict[str, Any]], object]) -> None:
        self.function = function

    def on_evaluate(self, progress: Progress, summary: dict[str, Any]) -> None:
        self.function(progress.clock, summary)


class TimeLimit(Callback):
    """Pauses at the first update boundary after `seconds`, counted from construction."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._deadline = time.monotonic() + seconds

    def on_collect(self, progress: Progress) -> None:
        if time.monotonic() >= self._deadline:
            raise PauseTraining(f"time limit of {self.seconds:g} s reached")

    def on_update(self, progress: Progress, result: UpdateResult) -> None:
        """Check the time again, because updates may take long."""
        self.on_collect(progress)


def overriding(callbacks: Sequence[Callback], method: str) -> list[Callback]:
    """Return the callbacks that override a method of `Callback`."""
    usual = getattr(Callback, method)
    return [each for each in callbacks if getattr(getattr(each, method), "__func__", None) is not usual]


def config_callbacks(config: "TrainConfig") -> list[Callback]:
    """Return the callbacks for the config's stopping rules and warnings."""
    found: list[Callback] = []
    if config.stop_at_reward is not None:
        found.append(StopAtReward(config.stop_at_reward))
    if config.stop_after_stale_evals is not None:
        found.append(StopOnPlateau(config.stop_after_stale_evals, config.best_by))
    if config.max_time is not None:
        found.append(TimeLimit(config.max_time))
    if config.best_by == "success":
        found.append(TellOfNoSuccess())
    return found
