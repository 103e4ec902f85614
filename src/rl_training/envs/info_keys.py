"""Entries of `info` that training uses: `cut_bootstrap` (such as a lost life), `is_success` and `info_keywords`."""

import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from rl_training.core.errors import EnvironmentFault
from rl_training.core.info_keywords import keyword_parts
from rl_training.core.types import Array, Info, StepArrays
from rl_training.envs.checks import InvalidResult

CUT = "cut_bootstrap"
"""True in `info` if a step stops bootstrapping although the episode continues."""


def write_cuts(out: StepArrays, info: dict[str, Any], step: int, *, same_step: bool) -> None:
    """Write the cuts; one in the step of a time limit counts as a termination, and invalid rows have none.

    In same-step mode the entry of an episode's last step is in `final_info`, as `info` belongs to the next episode.
    """
    out.cut[:] = _flags(info, len(out.cut), step)
    if same_step and out.any_ended:
        np.copyto(out.cut, _flags(info.get("final_info", {}), len(out.cut), step), where=out.ended)
    out.cut &= out.valid
    out.terminated |= out.cut & out.truncated
    out.truncated &= ~out.cut
    out.cut &= ~out.ended
    out.any_cut = bool(out.cut.any())


def _flags(info: dict[str, Any], count: int, step: int) -> Array:
    """Return the entry `cut_bootstrap` [N]; raise if it is not a bool."""
    said = np.asarray(info.get(CUT, np.zeros(count, np.bool_)))
    if said.dtype != np.bool_ and said.shape == (count,):
        said = np.array([False if entry is None else entry for entry in said.tolist()])
    if said.dtype != np.bool_ or said.shape != (count,):
        raise EnvironmentFault(
            f"an environment returned an info['{CUT}'] that is not a bool at step {step} of this run; "
            "fix the environment or wrapper that sets it"
        )
    return said


NAME = "is_success"


def read_success(out: StepArrays, info: dict[str, Any], *, same_step: bool) -> None:
    """Write 1 or 0 to `out.success` for episodes that ended with an entry `is_success`, nan elsewhere."""
    out.success.fill(np.nan)
    told = info.get("final_info", {}) if same_step else info
    if NAME not in told:
        return
    by_whom = told.get(f"_{NAME}")
    for row in np.flatnonzero(out.ended):
        if by_whom is None or by_whom[row]:
            out.success[row] = float(bool(told[NAME][row]))


MAX_NAMES = 100
"""Names of entries that are kept for a message."""


def as_number(value: Any) -> float | None:
    """Return a number as a float, also a bool, a NumPy scalar or a 0-d array; None for anything else."""
    if isinstance(value, float):
        return value
    array = np.asarray(value)
    return float(array) if array.shape == () and array.dtype.kind in "biuf" else None


def no_number(name: str, value: Any) -> str:
    """Return the problem of an entry that is not a finite number."""
    text = repr(value)
    kind = f"{text if len(text) <= 60 else text[:60] + '…'} ({type(value).__name__})"
    return (
        f"returned info['{name}'] = {kind}, but info_keywords need a finite number, or nan for none; fix the "
        f"environment, or leave '{name}' out of info_keywords"
    )


class NumbersInInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Converts the entries of `info_keywords` to floats and refuses anything but numbers.

    Without it, a vector environment would round the floats of some environments if another reports an int first.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], keywords: Sequence[str]) -> None:
        super().__init__(env)
        self._names = [keyword_parts(keyword)[0] for keyword in keywords]

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        result: Any = self.env.step(action)
        if not (isinstance(result, tuple) and len(result) == 5 and isinstance(result[4], dict)):
            return result  # type: ignore[no-any-return]  # refused by the checks of every step
        found = {name: result[4][name] for name in self._names if result[4].get(name) is not None}
        numbers = {name: as_number(value) for name, value in found.items()}
        for name, number in numbers.items():
            if number is None or math.isinf(number):
                raise InvalidResult(no_number(name, found[name]))
        return (*result[:4], result[4] | numbers)


