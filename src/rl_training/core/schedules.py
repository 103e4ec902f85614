"""Schedules are functions of progress: nothing to step, nothing to save, exact on resume."""

import math
from typing import Literal, TypeAlias

ScheduleName: TypeAlias = Literal["constant", "linear", "cosine"]


def interpolated(initial: float, final: float, fraction: float) -> float:
    """Return the value on the straight line from `initial` to `final`; `fraction` is clamped to [0, 1]."""
    fraction = min(max(fraction, 0.0), 1.0)
    return initial + (final - initial) * fraction


def scheduled(initial: float, schedule: ScheduleName, fraction: float) -> float:
    """Return the value after `fraction` of the budget; linear and cosine fall from `initial` to 0.

    `fraction` is clamped to [0, 1], so a rollout that overshoots the budget never gives a negative value.
    """
    fraction = min(max(fraction, 0.0), 1.0)
    if schedule == "linear":
        return initial * (1.0 - fraction)
    if schedule == "cosine":
        return initial * 0.5 * (1.0 + math.cos(math.pi * fraction))
    return initial
