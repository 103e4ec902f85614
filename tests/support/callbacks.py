"""Callbacks that stop a run at a known place."""

from rl_training.core.types import Progress, UpdateResult
from rl_training.runtime.callbacks import Callback, PauseTraining


class StopAtCollect(Callback):
    """Pauses the run, or ends it as a crash would, at the first collect that brings it to so many timesteps."""

    def __init__(self, timesteps: int, error: type[Exception] = PauseTraining) -> None:
        self.timesteps, self.error = timesteps, error

    def on_collect(self, progress: Progress) -> None:
        if progress.timesteps >= self.timesteps:
            raise self.error("stopped here")


class StopAtUpdate(Callback):
    """The same after the first update at or after so many timesteps."""

    def __init__(self, timesteps: int, error: type[Exception] = PauseTraining) -> None:
        self.timesteps, self.error = timesteps, error

    def on_update(self, progress: Progress, result: UpdateResult) -> None:
        if progress.timesteps >= self.timesteps:
            raise self.error("stopped here")
