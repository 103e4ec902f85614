"""Schedules are functions of progress: they have no state to step or save, and are exact on resume.

A schedule maps the fraction of the run to a factor for a setting. It is written the same in YAML, flags and Python:

- `constant`, `linear`, `cosine`: the factor stays 1, or decreases from 1 to 0
- `linear:0.1`, `cosine:0.1`: it goes from 1 to 0.1
- `[[0, 1], [0.5, 0.1], [1, 0.01]]`: points (fraction, factor) with linear interpolation; the same fraction twice is a
  jump
- `module:function`: your own function from the fraction, 0 to 1, to the factor
"""

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import yaml

from rl_training.config.object_paths import import_object, is_name, name_of
from rl_training.config.strict_yaml import FORGED, StrictLoader
from rl_training.core.errors import RunFault, UserError, did_you_mean

ScheduleName: TypeAlias = Literal["constant", "linear", "cosine"]
Points: TypeAlias = tuple[tuple[float, float], ...]
Schedule: TypeAlias = str | Sequence[Sequence[float]] | Callable[[float], float]
"""As a user gives it; after the checks, a text or points."""

NAMES: tuple[str, ...] = get_args(ScheduleName)
FORMS = (
    f"use {', '.join(NAMES)}, one with an end value such as linear:0.1, a list of [fraction, factor] pairs, or "
    "module:function"
)
TRIED = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Fractions at which a user's function is tried before the run."""


def interpolated(initial: float, final: float, fraction: float) -> float:
    """Return the value on the straight line from `initial` to `final`; `fraction` is clamped to [0, 1]."""
    fraction = min(max(fraction, 0.0), 1.0)
    return initial + (final - initial) * fraction


MAX_POINTS = 1_000
"""Points of a schedule; every update searches them."""


def checked_schedule(value: Any) -> str | Points:
    """Return a schedule as it is saved, or raise ValueError with the remedy."""
    if callable(value):
        if (name := name_of(value)) is not None:
            return name
        raise ValueError("it cannot be imported by name; define the function at the top level of a module")
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = yaml.load(value, Loader=StrictLoader)
        except (yaml.YAMLError, *FORGED):
            raise ValueError("write it as [[0, 1], [0.5, 0.1]]") from None
    if isinstance(value, list | tuple):
        return _checked_points(value)
    if not isinstance(value, str):
        raise ValueError(FORMS)
    name, colon, end = value.partition(":")
    if name in NAMES and colon:
        _checked_end(name, end)
    elif value not in NAMES and not is_name(value):
        raise ValueError(f"{FORMS}{did_you_mean(name, NAMES)}")
    return value


def schedule_text(schedule: Schedule) -> str:
    """Return a checked schedule as one text, as it is written on the command line."""
    return schedule if isinstance(schedule, str) else json.dumps(schedule)


def function_name(schedule: object) -> str | None:
    """Return `module:function` if a schedule is one; None for any other."""
    is_function = isinstance(schedule, str) and is_name(schedule) and schedule.partition(":")[0] not in NAMES
    return str(schedule) if is_function else None


class ScheduledSetting:
    """A setting and its schedule: `at(fraction)` is its value there.

    The constructor imports and tries a user's function, so that a bad one is reported before the run.
    """

    def __init__(self, name: str, initial: float, schedule: Schedule) -> None:
        self.name, self.initial = name, initial
        checked = checked_schedule(schedule)
        self.function = function_name(checked)
        if self.function is None:
            self.factor = _factor(checked)
            return
        self.factor = import_object(self.function, f"{name}_schedule")
        if not callable(self.factor):
            raise UserError(
                f"{name}_schedule '{self.function}' is a {type(self.factor).__name__}, not a function"
            )
        for fraction in TRIED:
            if (problem := self._asked(fraction)[1]) is not None:
                raise UserError(problem)

    def at(self, fraction: float) -> float:
        """Return the value at this fraction of the budget, clamped to [0, 1], as the last rollout may overshoot."""
        fraction = min(max(fraction, 0.0), 1.0)
        if self.function is None:
            return self.initial * self.factor(fraction)
        factor, problem = self._asked(fraction)
        if problem is not None:
            raise RunFault(problem)
        return self.initial * factor

    def _asked(self, fraction: float) -> tuple[float, str | None]:
        """Return the factor of a user's function, and an error message if it is invalid."""
        begin = f"{self.name}_schedule '{self.function}'"
        try:
            said: Any = self.factor(fraction)
        except Exception as error:
            return 0.0, (
                f"{begin} raised {type(error).__name__} at fraction {fraction:g}: {error}; it is called with the "
                "fraction of the run, 0 to 1, and returns a factor"
            )
        try:
            factor = math.nan if isinstance(said, str | bytes) else float(said)
        except (TypeError, ValueError, OverflowError):
            factor = math.nan
        if not 0.0 <= factor < math.inf:
            return (
                0.0,
                f"{begin} returned {said!r} at fraction {fraction:g}; it must return a finite number ≥ 0",
            )
        return factor, None


def _factor(schedule: str | Points) -> Callable[[float], float]:
    if not isinstance(schedule, str):
        return _piecewise(schedule)
    name, _, end = schedule.partition(":")
    final = float(end or 0.0)
    if name == "linear":
        return lambda fraction: (1.0 - fraction) + final * fraction
    if name == "cosine":
        return lambda fraction: (part := 0.5 * (1.0 + math.cos(math.pi * fraction))) + final * (1.0 - part)
    return lambda fraction: 1.0


def _piecewise(points: Points) -> Callable[[float], float]:
    fractions, factors = zip(*points, strict=True)

    def factor(fraction: float) -> float:
        after = bisect_right(fractions, fraction)
        if after in (0, len(fractions)):
            return float(factors[0] if after == 0 else factors[-1])
        begin, end = fractions[after - 1], fractions[after]
        return interpolated(factors[after - 1], factors[after], (fraction - begin) / (end - begin))

    return factor


def _checked_points(value: Sequence[Any]) -> Points:
    """Return points whose fractions increase from 0 to 1 and whose factors are finite numbers ≥ 0."""
    if len(value) > MAX_POINTS:
        raise ValueError(f"use at most {MAX_POINTS:,} pairs")
    try:
        points = tuple((float(fraction), float(factor)) for fraction, factor in value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("use a list of [fraction, factor] pairs such as [[0, 1], [0.5, 0.1]]") from None
    fractions = [fraction for fraction, _ in points]
    if len(points) < 2:
        raise ValueError("use two [fraction, factor] pairs or more")
    if not all(0.0 <= fraction <= 1.0 for fraction in fractions) or fractions != sorted(fractions):
        raise ValueError("the fractions, first in each pair, must increase from 0 to 1")
    if not all(0.0 <= factor < math.inf for _, factor in points):
        raise ValueError("the factors, second in each pair, must be finite numbers ≥ 0")
    return points


def _checked_end(name: str, end: str) -> None:
    if name == "constant":
        raise ValueError("constant has no end value; use constant, or linear:0.1")
    try:
        factor = float(end)
    except ValueError:
        factor = math.nan
    if not 0.0 <= factor < math.inf:
        raise ValueError(f"give the end value as a number ≥ 0, such as {name}:0.1")
