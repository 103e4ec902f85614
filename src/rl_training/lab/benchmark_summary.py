"""Computes the statistics of a benchmark report from scored runs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rl_training.core.errors import UserError
from rl_training.lab import statistics
from rl_training.lab.run_curves import Curves, over_steps, over_time, over_training, training_start
from rl_training.lab.scored_runs import ScoredRun
from rl_training.lab.statistics import RESAMPLES, Array, Band, Draws, Estimate, Published

References = Mapping[str, tuple[float, float]]
"""Task -> the scores that are normalised to 0 and 1."""
Cells = dict[tuple[str, str], list[ScoredRun]]
"""(name, task) -> runs in the order of their seeds."""

NUM_THRESHOLDS = 101


@dataclass(frozen=True)
class Settings:
    """Settings of the bootstrap; the same settings and records give the same report."""

    resamples: int = RESAMPLES
    seed: int = 0

    def draw(self, counts: Sequence[int]) -> Draws:
        """Return the resamples of one table entry, independent of other entries."""
        return statistics.draw(counts, resamples=self.resamples, seed=self.seed)


@dataclass(frozen=True)
class TaskSummary:
    """The runs of one name on one task. `over_steps` and `over_time` are the IQM of their evaluations.

    `over_steps` is over updates if `unit` says so: the runs of algorithms for datasets collect no steps.
    """

    name: str
    task: str
    runs: Sequence[ScoredRun]
    unit: str
    iqm: Estimate
    mean: Estimate
    median: Estimate
    normalised: Array | None
    over_steps: Band | None
    over_time: Band | None

    @property
    def best(self) -> float:
        """The mean over seeds of each run's best evaluation, which is not a score."""
        return float(np.mean([run.best for run in self.runs]))


@dataclass(frozen=True)
class Aggregate:
    """Normalised scores of one name over its tasks; `over_training` is the IQM of normalised evaluations."""

    name: str
    tasks: Sequence[str]
    num_runs: int
    iqm: Estimate
    mean: Estimate
    median: Estimate
    optimality_gap: Estimate
    profile: Band
    over_training: Band | None


@dataclass(frozen=True)
class Improvement:
    """How likely a run of `name` beats one of `baseline`: per task, and the mean over tasks."""

    name: str
    baseline: str
    per_task: Mapping[str, Estimate]
    overall: Estimate


@dataclass(frozen=True)
class Comparison:
    """The mean of our runs compared with a published one."""

    name: str
    task: str
    num_seeds: int
    ours: Estimate
    published: Published
    verdict: str


@dataclass(frozen=True)
class Summary:
    """All data of a report."""

    settings: Settings
    references: References
    has_baseline: bool
    tasks: Sequence[TaskSummary]
    aggregates: Sequence[Aggregate]
    improvements: Sequence[Improvement]
    comparisons: Sequence[Comparison]


def summarise(
    records: Sequence[ScoredRun],
    baseline: Sequence[ScoredRun] | None = None,
    references: References | None = None,
    published: Mapping[tuple[str, str], Published] | None = None,
    settings: Settings | None = None,
) -> Summary:
    """Return scores per task, aggregates of tasks with references, and comparisons with other scores."""
    settings, references = settings or Settings(), references or {}
    _check_references(references)
    cells = group(records, "there are no runs to report")
    tasks = [_task(key, runs, references, settings) for key, runs in cells.items()]
    improvements = []
    if baseline is not None:
        theirs = group(baseline, "the baseline has no runs; leave it out")
        improvements = list(_improvements(cells, theirs, settings))
    comparisons = [
        Comparison(
            entry.name,
            entry.task,
            len(entry.runs),
            entry.mean,
            figure,
            statistics.verdict(entry.mean, figure),
        )
        for entry in tasks
        if (figure := (published or {}).get((entry.name, entry.task))) is not None
    ]
    aggregates = _aggregates(tasks, references, settings)
    return Summary(settings, references, baseline is not None, tasks, aggregates, improvements, comparisons)


def group(records: Sequence[ScoredRun], if_none: str) -> Cells:
    """Return the runs by name and task, sorted by seed; raise if a seed occurs twice."""
    if not records:
        raise UserError(if_none)
    cells: Cells = {}
    for record in sorted(records, key=lambda record: (record.task, record.name, record.seed)):
        runs = cells.setdefault((record.name, record.task), [])
        if runs and runs[-1].seed == record.seed:
            raise UserError(
                f"there are two runs of {record.name} on {record.task} with seed {record.seed}; keep one of them"
            )
        runs.append(record)
    return cells


