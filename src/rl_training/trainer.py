"""Promised home of the `train_*` functions; they live in `experiment.by_algorithm`."""

from rl_training.experiment.train_functions import (
    train_a2c,
    train_dqn,
    train_ppo,
    train_recurrent_ppo,
    train_sac,
    train_td3,
)

__all__ = ["train_a2c", "train_dqn", "train_ppo", "train_recurrent_ppo", "train_sac", "train_td3"]
