"""Statistics of a few runs per task, after Agarwal et al. 2021, https://arxiv.org/abs/2108.13264; NumPy alone.

Scores are a sequence with one array per task, its last axis the runs; tasks may have different numbers of them. Leading
axes are resamples: a statistic of [B, runs] arrays is that of every resample at once.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Draws = Sequence[NDArray[np.int64]]
"""Per task which runs a resample consists of, [B, runs]."""
Statistic = Callable[[Sequence[Array]], Array]

LEVEL = 95
RESAMPLES = 2000
NORMAL_QUANTILE = 1.959963984540054
"""Standard deviations from the middle to either end of a normal distribution's central 95%."""


@dataclass(frozen=True)
class Estimate:
    """A value with its interval; `low` and `high` are None where a task has one run, which tells no spread."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Band:
    """A curve with its intervals point by point; `low` and `high` are None where a task has one run."""

    x: Array
    value: Array
    low: Array | None = None
    high: Array | None = None


def mean(tasks: Sequence[Array]) -> Array:
    """Return the mean over tasks of the mean over runs."""
    return np.asarray(_task_means(tasks).mean(axis=0))


def median(tasks: Sequence[Array]) -> Array:
    """Return the median over tasks of the mean over runs; of one task that is its mean."""
    return np.asarray(np.median(_task_means(tasks), axis=0))


def median_of_runs(tasks: Sequence[Array]) -> Array:
    """Return the median over all runs of all tasks."""
    return np.asarray(np.median(_runs(tasks), axis=-1))


def iqm(tasks: Sequence[Array]) -> Array:
    """Return the interquartile mean: of all runs of all tasks, without the lowest and the highest quarter.

    A quarter is rounded down, so fewer than four runs are averaged whole.
    """
    runs = np.sort(_runs(tasks), axis=-1)
    cut = runs.shape[-1] // 4
    return np.asarray(runs[..., cut : runs.shape[-1] - cut].mean(axis=-1))


def optimality_gap(tasks: Sequence[Array]) -> Array:
    """Return how far runs stay below 1 on average; what is above it makes up for nothing."""
    return np.asarray(1.0 - np.minimum(_runs(tasks), 1.0).mean(axis=-1))


def share_above(threshold: float) -> Statistic:
    """Return the statistic `share of all runs whose score is greater than the threshold`."""

    def share(tasks: Sequence[Array]) -> Array:
        return np.asarray((_runs(tasks) > threshold).mean(axis=-1))

    return share


def _task_means(tasks: Sequence[Array]) -> Array:
    return np.stack([np.asarray(task, dtype=np.float64).mean(axis=-1) for task in tasks])


def _runs(tasks: Sequence[Array]) -> Array:
    return np.concatenate([np.asarray(task, dtype=np.float64) for task in tasks], axis=-1)


def draw(counts: Sequence[int], *, resamples: int = RESAMPLES, seed: int = 0) -> Draws:
    """Return which runs resamples consist of: within every task as many as it has, with replacement."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, count, size=(resamples, count)) for count in counts]


def interval(values: Array) -> tuple[Any, Any]:
    """Return the percentile interval of resampled values [B, ...], linear between neighbouring ones."""
    tail = (100 - LEVEL) / 2
    low, high = np.percentile(values, [tail, 100 - tail], axis=0)
    return low, high


def estimate(statistic: Statistic, tasks: Sequence[Array], draws: Draws) -> Estimate:
    """Return a statistic of the runs with its stratified bootstrap interval."""
    value = float(statistic(tasks))
    if _has_lone_run(tasks):
        return Estimate(value)
    resampled = [np.asarray(task)[drawn] for task, drawn in zip(tasks, draws, strict=True)]
    low, high = interval(statistic(resampled))
    return Estimate(value, float(low), float(high))


def performance_profile(tasks: Sequence[Array], thresholds: Array, draws: Draws) -> Band:
    """Return the share of runs with a score greater than each threshold."""
    return _band(thresholds, (estimate(share_above(float(tau)), tasks, draws) for tau in thresholds))


def curve(tasks: Sequence[Array], x: Array, draws: Draws, statistic: Statistic = iqm) -> Band:
    """Return a statistic at every point of curves [runs, points]; whole runs are resampled, not points."""
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
    """Return how likely a run of ours beats one of theirs on the same task, ties as one half, mean over tasks.

    Per task that is the Mann-Whitney statistic over its greatest possible value.
    """
    return float(np.mean([wins.mean() for wins in _duels(ours, theirs)]))


def improvement(ours: Sequence[Array], theirs: Sequence[Array], draws: Draws, their_draws: Draws) -> Estimate:
    """Return the probability of improvement with its interval; either side is resampled for itself."""
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
    """Return per task who wins, [our runs, their runs]: 1 we, 0 they, 1/2 neither."""
    pairs = (
        (np.asarray(our)[:, None], np.asarray(their)[None, :])
        for our, their in zip(ours, theirs, strict=True)
    )
    return [(our > their) + 0.5 * (our == their) for our, their in pairs]


@dataclass(frozen=True)
class Published:
    """A figure from elsewhere: the mean of `num_seeds` runs and their standard deviation, as far as they are told.

    `remark` is for people: what differs from it, and why.
    """

    mean: float
    std: float | None = None
    num_seeds: int | None = None
    source: str = ""
    remark: str = ""

    @property
    def interval(self) -> Estimate:
        """The 95% interval of the mean by the normal law; mean ± std if the number of seeds is not told."""
        if self.std is None:
            return Estimate(self.mean)
        reach = self.std
        if self.num_seeds is not None:
            reach *= NORMAL_QUANTILE / math.sqrt(self.num_seeds)
        return Estimate(self.mean, self.mean - reach, self.mean + reach)


VERDICT_RULE = (
    "Equal where our 95% interval of the mean and the published interval overlap, else better or worse; the published "
    "interval is mean ± 1.96 std / √n, mean ± std where n is not told, and the mean alone where no std is told"
)


def verdict(ours: Estimate, published: Published) -> Literal["better", "equal", "worse"]:
    """Return how our mean compares with a published one: see `VERDICT_RULE`. Without an interval a value is a point."""
    theirs = published.interval
    if _low(ours) > _high(theirs):
        return "better"
    return "worse" if _high(ours) < _low(theirs) else "equal"


def _low(found: Estimate) -> float:
    return found.value if found.low is None else found.low


def _high(found: Estimate) -> float:
    return found.value if found.high is None else found.high
