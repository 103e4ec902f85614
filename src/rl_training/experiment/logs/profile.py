"""`profile.json`: how a run spent its time."""

import warnings

from rl_training.core.types import Progress
from rl_training.experiment.files import write_json
from rl_training.runtime.callbacks import TrainingContext
from rl_training.runtime.profiler import Profiler


class RunProfile(Profiler):
    """A profiler that writes its report to the run folder when the run ends or pauses."""

    def on_start(self, context: TrainingContext) -> None:
        super().on_start(context)
        self._run_dir = context.run_dir

    def on_end(self, progress: Progress) -> None:
        """Write the report; a full disk is only a warning."""
        super().on_end(progress)
        try:
            write_json(self._run_dir / "profile.json", self.report())
        except OSError as error:
            warnings.warn(f"profile.json was not written: {error.strerror}", stacklevel=2)
