"""Action masks of environments, read and checked at every step.

An environment can provide masks as an entry `action_mask` of a Dict observation, by a method `action_masks()`, or as
`info["action_mask"]`. If there are several, the first of these is used.
"""

import contextlib
import inspect
import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from rl_training.config import TrainConfig
from rl_training.core.errors import EnvironmentFault, UserError
from rl_training.core.seeding import callers_generators_kept
from rl_training.core.spaces.layout import observation_leaves
from rl_training.core.spaces.masks import MASK_KEY, NoMask, as_masks, mask_counts, possible
from rl_training.core.types import Array, Info, StepArrays
from rl_training.envs.checks import InvalidResult

NAME, METHOD = "action_mask", "action_masks"
SWITCH = "fix the mask, or set use_action_masks to off"


class MaskInInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Checks the mask in `info`, or adds it if the environment has a method for it, so that every backend can use it.

    No mask is required after the end of an episode.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, by_method: bool) -> None:
        super().__init__(env)
        self.by_method = by_method
        self._size = sum(mask_counts(env.action_space) or ())

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Reset, with the first mask in `info`."""
        obs, info = self.env.reset(seed=seed, options=options)
        return obs, {**info, NAME: self._mask(info)}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, with the next mask in `info`."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        if not (terminated or truncated):
            return obs, reward, terminated, truncated, {**info, NAME: self._mask(info)}
        info = dict(info)
        said = info.pop(NAME, None)
        with contextlib.suppress(Exception):
            info[NAME] = self._mask({NAME: said})
        return obs, reward, terminated, truncated, info

    def _mask(self, info: dict[str, Any]) -> Array:
        # looked up each time, because the inner environment may have been rebuilt
        said = self.env.get_wrapper_attr(METHOD)() if self.by_method else info.get(NAME)
        if said is None and not self.by_method:
            raise InvalidResult(
                f"returned no info['{NAME}'], which is required at every reset and step; {SWITCH}"
            )
        try:
            return as_masks(said, self._size)
        except NoMask as problem:
            raise InvalidResult(f"returned an action mask {problem}; {SWITCH}") from None


def with_masks_in_info(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Return the environment with masks in `info`; unchanged if they are an entry of the observation."""
    if has_mask_entry(env.observation_space) or mask_counts(env.action_space) is None:
        return env
    return MaskInInfo(env, by_method=mask_method(env) == "")


def mask_method(env: gymnasium.Env[Any, Any]) -> str | None:
    """Return "" if an environment has a method for masks, what is wrong with the method, or None if there is none.

    The attribute is not evaluated: a property may fail before the first reset.
    """
    layer: Any = env
    while (found := inspect.getattr_static(layer, METHOD, None)) is None:
        if not isinstance(layer, gymnasium.Wrapper):
            return None
        layer = layer.env
    if isinstance(found, property) or not callable(getattr(layer, METHOD)):
        return "is not a method"
    wanted = [
        name
        for name, parameter in inspect.signature(getattr(layer, METHOD)).parameters.items()
        if parameter.default is parameter.empty and parameter.kind in (0, 1, 3)
    ]
    return f"takes arguments ({', '.join(wanted)})" if wanted else ""


def has_mask_entry(space: Space[Any]) -> bool:
    """Return whether observations have an entry for the mask."""
    return isinstance(space, spaces.Dict) and NAME in space.spaces


def split_mask_entry(obs: Any) -> tuple[Any, Any]:
    """Return an observation or a batch without its mask entry, and the mask (None if there is none)."""
    if not isinstance(obs, dict) or NAME not in obs:
        return obs, None
    return {name: part for name, part in obs.items() if name != NAME}, obs[NAME]