class InfoNumbers:
    """Writes the numbers of `info_keywords` to `out.info`, and the names of all entries to `out.info_names`."""

    def __init__(self, out: StepArrays, *, same_step: bool) -> None:
        self._out, self._same_step = out, same_step
        self._arrays = {keyword_parts(keyword)[0]: array for keyword, array in out.info.items()}

    def clear(self) -> None:
        for array in self._arrays.values():
            array.fill(np.nan)

    def read_row(self, info: Info, row: int) -> None:
        """Write the numbers of one environment's step, whose `info` `NumbersInInfo` has checked."""
        self._note(info)
        for name, array in self._arrays.items():
            if (value := info.get(name)) is not None:
                array[row] = value

    def read(self, info: Info, step: int) -> None:
        """Write the numbers of all rows; as for successes, those of finished episodes may be in `final_info`."""
        out, last = self._out, info.get("final_info", {}) if self._same_step else {}
        self._note(info)
        self._note(last)
        for name, array in self._arrays.items():
            array[:] = _numbers(info, name, len(array), step)
            if out.any_ended and self._same_step:
                np.copyto(array, _numbers(last, name, len(array), step), where=out.ended)
            array[~out.valid] = np.nan

    def _note(self, info: Info) -> None:
        names = self._out.info_names
        if len(names) < MAX_NAMES and not info.keys() <= names:  # new ones
            names.update(
                name
                for name in info
                if isinstance(name, str) and not name.startswith(("_", "final_obs", "final_info"))
            )


def _numbers(info: Info, name: str, count: int, step: int) -> Array:
    """Return an entry of a vector environment's `info` as floats [N]; nan where it is not reported."""
    if info.get(name) is None:
        return np.full(count, np.nan)
    told, by_whom = np.asarray(info[name]), np.asarray(info.get(f"_{name}", np.ones(count, np.bool_)))
    if told.shape != (count,) or by_whom.shape != (count,):
        raise EnvironmentFault(
            f"a vector environment {no_number(name, info[name])} (for each of {count}, step {step} of this run)"
        )
    found = np.full(count, np.nan)
    for row in np.flatnonzero(by_whom):
        if told[row] is None:
            continue
        number = as_number(told[row])
        if number is None or math.isinf(number):
            raise EnvironmentFault(
                f"environment {row} {no_number(name, told[row])} (step {step} of this run)"
            )
        found[row] = number
    return found


def infos_by_row(info: Info, out: StepArrays, *, same_step: bool) -> list[Info]:
    """Return the `info` of a vector environment as one dict per row; of the last step where an episode ended."""
    found = _rows_of(info, len(out.ended))
    if same_step and out.any_ended:
        last = _rows_of(info.get("final_info", {}), len(out.ended))
        for row in np.flatnonzero(out.ended):
            found[row] = last[row]
    return found


def _rows_of(info: Info, count: int) -> list[Info]:
    """Return one dict per row; an entry that is not one value per row is the same in all rows."""
    found: list[Info] = [{} for _ in range(count)]
    for name, values in info.items():
        if not isinstance(name, str) or name in ("final_obs", "final_info"):
            continue
        if name.startswith("_") and name[1:] in info:  # says which rows have the entry
            continue
        parts: Any = _rows_of(values, count) if isinstance(values, dict) else values
        if not _is_one_per_row(parts, count):
            parts = [values] * count
        by_whom: Any = info.get(f"_{name}")
        rows = np.flatnonzero(by_whom) if _is_one_per_row(by_whom, count) else range(count)
        for row in rows:
            found[row][name] = parts[row]
    return found


def _is_one_per_row(values: Any, count: int) -> bool:
    if isinstance(values, str | bytes) or not hasattr(values, "__getitem__"):
        return False
    try:
        return len(values) == count
    except TypeError:  # such as an array without axes
        return False
