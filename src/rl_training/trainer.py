"""Promised home of the `train_*` functions; they live in `experiment.runs`."""

from rl_training.experiment.runs import train_a2c, train_dqn, train_ppo, train_sac, train_td3

__all__ = ["train_a2c", "train_dqn", "train_ppo", "train_sac", "train_td3"]