def check_user_masks(space: Space[Any], given: Any, rows: int, name: str = METHOD) -> Array:
    """Return the masks [rows, M] that a user passes to `predict`: one for all rows, or one per row."""
    counts = mask_counts(space)
    if counts is None:
        raise UserError(f"{name} is given, but {type(space).__name__} actions cannot be masked; leave it out")
    size = sum(counts)
    try:
        masks = as_masks(given, rows, size) if np.size(given) != size else as_masks(given, size)[None]
    except NoMask as problem:
        shapes = f"[{size}], or [{rows}, {size}] for {rows} observations"
        raise UserError(f"{name} is one {problem}; give {shapes}") from None
    except ValueError:
        raise UserError(f"{name} has rows that differ in length; give [{rows}, {size}]") from None
    if not possible(masks, counts).all():
        raise UserError(f"{name} allows no action; allow at least one")
    return np.broadcast_to(masks, (rows, size))


class MaskReader:
    """Writes the masks of a vector environment next to its observations, and raises for invalid ones."""

    def __init__(self, env: VectorEnv[Any, Any, Any], out: StepArrays, *, same_step: bool) -> None:
        assert isinstance(out.obs, dict)
        assert isinstance(out.final_obs, dict)
        self.out, self.same_step = out, same_step
        self.now, self.final = out.obs[MASK_KEY], out.final_obs[MASK_KEY]
        counts = mask_counts(env.single_action_space)
        assert counts is not None
        self._counts = counts
        self._entry = has_mask_entry(env.single_observation_space)
        single = isinstance(env, SyncVectorEnv | AsyncVectorEnv)
        self._method = None if single or self._entry else getattr(env, METHOD, None)
        first: Any = env.envs[0] if isinstance(env, SyncVectorEnv) else env
        self._name = f" ({first.spec.id})" if first.spec is not None else ""

    def read(self, obs: Any, info: dict[str, Any], step: int, rows: Array | None = None) -> None:
        """Read the masks after a reset or step; `rows` [N] are the environments that were reset, if not all.

        The last observation of an episode needs no mask.
        """
        out = self.out
        asked = np.ones(len(self.now), np.bool_) if rows is None else rows.copy()
        if out.any_ended and rows is None:
            self._read_final(info)
            asked &= self.same_step | ~out.ended
        said, told = self._said(obs, info)
        if said is None or (told is not None and not told[asked].all()):
            first = int(np.flatnonzero(asked if told is None else asked & ~told)[0])
            raise EnvironmentFault(
                f"environment {first} returned no info['{NAME}'] at step {step} of this run, which is required at "
                f"every reset and step; {SWITCH}"
            )
        try:
            masks = as_masks(said, *self.now.shape)
        except NoMask as problem:
            raise EnvironmentFault(
                f"the environments returned action masks, one {problem}, at step {step} of this run; {SWITCH}"
            ) from None
        self.now[asked] = masks[asked]
        if rows is None and not self.same_step and out.any_ended:
            self.now[~asked] = masks[~asked]
            self.now[~asked & ~possible(self.now, self._counts)] = True
            self.final[:] = self.now
        self._refuse_none_allowed(step)

    def _said(self, obs: Any, info: dict[str, Any]) -> tuple[Any, Array | None]:
        """Return the masks and which environments [N] provide one; None means all."""
        if self._entry:
            return obs[NAME], None
        if self._method is not None:
            return self._method(), None
        return info.get(NAME), info.get(f"_{NAME}")

    def _read_final(self, info: dict[str, Any]) -> None:
        """Read the masks of the last observations of episodes; everything is allowed if there is no valid one."""
        if not self.same_step:  # the same as the current mask
            return
        self.final[:] = True
        for row in np.flatnonzero(self.out.ended):
            if self._entry:
                last = info["final_obs"]
                said: Any = last[NAME][row] if isinstance(last, dict) else last[row][NAME]
            else:
                last = info.get("final_info", {})
                told = last.get(f"_{NAME}")
                said = last[NAME][row] if NAME in last and (told is None or told[row]) else None
            if said is not None:
                with contextlib.suppress(NoMask):
                    self.final[row] = as_masks(said, self.final.shape[1])
        self.final[~possible(self.final, self._counts)] = True

    def _refuse_none_allowed(self, step: int) -> None:
        fine = possible(self.now, self._counts)
        if not fine.all():
            row = int(np.flatnonzero(~fine)[0])
            raise EnvironmentFault(
                f"environment {row}{self._name} allows no action at step {step} of this run: its action mask is "
                f"{self.now[row].astype(int).tolist()}; end the episode there, or fix the mask"
            )


