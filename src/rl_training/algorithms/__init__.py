"""Update rules. The table below is the whole registry: a new algorithm is one line in it."""

from rl_training.algorithms.a2c import A2C
from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.sac import SAC

ALGORITHMS: dict[str, type[Algorithm]] = {
    "a2c": A2C,
    "dqn": DQN,
    "ppo": PPO,
    "sac": SAC,
}

__all__ = ["A2C", "ALGORITHMS", "DQN", "PPO", "SAC"]
