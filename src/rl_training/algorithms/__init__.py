"""Update rules. The table below is the whole registry: a new algorithm is one line in it."""

from rl_training.algorithms.a2c import A2C
from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.sac import SAC
from rl_training.algorithms.td3 import TD3

ALGORITHMS: dict[str, type[Algorithm]] = {
    "a2c": A2C,
    "dqn": DQN,
    "ppo": PPO,
    "sac": SAC,
    "td3": TD3,
}

__all__ = ["A2C", "ALGORITHMS", "DQN", "PPO", "SAC", "TD3"]
