"""Finds out, before a run begins, whether an environment tells which actions are allowed, and how."""

import math
from collections.abc import Callable
from typing import Any

from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.generators import callers_generators_kept
from rl_training.core.masks import mask_counts
from rl_training.core.spaces import observation_leaves
from rl_training.envs.masks import METHOD, NAME, has_entry

MOVE = "a mask is wanted at the top of the observation, or in info"


def settle_masks(
    config: TrainConfig,
    build: Callable[[], VectorEnv[Any, Any, Any]],
    *,
    takes_masks: bool,
    notice: Callable[[str], None] = lambda text: None,
) -> TrainConfig:
    """Return the config with `use_action_masks: auto` replaced by `on`, if `build` gives an environment with masks.

    What was found is told; `on` is refused where there is nothing to heed. A failing environment is left to the run.
    """
    wanted = config.use_action_masks
    if wanted == "off" or (wanted == "auto" and not takes_masks):
        return config
    if not takes_masks:
        raise UserError(f"use_action_masks is on, but algo '{config.algo}' heeds no masks; leave it out")
    env = build()
    try:
        with callers_generators_kept():
            source = _source(env, config, notice)
    except UserError:
        raise
    except Exception:  # training will meet the same fault and report it with its address
        return config
    finally:
        env.close()
    if source is None:
        if wanted == "on":
            raise UserError(
                f"use_action_masks is on, but environment '{config.env_id}' tells no masks: neither an entry "
                f"'{NAME}' of its observation nor a method {METHOD}() nor info['{NAME}']; leave it out"
            )
        return config
    notice(
        f"environment '{config.env_id}' tells which actions are allowed, by {source}; others are not taken "
        "(--use-action-masks off ignores it)"
    )
    return config.with_overrides(use_action_masks="on")


def _source(env: VectorEnv[Any, Any, Any], config: TrainConfig, notice: Callable[[str], None]) -> str | None:
    """Return how an environment tells its masks, in words; None if it does not."""
    insists = config.use_action_masks == "on"
    counts = mask_counts(env.single_action_space)
    if counts is None:
        if insists:
            raise UserError(
                f"use_action_masks is on, but actions of environment '{config.env_id}' are continuous; leave it out"
            )
        return None
    space = env.single_observation_space
    if has_entry(space):
        _refuse_other_entry(space, sum(counts), config)
        return f"the entry '{NAME}' of its observation"
    for key in observation_leaves(space):
        if key.endswith(f"/{NAME}"):
            notice(
                f"environment '{config.env_id}' has an entry '{key}', which is taken for a feature: {MOVE}"
            )
    if _has_method(env, config):
        return f"its method {METHOD}()"
    _, info = env.reset(seed=config.seed)
    if NAME in info:
        return f"info['{NAME}']"
    if NAME in env.step(env.action_space.sample())[4]:
        lacking = f"environment '{config.env_id}' tells info['{NAME}'] at steps, but not at reset"
        if insists:
            raise UserError(f"{lacking}; let it tell one there, too")
        notice(f"{lacking}, so it is not heeded; let it tell one there, too")
    return None


def _has_method(env: VectorEnv[Any, Any, Any], config: TrainConfig) -> bool:
    if not isinstance(env, SyncVectorEnv | AsyncVectorEnv):
        return callable(getattr(env, METHOD, None))
    (found,) = env.call("mask_method")
    if found:
        raise UserError(
            f"'{METHOD}' of environment '{config.env_id}' {found}; make it a method without arguments that returns a "
            "mask, or set use_action_masks to off"
        )
    return found is not None


def _refuse_other_entry(space: Any, size: int, config: TrainConfig) -> None:
    shape = tuple(space.spaces[NAME].shape or ())
    if math.prod(shape) != size:
        raise UserError(
            f"entry '{NAME}' of an observation of environment '{config.env_id}' has shape {shape}, and a mask of its "
            f"actions has {size} entries; set use_action_masks to off if it is none"
        )
