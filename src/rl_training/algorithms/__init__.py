"""Update rules. The table below is the whole registry: a new algorithm is one line in it."""

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.ppo import PPO

ALGORITHMS: dict[str, type[Algorithm]] = {
    "ppo": PPO,
}

__all__ = ["ALGORITHMS", "PPO"]
