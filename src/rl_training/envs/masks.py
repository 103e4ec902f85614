"""Masks of allowed actions as environments tell them: found before a run begins, read and checked at every step.

Three ways are known: an entry `action_mask` of a Dict observation, a method `action_masks()`, and `action_mask` in
`info`; in this order, if there are several.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from rl_training.config import TrainConfig
from rl_training.core.errors import EnvironmentFault, UserError
from rl_training.core.generators import callers_generators_kept
from rl_training.core.masks import MASK_KEY, mask_counts, possible
from rl_training.core.types import Array, EnvSpec, StepArrays

NAME, METHOD = "action_mask", "action_masks"


class MasksInInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Puts what the environment's `action_masks()` says into `info`, which reaches every backend."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset, and say what is allowed first."""
        obs, info = self.env.reset(seed=seed, options=options)
        return obs, {**info, NAME: self._said()}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and say what is allowed next."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, {**info, NAME: self._said()}

    def _said(self) -> Array:
        # looked up anew: the environment at the bottom may have been replaced
        return np.asarray(self.env.get_wrapper_attr(METHOD)())


def telling_masks(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Return the environment with the masks of its method in `info`, if it has one and no entry for them."""
    if not isinstance(env, gymnasium.Env) or mask_counts(env.action_space) is None:
        return env
    tells = env.has_wrapper_attr(METHOD) and not has_entry(env.observation_space)
    return MasksInInfo(env) if tells else env


def has_entry(space: Space[Any]) -> bool:
    """Tell whether an observation has an entry for the mask."""
    return isinstance(space, spaces.Dict) and NAME in space.spaces


def without_entry(obs: Any) -> tuple[Any, Any]:
    """Return one observation or a batch of them without its entry for the mask, and that; None if it has none."""
    if not isinstance(obs, dict) or NAME not in obs:
        return obs, None
    return {name: part for name, part in obs.items() if name != NAME}, obs[NAME]


def masks_of(space: Space[Any], given: Any, rows: int) -> Array:
    """Return the masks [rows, M] that somebody gives to `predict`: one for all rows, or one each."""
    counts = mask_counts(space)
    if counts is None:
        raise UserError(
            f"action_masks are given, but {type(space).__name__} actions cannot be masked; leave them out"
        )
    masks, size = np.asarray(given), sum(counts)
    one_each = rows > 1 and masks.size == rows * size and len(masks) == rows
    if masks.dtype.kind not in "biuf" or not (one_each or masks.size == size):
        raise UserError(
            f"action_masks have shape {masks.shape}; use [{size}], or [{rows}, {size}] for {rows} observations"
        )
    allowed = np.broadcast_to(masks.reshape(-1, size) != 0, (rows, size))
    if not possible(allowed, counts).all():
        raise UserError("action_masks allow no action; allow one at least")
    return allowed


def env_spec(space: Space[Any], action_space: Space[Any], num_envs: int, *, masked: bool) -> EnvSpec:
    """Return what a policy must know of environments with these spaces; the mask of masked ones is no feature."""
    if masked and isinstance(space, spaces.Dict) and NAME in space.spaces:
        space = spaces.Dict([(name, part) for name, part in space.spaces.items() if name != NAME])
        if not space.spaces:
            raise UserError(
                f"an observation has no entry but '{NAME}'; add one to learn from, or set use_action_masks to off"
            )
    return EnvSpec(space, action_space, num_envs, masked)


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
            source = _source(env, config)
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


def _source(env: VectorEnv[Any, Any, Any], config: TrainConfig) -> str | None:
    """Return how an environment tells its masks, in words; None if it does not."""
    counts = mask_counts(env.single_action_space)
    if counts is None:
        if config.use_action_masks == "on":
            raise UserError(
                f"use_action_masks is on, but actions of environment '{config.env_id}' are continuous; leave it out"
            )
        return None
    space = env.single_observation_space
    if has_entry(space):
        assert isinstance(space, spaces.Dict)
        shape = space.spaces[NAME].shape or ()
        if int(np.prod(shape)) != sum(counts):
            raise UserError(
                f"entry '{NAME}' of an observation of environment '{config.env_id}' has shape {tuple(shape)}, and a "
                f"mask of its actions has {sum(counts)} entries; set use_action_masks to off if it is none"
            )
        return f"the entry '{NAME}' of its observation"
    if isinstance(env, SyncVectorEnv | AsyncVectorEnv):
        if all(env.call("has_wrapper_attr", METHOD)):
            return f"its method {METHOD}()"
    elif hasattr(env, METHOD):
        return f"its method {METHOD}()"
    _, info = env.reset(seed=config.seed)
    return f"info['{NAME}']" if NAME in info else None


class MaskReader:
    """Writes the masks of a vector environment beside the observations of its record, and refuses what is none."""

    def __init__(self, env: VectorEnv[Any, Any, Any], out: StepArrays, *, same_step: bool) -> None:
        assert isinstance(out.obs, dict)
        assert isinstance(out.final_obs, dict)
        self.env, self.out, self.same_step = env, out, same_step
        self.now, self.final = out.obs[MASK_KEY], out.final_obs[MASK_KEY]
        counts = mask_counts(env.single_action_space)
        assert counts is not None
        self._counts = counts
        self._entry = has_entry(env.single_observation_space)
        single = isinstance(env, SyncVectorEnv | AsyncVectorEnv)
        self._method = None if single or self._entry else getattr(env, METHOD, None)
        first: Any = env.envs[0] if isinstance(env, SyncVectorEnv) else env
        self._name = f" ({first.spec.id})" if first.spec is not None else ""

    def read(self, obs: Any, info: dict[str, Any], step: int, rows: Array | None = None) -> None:
        """Read what is allowed now, after a reset or step; `rows` [N] are those that were reset, if not all were.

        Of an episode's last observation nothing is asked but a true one: where a task is over nobody acts.
        """
        out = self.out
        if out.any_ended and rows is None:
            self._read_final(info)
        if self._entry:
            said, told = obs[NAME], None
        elif self._method is not None:
            said, told = self._method(), None
        else:
            said, told = info.get(NAME), info.get(f"_{NAME}")
        asked = np.ones(len(self.now), np.bool_) if rows is None else rows
        if said is None or (told is not None and not told[asked].all()):
            first = int(np.flatnonzero(asked if told is None else asked & ~told)[0])
            raise EnvironmentFault(
                f"environment {first}{self._name} gave no info['{NAME}'] at step {step} of this run; give one at "
                "every reset and step, or set use_action_masks to off"
            )
        if told is None and rows is None:
            self.now[:] = self._checked(said, step)
        else:
            self.now[asked] = self._checked(said, step)[asked]
        if not self.same_step and out.any_ended:
            self.final[:] = self.now
            for array in (self.final, self.now):
                array[out.ended & ~possible(array, self._counts)] = True
        self._refuse_none_allowed(step)

    def _read_final(self, info: dict[str, Any]) -> None:
        """Read what the last observations of episodes allow; everything, where nothing is said or nothing left."""
        if not self.same_step:  # it is that of now
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
            if said is not None and np.size(said) == self.final.shape[1]:
                self.final[row] = np.asarray(said).reshape(-1)
        self.final[~possible(self.final, self._counts)] = True

    def _checked(self, said: Any, step: int) -> Array:
        """Return masks [N, M] as truth values."""
        try:
            array = np.asarray(said)
            if array.dtype == object:
                array = np.stack([np.asarray(row) for row in array])
            allowed: Array = array.reshape(self.now.shape) != 0
            return allowed
        except (ValueError, TypeError) as error:
            found = np.shape(said)[1:] if np.asarray(said).dtype != object else "that differs"
            raise EnvironmentFault(
                f"environments{self._name} gave action masks of shape {found} at step {step} of this run; they "
                f"should have {self.now.shape[1:]}"
            ) from error

    def _refuse_none_allowed(self, step: int) -> None:
        fine = possible(self.now, self._counts)
        if not fine.all():
            row = int(np.flatnonzero(~fine)[0])
            raise EnvironmentFault(
                f"environment {row}{self._name} allows no action at step {step} of this run: its action mask is "
                f"{self.now[row].astype(int).tolist()}; end the episode there, or mend the mask"
            )


def sample_allowed(space: Space[Any], mask: Array) -> Any:
    """Draw one allowed action by the generator of a space."""
    counts = mask_counts(space)
    assert counts is not None
    parts = np.split(mask, np.cumsum(counts)[:-1])
    choices: Any = np.array([space.np_random.choice(np.flatnonzero(part)) for part in parts])
    start = getattr(space, "start", 0)
    return (choices.reshape(space.shape) + start).astype(space.dtype)
