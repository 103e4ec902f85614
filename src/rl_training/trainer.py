"""Public home of the `train_*` functions, which are defined in `experiment.train_functions`."""

from rl_training.experiment.train_functions import (
    train_a2c,
    train_dqn,
    train_mappo,
    train_ppo,
    train_recurrent_ppo,
    train_sac,
    train_td3,
)

__all__ = [
    "train_a2c",
    "train_dqn",
    "train_mappo",
    "train_ppo",
    "train_recurrent_ppo",
    "train_sac",
    "train_td3",
]