def _check_references(references: References) -> None:
    for task, (low, high) in references.items():
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise UserError(
                f"the references of {task} are {low} and {high}; the first must be lower than the second"
            )


def _task(
    key: tuple[str, str], runs: list[ScoredRun], references: References, settings: Settings
) -> TaskSummary:
    name, task = key
    units = sorted({run.unit for run in runs})
    if len(units) > 1:
        raise UserError(
            f"some runs of {name} on {task} count {units[0]}, others {units[1]}; report them separately"
        )
    scores = _scores(runs)
    draws = settings.draw([len(runs)])
    normalised = _normalised(scores, references[task]) if task in references else None
    return TaskSummary(
        name,
        task,
        runs,
        units[0],
        statistics.estimate(statistics.iqm, [scores], draws),
        statistics.estimate(statistics.mean, [scores], draws),
        statistics.estimate(statistics.median_of_runs, [scores], draws),
        normalised,
        _curve(over_steps(runs), draws),
        _curve(over_time(runs), draws),
    )


def _normalised(scores: Array, reference: tuple[float, float]) -> Array:
    low, high = reference
    return np.asarray((scores - low) / (high - low))


def _curve(curves: Curves | None, draws: Draws) -> Band | None:
    return None if curves is None else statistics.curve([curves.rewards], curves.x, draws)


def _aggregates(tasks: Sequence[TaskSummary], references: References, settings: Settings) -> list[Aggregate]:
    known = [(entry, entry.normalised) for entry in tasks if entry.normalised is not None]
    if not known:
        return []
    every = np.concatenate([scores for _, scores in known])
    thresholds = np.linspace(min(0.0, every.min()), max(1.0, every.max()), NUM_THRESHOLDS)
    found = []
    for name in sorted({entry.name for entry, _ in known}):
        entries = [entry for entry, _ in known if entry.name == name]
        scores = [normalised for entry, normalised in known if entry.name == name]
        draws = settings.draw([len(runs) for runs in scores])
        found.append(
            Aggregate(
                name,
                [entry.task for entry in entries],
                sum(map(len, scores)),
                statistics.estimate(statistics.iqm, scores, draws),
                statistics.estimate(statistics.mean, scores, draws),
                statistics.estimate(statistics.median, scores, draws),
                statistics.estimate(statistics.optimality_gap, scores, draws),
                statistics.performance_profile(scores, thresholds, draws),
                _over_training(entries, references, draws),
            )
        )
    return found


def _over_training(entries: Sequence[TaskSummary], references: References, draws: Draws) -> Band | None:
    start = max(training_start(entry.runs) for entry in entries)
    if start >= 1:
        return None
    curves = [over_training(entry.runs, start) for entry in entries]
    rewards = [
        _normalised(curve.rewards, references[entry.task])
        for curve, entry in zip(curves, entries, strict=True)
    ]
    return statistics.curve(rewards, curves[0].x, draws)


def _improvements(ours: Cells, theirs: Cells, settings: Settings) -> Iterator[Improvement]:
    """Compare with the baseline of the same name, or with the only one."""
    names = sorted({name for name, _ in theirs})
    for name in sorted({name for name, _ in ours}):
        if name not in names and len(names) > 1:
            continue
        other = name if name in names else names[0]
        tasks = sorted(task for own, task in ours if own == name and (other, task) in theirs)
        if not tasks:
            continue
        our = [_scores(ours[name, task]) for task in tasks]
        their = [_scores(theirs[other, task]) for task in tasks]
        per_task = [_improvement([one], [two], settings) for one, two in zip(our, their, strict=True)]
        yield Improvement(
            name, other, dict(zip(tasks, per_task, strict=True)), _improvement(our, their, settings)
        )


def _scores(runs: Sequence[ScoredRun]) -> Array:
    return np.array([run.score for run in runs])


def _improvement(ours: Sequence[Array], theirs: Sequence[Array], settings: Settings) -> Estimate:
    draws = settings.draw([len(runs) for runs in [*ours, *theirs]])  # one stream: both sides are independent
    return statistics.improvement(ours, theirs, draws[: len(ours)], draws[len(ours) :])
