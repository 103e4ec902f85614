"""What an environment returned, held against what Gymnasium asks for and its space promised: a fault in words.

Nothing is mended here. Without this, an array of one number would be trained on as if it were three, or the fault would
be told in NumPy's words, without the environment's name.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.core.errors import EnvironmentFault
from rl_training.core.spaces.layout import float_dtype
from rl_training.core.types import Array, StepArrays, leaves

NUMBERS = (float, int, np.number, np.bool_)
LARGEST_FLOAT = int(np.finfo(np.float64).max)


class InvalidResult(Exception):
    """Raised by our wrappers inside of an environment: what it did wrong, as the rest of a sentence about it."""


class ResultCheck:
    """Finds what is wrong with results of `reset` and `step`; takes half a microsecond where nothing is."""

    def __init__(self, space: Space[Any]) -> None:
        self.space = space
        self._is_number = isinstance(space, spaces.Discrete)
        plain = isinstance(space, spaces.Box)
        self._shape = space.shape if plain else None
        self._types = {space.dtype} if plain else set()
        """What plain observations may be of: more are added as they come and turn out to be fine."""

    def after_reset(self, result: Any) -> str | None:
        """Return what is wrong with what `reset` returned; None if nothing is."""
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
            return f"returned {kind_of(result)} from reset, where Gymnasium asks for (observation, info)"
        return self.observation(result[0])

    def after_step(self, result: Any) -> str | None:
        """Return what is wrong with what `step` returned; None if nothing is."""
        if (problem := wrong_length(result)) is not None:
            return problem
        obs, reward, terminated, truncated, info = result
        if reward.__class__ is int and abs(reward) > LARGEST_FLOAT:
            return "gave a reward of more than 308 digits; it must fit a float"
        if not isinstance(reward, NUMBERS) and (problem := _reward(reward)) is not None:
            return problem
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if flag.__class__ is not bool and (problem := _flag(name, flag)) is not None:
                return problem
        if not isinstance(info, dict):
            return f"gave {kind_of(info)} as info, where Gymnasium asks for a dict"
        return self.observation(obs)

    def observation(self, obs: Any) -> str | None:
        """Return what is wrong with an observation; None if nothing is."""
        if obs.__class__ is np.ndarray and obs.shape == self._shape and obs.dtype in self._types:
            return None
        if self._is_number and isinstance(obs, int | np.integer):
            return None
        problem = _misfit(self.space, obs, "")
        if problem is None and self._shape is not None and isinstance(obs, np.ndarray):
            self._types.add(obs.dtype)
        return problem


def wrong_length(result: Any) -> str | None:
    """Return what is wrong with what `step` returned if that is no tuple of five."""
    if isinstance(result, tuple) and len(result) == 5:
        return None
    return (
        f"returned {kind_of(result)} from step, where Gymnasium asks for (observation, reward, terminated, "
        "truncated, info)"
    )


def _misfit(space: Space[Any], obs: Any, key: str) -> str | None:
    """Return what is wrong with an observation or an entry of one."""
    what = f"an observation whose entry '{key}' is" if key else "an observation that is"
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, Mapping):
            return f"gave {what} {kind_of(obs)}, where its space has entries {list(space.spaces)}"
        if set(obs) != set(space.spaces):
            return f"gave {what} a dict with entries {list(obs)}, where its space has {list(space.spaces)}"
        parts: Any = ((name, part, obs[name]) for name, part in space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        if not isinstance(obs, tuple | list) or len(obs) != len(space.spaces):
            return f"gave {what} {kind_of(obs)}, where its space is a tuple of {len(space.spaces)}"
        parts = ((str(i), part, obs[i]) for i, part in enumerate(space.spaces))
    else:
        return _leaf_misfit(space, obs, what)
    found = (_misfit(part, value, f"{key}/{name}" if key else name) for name, part, value in parts)
    return next((problem for problem in found if problem is not None), None)


def _leaf_misfit(space: Space[Any], obs: Any, what: str) -> str | None:
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return None  # refused elsewhere, by its space
    array = _array(obs)
    if array is None or array.dtype.kind not in "biuf":
        return f"gave {what} {kind_of(obs)}, where its space holds numbers of type {space.dtype}"
    if array.shape != tuple(space.shape or ()):
        return f"gave {what} of shape {array.shape}, where its space says {tuple(space.shape or ())}"
    fits = np.can_cast(array.dtype, space.dtype, "same_kind") or _whole(array, space.dtype)
    return None if fits else f"gave {what} of type {array.dtype}, where its space says {space.dtype}"


def _whole(array: Array, dtype: Any) -> bool:
    """Tell whether whole numbers of another type stay what they are."""
    return array.dtype.kind in "biu" and bool((array.astype(dtype) == array).all())


def _reward(reward: Any) -> str | None:
    array = _array(reward)
    if array is None or array.dtype.kind not in "biuf":
        return f"gave a reward that is {kind_of(reward)}; it must be a number"
    if array.ndim == 0:
        return None
    remedy = "take one of its numbers in a wrapper"
    if array.size > 1:
        remedy = "make one number of several in a wrapper, such as LinearReward of mo-gymnasium"
    return f"gave a reward of shape {array.shape}; it must be one number: {remedy}"


def _flag(name: str, flag: Any) -> str | None:
    array = _array(flag)
    fine = array is not None and array.ndim == 0 and array.dtype.kind in "biu" and array in (0, 1)
    return None if fine else f"gave '{name}' that is {kind_of(flag)}; it must be true or false"


def _array(value: Any) -> Array | None:
    try:
        return np.asarray(value)
    except (ValueError, TypeError):
        return None


def kind_of(value: Any) -> str:
    """Return what something is, in few words."""
    if value is None:
        return "None"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if isinstance(value, np.ndarray):
        return f"an array of type {value.dtype} and shape {value.shape}"
    return f"a {type(value).__name__}"


class FiniteCheck:
    """Looks at observations and rewards in the type they are remembered in: 1e39 would be stored as infinite."""

    def __init__(self, out: StepArrays) -> None:
        self._out = out
        self._checks = [
            ("an observation", key, array, finite_check(array))
            for key, array in leaves(out.obs)
            if np.issubdtype(array.dtype, np.floating)
        ] + [("a reward", "", out.reward, reward_check(out.reward))]
        self._finals = [
            (key, array) for key, array in leaves(out.final_obs) if np.issubdtype(array.dtype, np.floating)
        ]

    def refuse(self, step: int) -> None:
        """Refuse what is not finite in the observations and rewards of a step."""
        for name, key, array, check in self._checks:
            if check() != 0.0:
                self._look_closer(name, key, array, step)

    def refuse_final(self, step: int) -> None:
        """Refuse what is not finite in the last observations of episodes."""
        ended = self._out.ended
        for key, array in self._finals:
            if not np.isfinite(array[ended]).all():
                rows = array.reshape(len(array), -1)
                first = int(np.flatnonzero(ended & ~np.isfinite(rows).all(axis=1))[0])
                raise _fault("a final observation", key, first, rows[first], step)

    def _look_closer(self, name: str, key: str, array: Array, step: int) -> None:
        rows = array.reshape(len(array), -1)
        with np.errstate(invalid="ignore", over="ignore"):
            fits = np.isfinite(rows.astype(float_dtype())).all(axis=1)
        if fits.all():  # large rewards of several environments
            return
        bad = int(np.flatnonzero(~fits)[0])
        if np.isfinite(rows[bad]).all():
            raise EnvironmentFault(
                f"environment {bad} gave {name} of {rows[bad, 0]:g} at step {step} of this run, "
                f"which does not fit {np.dtype(float_dtype())}; mend the environment, or clip the quantity in "
                "a wrapper"
            )
        raise _fault(name, key, bad, rows[bad], step)


def finite_check(array: Array) -> Callable[[], float]:
    """Return a check that gives 0.0 exactly if all of `array` is finite: 0 * inf and 0 * nan are nan.

    One product costs a tenth of `isfinite(...).all()` on small arrays; unlike `dot`, `vdot` warns of nothing.
    """
    flat = array.reshape(-1)
    zeros = np.zeros_like(flat)
    return lambda: float(np.vdot(flat, zeros))


def reward_check(rewards: Array) -> Callable[[], float]:
    """Return a check that gives 0.0 only if all of `rewards` is finite as it is stored: the sum of squares is small."""
    largest = np.float64(np.finfo(float_dtype()).max)
    with np.errstate(over="ignore"):
        limit = float(largest * largest)
    return lambda: 0.0 if np.vdot(rewards, rewards) < limit else 1.0


def _fault(name: str, key: str, row: int, values: Array, step: int) -> EnvironmentFault:
    entry = f" '{key}'" if key else ""
    value = values[~np.isfinite(values)][0]
    return EnvironmentFault(
        f"environment {row} gave {name}{entry} that is {value} at step {step} of this run; "
        "mend the environment, or clip the quantity in a wrapper"
    )
