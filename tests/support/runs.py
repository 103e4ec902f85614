"""Runs to be damaged, copied and resumed."""

from pathlib import Path

from rl_training.config import TrainConfig
from rl_training.experiment import start
from support.callbacks import StopAtCollect


def paused_run(config: TrainConfig, timesteps: int) -> Path:
    """Return the folder of a pristine run that paused after so many timesteps, as if nobody had ever held it."""
    run_dir = start.train(config, callbacks=[StopAtCollect(timesteps)]).run_dir
    (run_dir / ".lock").unlink(missing_ok=True)
    return run_dir
