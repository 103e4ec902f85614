"""Wrappers of a single environment that the config asks for: the time limit and `env_wrappers`."""

from typing import Any

import gymnasium
from gymnasium.vector import VectorWrapper
from gymnasium.wrappers import TimeLimit

from rl_training.config import TrainConfig
from rl_training.config.env_wrappers import wrapper_calls
from rl_training.config.object_paths import import_object
from rl_training.core.errors import UserError

Env = gymnasium.Env[Any, Any]


def with_time_limit(env: Env, max_episode_steps: int) -> Env:
    """Return an environment whose episodes are truncated after `max_episode_steps`.

    An existing `TimeLimit` is replaced in place, below other wrappers.
    """
    if isinstance(env, TimeLimit):
        return TimeLimit(env.env, max_episode_steps)
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer.env, TimeLimit):
            layer.env = TimeLimit(layer.env.env, max_episode_steps)
            return env
        layer = layer.env
    return TimeLimit(env, max_episode_steps)


def with_wrappers(env: Env, config: TrainConfig) -> Env:
    """Return an environment with the wrappers of the config, the first one innermost."""
    for name, arguments in wrapper_calls(config.env_wrappers):
        wrapper = _wrapper_class(name)
        try:
            outer = wrapper(env, **arguments)
        except Exception as error:  # a constructor may raise anything
            called = f" with arguments {arguments}" if arguments else ""
            raise UserError(
                f"env_wrappers '{name}'{called} cannot wrap environment '{config.env_id}': "
                f"{type(error).__name__}: {error}"
            ) from error
        changes = outer.observation_space != env.observation_space
        if config.preprocessing == "atari" and (changes or isinstance(outer, gymnasium.ObservationWrapper)):
            raise UserError(
                f"env_wrappers '{name}' changes observations, but preprocessing 'atari' reads the screen itself; leave "
                "it out, or use preprocessing image"
            )
        env = outer
    return env


def with_game_wrappers(game: Any, config: TrainConfig) -> Any:
    """Return a game with several agents in the wrappers of the config, which are PettingZoo's or of its kind."""
    for name, arguments in wrapper_calls(config.env_wrappers):
        wrapper = import_object(name, "env_wrappers")
        if isinstance(wrapper, type) and issubclass(wrapper, gymnasium.Wrapper):
            raise UserError(
                f"env_wrappers '{name}' is for environments with a single agent, but '{config.env_id}' is a game with "
                "several; use wrappers for games of PettingZoo"
            )
        try:
            outer = wrapper(game, **arguments)
        except Exception as error:
            raise UserError(
                f"env_wrappers '{name}' cannot wrap game '{config.env_id}': {type(error).__name__}: {error}; use "
                "wrappers for games of PettingZoo"
            ) from error
        if not hasattr(outer, "possible_agents"):
            raise UserError(
                f"env_wrappers '{name}' returns a {type(outer).__name__}, which has no possible_agents; use "
                "wrappers for games of PettingZoo"
            )
        game = outer
    return game


def _wrapper_class(name: str) -> type[gymnasium.Wrapper[Any, Any, Any, Any]]:
    found = import_object(name, "env_wrappers")
    if isinstance(found, type) and issubclass(found, gymnasium.Wrapper):
        return found
    if isinstance(found, type) and issubclass(found, VectorWrapper):
        raise UserError(
            f"env_wrappers '{name}' is for vector environments; use a wrapper for single environments, such as those "
            "of gymnasium.wrappers"
        )
    kind = "class" if isinstance(found, type) else type(found).__name__
    raise UserError(
        f"env_wrappers '{name}' is a {kind}, not a gymnasium.Wrapper; use a subclass of gymnasium.Wrapper"
    )
