"""Ids for environments of MiniGrid and MinAtar.

`rl_training.envs.tasks:rl_training/MiniGrid-v0` with `game: MiniGrid-DoorKey-5x5-v0` in env_kwargs has the image and
the direction as observation, without the text; `rl_training/MinAtar-v0` with `game: breakout` builds a MinAtar game.
"""

import importlib
from typing import Any

import gymnasium
from gymnasium.wrappers import FilterObservation

from rl_training.core.errors import UserError


def mini_grid(game: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Return an environment of the package `minigrid` with its partial view [7, 7, 3] and the direction."""
    if ":" in game:  # an untrusted run must not import a module this way
        raise UserError(f"game is '{game}'; name one of MiniGrid's own ids, without a module")
    importlib.import_module("minigrid")  # registers its ids
    return FilterObservation(gymnasium.make(game, **kwargs), ["direction", "image"])


def min_atar(game: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Return a game of the package `minatar` with its minimal action set; observations are bool planes [10, 10, C]."""
    built: gymnasium.Env[Any, Any] = importlib.import_module("minatar.gym").BaseEnv(
        game=game, use_minimal_action_set=True, **kwargs
    )
    return built


gymnasium.register("rl_training/MiniGrid-v0", entry_point=f"{__name__}:mini_grid")
gymnasium.register("rl_training/MinAtar-v0", entry_point=f"{__name__}:min_atar")
