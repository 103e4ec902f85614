"""Refuses numbers of environments that are not finite, cheap enough for every step."""

from collections.abc import Callable

import numpy as np

from rl_training.core.errors import EnvironmentFault
from rl_training.core.spaces import float_dtype
from rl_training.core.types import Array, StepArrays, leaves


class FiniteCheck:
    """Looks at observations and rewards in the type they are remembered in: 1e39 would be stored as infinite."""

    def __init__(self, out: StepArrays) -> None:
        self._out = out
        self._checks = [
            ("an observation", key, array, zero_product(array))
            for key, array in leaves(out.obs)
            if np.issubdtype(array.dtype, np.floating)
        ] + [("a reward", "", out.reward, too_large(out.reward))]
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


def zero_product(array: Array) -> Callable[[], float]:
    """Return a check that gives 0.0 exactly if all of `array` is finite: 0 * inf and 0 * nan are nan.

    One product costs a tenth of `isfinite(...).all()` on small arrays; unlike `dot`, `vdot` warns of nothing.
    """
    flat = array.reshape(-1)
    zeros = np.zeros_like(flat)
    return lambda: float(np.vdot(flat, zeros))


def too_large(rewards: Array) -> Callable[[], float]:
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
