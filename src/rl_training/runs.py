"""Public home of `make_run_dir`, which is defined in `experiment.run_folder`."""

from rl_training.experiment.run_folder import make_run_dir

__all__ = ["make_run_dir"]
