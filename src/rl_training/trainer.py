"""Promised home of the `train_*` functions; they live in `experiment.runs`."""

from rl_training.experiment.runs import train_ppo

__all__ = ["train_ppo"]
