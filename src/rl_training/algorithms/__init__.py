"""Algorithms; `ALGORITHMS` is the registry."""

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.algorithms.a2c import A2C
from rl_training.algorithms.awac import AWAC
from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.bc import BC
from rl_training.algorithms.cql import CQL
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.iql import IQL
from rl_training.algorithms.mappo import MAPPO
from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.rebrac import ReBRAC
from rl_training.algorithms.recurrent_ppo import RecurrentPPO
from rl_training.algorithms.sac import SAC
from rl_training.algorithms.td3 import TD3
from rl_training.algorithms.td3_bc import TD3BC
from rl_training.core.errors import UserError
from rl_training.core.spaces.layout import action_layout

ALGORITHMS: dict[str, type[Algorithm]] = {
    "ppo": PPO,
    "a2c": A2C,
    "dqn": DQN,
    "sac": SAC,
    "td3": TD3,
    "recurrent_ppo": RecurrentPPO,
    "mappo": MAPPO,
    "bc": BC,
    "iql": IQL,
    "awac": AWAC,
    "td3_bc": TD3BC,
    "cql": CQL,
    "rebrac": ReBRAC,
}


def refuse_actions(algorithm: type[Algorithm], space: Space[Any]) -> None:
    """Raise an error for an action space that the algorithm does not support, naming algorithms that do."""
    action_layout(space)
    if not isinstance(space, algorithm.action_spaces):
        wanted = algorithm.action_spaces[0]
        others = [
            name
            for name, other in ALGORITHMS.items()
            if isinstance(space, other.action_spaces)
            and other.needs_critic_space <= algorithm.needs_critic_space
            and other.config_class.needs_dataset == algorithm.config_class.needs_dataset
        ]
        *first, last = others
        named = f"{', '.join(first)} or {last}" if first else last
        kind = "continuous" if wanted is spaces.Box else "discrete"
        raise UserError(
            f"{algorithm.name} needs {kind} actions, but the action space is {type(space).__name__}; "
            f"use {named}, or an environment with {wanted.__name__} actions"
        )
    bounds = [space.low, space.high] if algorithm.bounded_actions and isinstance(space, spaces.Box) else []
    if not all(np.isfinite(bound).all() for bound in bounds):
        raise UserError(
            f"{algorithm.name} needs actions with finite bounds, but the action space is {space}; "
            "give its action space finite bounds, e.g. with gymnasium.wrappers.TransformAction, or use ppo"
        )


__all__ = [
    "A2C",
    "ALGORITHMS",
    "AWAC",
    "BC",
    "CQL",
    "DQN",
    "IQL",
    "MAPPO",
    "PPO",
    "SAC",
    "TD3",
    "TD3BC",
    "ReBRAC",
    "RecurrentPPO",
    "refuse_actions",
]
