"""Where jobs are while a launch lasts, who is told of it, and how all of them ended."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rl_training.experiment.jobs import Job

Status = Literal["waiting", "training", "finished", "failed", "paused"]


@dataclass
class JobState:
    """Where a job is; what `Board` shows."""

    job: Job
    status: Status = "waiting"
    steps: int = 0
    evaluation: float | None = None
    """The latest one's mean return, which is not the score."""
    kept: bool = False
    """It was done, or had failed, before this launch."""
    held: bool = False
    """It waits for another process that has its run."""
    error: str = ""
    record: dict[str, Any] | None = None
    began: float = 0.0
    began_at: int = 0

    @property
    def seconds_left(self) -> float | None:
        """At the speed since it was started; None if that is not known yet."""
        done, seconds = self.steps - self.began_at, time.monotonic() - self.began
        if self.status != "training" or done <= 0:
            return None
        return max(self.job.config.total_timesteps - self.steps, 0) * seconds / done


class Board:
    """Is told what happens; does nothing itself."""

    def event(self, state: JobState) -> None:
        """A job began, ended, or was found done."""

    def show(self, states: Sequence[JobState]) -> None:
        """Some time has passed."""

    def close(self) -> None:
        """Nothing more will happen."""


@dataclass(frozen=True)
class Launched:
    """How all jobs ended."""

    jobs: Sequence[Job]
    states: list[JobState]
    """One per config and seed, whatever a person calls it."""
    stopped_by: int | None = None
    """The signal that ended the launch early."""

    @property
    def records(self) -> list[dict[str, Any]]:
        """What finished jobs left, in the order of the list and by the names in it."""
        found = {state.job.key: state.record for state in self.having("finished")}
        return [
            record | {"name": job.name} for job in self.jobs if (record := found.get(job.key)) is not None
        ]

    def having(self, *statuses: Status) -> list[JobState]:
        """Return the jobs of a status."""
        return [state for state in self.states if state.status in statuses]