def sample_allowed(space: Space[Any], mask: Array) -> Any:
    """Sample an allowed action with the generator of a space."""
    counts = mask_counts(space)
    assert counts is not None
    parts = np.split(mask, np.cumsum(counts)[:-1])
    choices: Any = np.array([space.np_random.choice(np.flatnonzero(part)) for part in parts])
    start = getattr(space, "start", 0)
    return (choices.reshape(space.shape) + start).astype(space.dtype)


def settle_masks(
    config: TrainConfig,
    build: Callable[[], VectorEnv[Any, Any, Any]],
    *,
    takes_masks: bool,
    notice: Callable[[str], None],
) -> TrainConfig:
    """Return the config with `use_action_masks: auto` replaced by `on` if the environment provides masks.

    `on` raises if there are no masks. Errors of the environment are ignored here, because training reports them.
    """
    wanted = config.use_action_masks
    if wanted == "off" or (wanted == "auto" and not takes_masks):
        return config
    if not takes_masks:
        raise UserError(
            f"use_action_masks is on, but algo '{config.algo}' does not support action masks; leave it out"
        )
    env = build()
    try:
        with callers_generators_kept():
            source = _source(env, config, notice)
    except UserError:
        raise
    except Exception:  # training will raise the same error
        return config
    finally:
        env.close()
    if source is None:
        if wanted == "on" and not _game_has_masks(env):
            raise UserError(
                f"use_action_masks is on, but environment '{config.env_id}' provides no masks (an observation entry "
                f"'{NAME}', a method {METHOD}() or info['{NAME}']); leave it out"
            )
        return config
    notice(
        f"environment '{config.env_id}' provides action masks by {source}; --use-action-masks off ignores them"
    )
    return config.with_overrides(use_action_masks="on")


def _source(env: VectorEnv[Any, Any, Any], config: TrainConfig, notice: Callable[[str], None]) -> str | None:
    """Return a text that says how an environment provides masks; None if it does not."""
    insists = config.use_action_masks == "on"
    if getattr(env.single_observation_space, "game", None) is not None:
        return None  # its agents' masks are read with their observations
    counts = mask_counts(env.single_action_space)
    if counts is None:
        if insists:
            raise UserError(
                f"use_action_masks is on, but environment '{config.env_id}' has continuous actions; leave it out"
            )
        return None
    space = env.single_observation_space
    if has_mask_entry(space):
        _refuse_other_entry(space, sum(counts), config)
        return f"the entry '{NAME}' of its observation"
    for key in observation_leaves(space):
        if key.endswith(f"/{NAME}"):
            notice(
                f"environment '{config.env_id}' has an entry '{key}', which is used as a feature; a mask must be a "
                "top-level entry of the observation, or in info"
            )
    if _has_method(env, config):
        return f"its method {METHOD}()"
    _, info = env.reset(seed=config.seed)
    if NAME in info:
        return f"info['{NAME}']"
    if NAME in env.step(env.action_space.sample())[4]:
        lacking = f"environment '{config.env_id}' provides info['{NAME}'] in step, but not in reset"
        if insists:
            raise UserError(f"{lacking}; return it from reset as well")
        notice(f"{lacking}, so it is ignored; return it from reset as well")
    return None


def _game_has_masks(env: VectorEnv[Any, Any, Any]) -> bool:
    game = getattr(env.single_observation_space, "game", None)
    return game is not None and any(team.masked for team in game.teams)


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
            f"observation entry '{NAME}' of environment '{config.env_id}' has shape {shape}, but a mask of its actions "
            f"has {size} entries; set use_action_masks to off if it is not a mask"
        )
