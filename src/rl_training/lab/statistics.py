"""Statistics of a few runs per task, after Agarwal et al. 2021, https://arxiv.org/abs/2108.13264.

Scores are a sequence with one array per task. The last axis are the runs, whose number may differ between tasks.
Leading axes are resamples: a statistic of [B, runs] arrays is computed for all resamples at once.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Draws = Sequence[NDArray[np.int64]]
"""Per task the indices of the runs in each resample [B, runs]."""
Statistic = Callable[[Sequence[Array]], Array]

LEVEL = 95
RESAMPLES = 2000
NORMAL_QUANTILE = 1.959963984540054
"""The 97.5% quantile of the standard normal distribution."""


@dataclass(frozen=True)
class Estimate:
    """A value with its interval; `low` and `high` are None if a task has only one run."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the interval; the value itself if there is none."""
        return self.value if self.low is None else self.low, self.value if self.high is None else self.high


@dataclass(frozen=True)
class Band:
    """A curve with pointwise intervals; `low` and `high` are None if a task has only one run."""

    x: Array
    value: Array
    low: Array | None = None
    high: Array | None = None


def mean(tasks: Sequence[Array]) -> Array:
    """Return the mean over tasks of the mean over runs."""
    return np.asarray(_task_means(tasks).mean(axis=0))


def median(tasks: Sequence[Array]) -> Array:
    """Return the median over tasks of the mean over runs."""
    return np.asarray(np.median(_task_means(tasks), axis=0))


def median_of_runs(tasks: Sequence[Array]) -> Array:
    """Return the median over all runs of all tasks."""
    return np.asarray(np.median(_runs(tasks), axis=-1))


def iqm(tasks: Sequence[Array]) -> Array:
    """Return the interquartile mean: the mean of all runs of all tasks without the lowest and the highest quarter.

    A quarter is rounded down, so all runs count if there are fewer than four.
    """
    runs = np.sort(_runs(tasks), axis=-1)
    cut = runs.shape[-1] // 4
    return np.asarray(runs[..., cut : runs.shape[-1] - cut].mean(axis=-1))


def optimality_gap(tasks: Sequence[Array]) -> Array:
    """Return the mean distance of the runs below 1; scores above 1 count as 1."""
    return np.asarray(1.0 - np.minimum(_runs(tasks), 1.0).mean(axis=-1))


def _task_means(tasks: Sequence[Array]) -> Array:
    return np.stack([np.asarray(task, dtype=np.float64).mean(axis=-1) for task in tasks])


def _runs(tasks: Sequence[Array]) -> Array:
    return np.concatenate([np.asarray(task, dtype=np.float64) for task in tasks], axis=-1)


def draw(counts: Sequence[int], *, resamples: int = RESAMPLES, seed: int = 0) -> Draws:
    """Draw resamples: within every task as many runs as it has, with replacement."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, count, size=(resamples, count)) for count in counts]


def interval(values: Array) -> tuple[Any, Any]:
    """Return the percentile interval of resampled values [B, ...]."""
    tail = (100 - LEVEL) / 2
    low, high = np.percentile(values, [tail, 100 - tail], axis=0)
    return low, high


def estimate(statistic: Statistic, tasks: Sequence[Array], draws: Draws) -> Estimate:
    """Return a statistic with its stratified bootstrap interval."""
    value = float(statistic(tasks))
    if _has_lone_run(tasks):
        return Estimate(value)
    resampled = [np.asarray(task)[drawn] for task, drawn in zip(tasks, draws, strict=True)]
    low, high = interval(statistic(resampled))
    return Estimate(value, float(low), float(high))


def performance_profile(tasks: Sequence[Array], thresholds: Array, draws: Draws) -> Band:
    """Return the fraction of runs with a score above each threshold."""

    def share_above(threshold: float) -> Estimate:
        return estimate(lambda scores: np.asarray((_runs(scores) > threshold).mean(axis=-1)), tasks, draws)

    return _band(thresholds, map(share_above, thresholds))


def curve(tasks: Sequence[Array], x: Array, draws: Draws, statistic: Statistic = iqm) -> Band:
    """Return a statistic at every point of curves [runs, points]; whole runs are resampled."""
    at_points = ([task[:, point] for task in tasks] for point in range(len(x)))
    return _band(x, (estimate(statistic, scores, draws) for scores in at_points))


def _band(x: Array, estimates: Iterator[Estimate]) -> Band:
    found = list(estimates)
    value = np.array([point.value for point in found])
    if any(point.low is None for point in found):
        return Band(x, value)
    return Band(x, value, np.array([point.low for point in found]), np.array([point.high for point in found]))


def _has_lone_run(tasks: Sequence[Array]) -> bool:
    return any(np.shape(task)[-1] < 2 for task in tasks)


def probability_of_improvement(ours: Sequence[Array], theirs: Sequence[Array]) -> float:
    """Return the probability that a run of ours beats a run of theirs on the same task, averaged over tasks.

    Ties count as one half. Per task this is the Mann-Whitney U statistic divided by its maximum.
    """
    return float(np.mean([wins.mean() for wins in _duels(ours, theirs)]))


def improvement(ours: Sequence[Array], theirs: Sequence[Array], draws: Draws, their_draws: Draws) -> Estimate:
    """Return the probability of improvement with its interval; both sides are resampled independently."""
    value = probability_of_improvement(ours, theirs)
    if _has_lone_run(ours) or _has_lone_run(theirs):
        return Estimate(value)
    per_task = [
        wins[rows[:, :, None], columns[:, None, :]].mean(axis=(1, 2))
        for wins, rows, columns in zip(_duels(ours, theirs), draws, their_draws, strict=True)
    ]
    low, high = interval(np.mean(per_task, axis=0))
    return Estimate(value, float(low), float(high))


def _duels(ours: Sequence[Array], theirs: Sequence[Array]) -> list[Array]:
    """Return per task the outcomes [our runs, their runs]: 1 for a win, 0 for a loss, 0.5 for a tie."""
    pairs = (
        (np.asarray(our)[:, None], np.asarray(their)[None, :])
        for our, their in zip(ours, theirs, strict=True)
    )
    return [(our > their) + 0.5 * (our == their) for our, their in pairs]


@dataclass(frozen=True)
class Published:
    """A published mean of `num_seeds` runs, with their standard deviation; `remark` explains differences."""

    mean: float
    std: float | None = None
    num_seeds: int | None = None
    source: str = ""
    remark: str = ""

    @property
    def interval(self) -> Estimate:
        """The normal 95% interval of the mean; mean ± std if the number of seeds is unknown."""
        if self.std is None:
            return Estimate(self.mean)
        reach = self.std
        if self.num_seeds is not None:
            reach *= NORMAL_QUANTILE / math.sqrt(self.num_seeds)
        return Estimate(self.mean, self.mean - reach, self.mean + reach)


VERDICT_RULE = (
    "Equal if our 95% interval of the mean and the published interval overlap, otherwise better or worse; the "
    "published interval is mean ± 1.96 std / √n, mean ± std if n is unknown, and the mean alone if the std is unknown"
)


def verdict(ours: Estimate, published: Published) -> Literal["better", "equal", "worse"]:
    """Compare our mean with a published one: see `VERDICT_RULE`. A value without an interval counts as a point."""
    (low, high), (their_low, their_high) = ours.ends, published.interval.ends
    if low > their_high:
        return "better"
    return "worse" if high < their_low else "equal"
