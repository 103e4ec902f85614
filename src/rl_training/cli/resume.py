"""`rl-training resume`: go on with a run."""

from typing import Annotated

import tyro

from rl_training.cli.train import print_result
from rl_training.experiment.console import make_console
from rl_training.experiment.runs import resume


def run(argv: list[str]) -> int:
    """Parse the flags and resume."""
    tyro.cli(continue_run, args=argv, prog="rl-training resume")
    return 0


def continue_run(
    run: Annotated[str, tyro.conf.Positional], total_timesteps: int | None = None, quiet: bool = False
) -> None:
    """Go on with a run from its last checkpoint.

    Args:
        run: A run folder, or a checkpoint of one.
        total_timesteps: New budget; extends a finished run and stretches its schedules.
        quiet: Print only the run folder.
    """
    result = resume(run, total_timesteps=total_timesteps, console=make_console(quiet))
    if quiet:
        print(result.run_dir)
    else:
        print_result(result)
