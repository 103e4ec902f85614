"""Callbacks that stop a run at a known place, or meddle with it."""

import torch

from rl_training.core.types import Progress, UpdateResult
from rl_training.runtime.callbacks import Callback, PauseTraining, TrainingContext


class StopAtCollect(Callback):
    """Pauses the run, or ends it as a crash would, at the first collect that brings it to so many timesteps."""

    def __init__(self, timesteps: int, error: type[Exception] = PauseTraining) -> None:
        self.timesteps, self.error = timesteps, error

    def on_collect(self, progress: Progress) -> None:
        if progress.timesteps >= self.timesteps:
            raise self.error("stopped here")


class StopAtUpdate(Callback):
    """The same after the first update at or after a time of the run's clock: timesteps, or updates."""

    def __init__(self, clock: int, error: type[Exception] = PauseTraining) -> None:
        self.clock, self.error = clock, error

    def on_update(self, progress: Progress, result: UpdateResult) -> None:
        if progress.clock >= self.clock:
            raise self.error("stopped here")


class Meddler(Callback):
    """Changes the learning rate and a weight after the first update."""

    def on_start(self, context: TrainingContext) -> None:
        self.context, self.done = context, False

    def on_update(self, progress: Progress, result: UpdateResult) -> None:
        if not self.done:
            self.done = True
            self.context.set_learning_rate(1e-2)
            with torch.no_grad():
                next(self.context.agent.policy.parameters()).mul_(1.5)  # type: ignore[attr-defined]
