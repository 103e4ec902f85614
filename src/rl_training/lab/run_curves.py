"""Learning curves of several runs on one axis, interpolated where the runs were evaluated at different points."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rl_training.lab.scored_runs import ScoredRun
from rl_training.lab.statistics import Array

POINTS = 50
"""Points of an interpolated axis."""


@dataclass(frozen=True)
class Curves:
    """Evaluations [runs, points] at `x`; `interpolated` if some were computed from neighbouring evaluations."""

    x: Array
    rewards: Array
    interpolated: bool


def over_steps(runs: Sequence[ScoredRun]) -> Curves | None:
    """Return evaluations over environment steps or updates; None if the runs have no range in common.

    They are exact if all runs were evaluated at the same steps. Otherwise they are interpolated at the steps of the
    first run within the common range.
    """
    axes = [np.array([point.step for point in run.evaluations], dtype=np.float64) for run in runs]
    if all(np.array_equal(one, other) for one, other in pairwise(axes)):
        rewards = np.array([[point.mean_reward for point in run.evaluations] for run in runs])
        return Curves(axes[0], rewards, interpolated=False)
    start, end = _shared(axes)
    shared = axes[0][(axes[0] >= start) & (axes[0] <= end)]
    return _interpolated(runs, axes, shared) if len(shared) else None


def over_time(runs: Sequence[ScoredRun]) -> Curves | None:
    """Return evaluations over seconds within the common range; None if there is none or times are unknown."""
    times = [run.times for run in runs]
    axes = [np.array(known) for known in times if known is not None]
    if len(axes) < len(runs):
        return None
    start, end = _shared(axes)
    return _interpolated(runs, axes, np.linspace(start, end, POINTS)) if start < end else None


def over_training(runs: Sequence[ScoredRun], start: float) -> Curves:
    """Return evaluations over the fraction of training from `start` on, for tasks of different lengths."""
    return _interpolated(runs, [_shares(run) for run in runs], np.linspace(start, 1.0, POINTS))


def training_start(runs: Sequence[ScoredRun]) -> float:
    """Return the fraction of training by which all runs had been evaluated once."""
    return max(float(_shares(run)[0]) for run in runs)


def _shares(run: ScoredRun) -> Array:
    steps = np.array([point.step for point in run.evaluations], dtype=np.float64)
    return np.asarray(steps / steps[-1])


def _shared(axes: Sequence[Array]) -> tuple[float, float]:
    return max(axis[0] for axis in axes), min(axis[-1] for axis in axes)


def _interpolated(runs: Sequence[ScoredRun], axes: Sequence[Array], x: Array) -> Curves:
    rewards = [
        np.interp(x, axis, [point.mean_reward for point in run.evaluations])
        for run, axis in zip(runs, axes, strict=True)
    ]
    return Curves(x, np.array(rewards), interpolated=True)
