"""The command line, which notes in the file CHAOS_MARKER what it is doing, so that a kill can be aimed and named."""

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl_training.cli import main as command
from rl_training.envs.stepper import VectorStepper
from rl_training.experiment.logs import curves
from rl_training.experiment.recording.folder import RecordingFolder
from rl_training.experiment.recording.playing import Player
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.trainer import Trainer


def noted(
    activity: str, work: Callable[..., Any], marker: Path, *, then: str | None = None
) -> Callable[..., Any]:
    """Return the same work, which the marker names while it lasts; afterwards it says `then`, or the same as before."""

    @functools.wraps(work)
    def call(*arguments: Any, **options: Any) -> Any:
        before = marker.read_text() if marker.exists() else "starting"
        write(marker, activity)
        try:
            return work(*arguments, **options)
        finally:
            write(marker, then or before)

    return call


def write(marker: Path, activity: str) -> None:
    """Replace what the marker says; whoever reads it sees the old or the new."""
    temporary = marker.with_suffix(".new")
    temporary.write_text(activity)
    temporary.replace(marker)


def main() -> int:
    """Wrap what is worth noting, then do what the command line says."""
    marker = Path(os.environ["CHAOS_MARKER"])
    VectorStepper.resume = noted("replaying", VectorStepper.resume, marker)
    Trainer.fit = noted("training", Trainer.fit, marker, then="ending")
    Evaluator.evaluate = noted("evaluating", Evaluator.evaluate, marker)
    Player.play = noted("playing", Player.play, marker)
    RecordingFolder.add = noted("keeping", RecordingFolder.add, marker)
    RecordingFolder.finish = noted("finishing", RecordingFolder.finish, marker, then="ending")
    plot = curves.plot_learning_curve
    for module in list(sys.modules.values()):  # whoever imported it by name
        if getattr(module, "plot_learning_curve", None) is plot:
            module.plot_learning_curve = noted("plotting", plot, marker)
    return command()


if __name__ == "__main__":
    sys.exit(main())
