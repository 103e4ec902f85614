"""`profile.json` and `timeline.png`: how a run spent its time."""

import warnings
from typing import TYPE_CHECKING, Any

from rl_training.core.types import Progress
from rl_training.experiment.files import write_json
from rl_training.experiment.logs.timeline_picture import draw_timeline
from rl_training.runtime.callbacks import TrainingContext
from rl_training.runtime.profiler import Profiler
from rl_training.runtime.timeline import Timeline

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Trainer


class RunProfile(Profiler):
    """A profiler that writes its report and a picture to the run folder when the run ends or pauses."""

    def __init__(self) -> None:
        super().__init__()
        self.timeline = Timeline()

    def watch(self, trainer: "Trainer") -> None:
        super().watch(trainer)
        self.timeline.watch(trainer)

    def on_start(self, context: TrainingContext) -> None:
        super().on_start(context)
        self._run_dir, config = context.run_dir, context.config
        self._title = f"{config.algo} on {config.task}, seed {config.seed}"

    def report(self) -> dict[str, Any]:
        """Return the report of the profiler, and the waiting times of the last iterations."""
        return super().report() | {"timeline": self.timeline.report()}

    def on_end(self, progress: Progress) -> None:
        """Write the report and the picture; a full disk is only a warning."""
        super().on_end(progress)
        try:
            write_json(self._run_dir / "profile.json", self.report())
        except OSError as error:
            warnings.warn(f"profile.json was not written: {error.strerror}", stacklevel=2)
        draw_timeline(self._run_dir, self.timeline, self._title)
