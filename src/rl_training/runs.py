"""Promised home of `make_run_dir`; it lives in `experiment.runs`."""

from rl_training.experiment.start import make_run_dir

__all__ = ["make_run_dir"]
