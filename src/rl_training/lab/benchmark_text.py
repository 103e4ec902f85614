"""The text of `report.md`: tables, and how their numbers are computed."""

from collections.abc import Iterable, Iterator, Sequence

from rl_training.core.errors import printable
from rl_training.experiment.records.scores import BEST_RULE, SCORE_RULE
from rl_training.lab.benchmark_summary import Summary, TaskSummary
from rl_training.lab.run_curves import over_steps
from rl_training.lab.statistics import LEVEL, VERDICT_RULE, Estimate, Published

COVERAGE = {3: 74, 5: 83, 10: 90}
"""Seeds -> per cent of intervals of a mean that contain the true mean, for one task with normal scores."""
CAPTIONS = {
    "aggregates.png": "Aggregated scores with their intervals",
    "profile.png": "Performance profile",
    "training.png": "Aggregated evaluations over the fraction of training",
    "steps.png": "Evaluations over environment steps",
    "updates.png": "Evaluations over updates",
    "time.png": "Evaluations over wall time",
    "improvement.png": "Probability of improvement",
}


def markdown(summary: Summary, remarks: Sequence[str], drawn: Sequence[str]) -> str:
    """Return the report as Markdown, with the figures in `drawn`."""
    names = {entry.name for entry in summary.tasks}
    tasks = {entry.task for entry in summary.tasks}
    runs = sum(len(entry.runs) for entry in summary.tasks)
    parts = [
        "# Benchmark",
        f"Tasks: {len(tasks)}. Algorithms or presets: {len(names)}. Runs: {runs}. The score of a run is {SCORE_RULE}. "
        f"Brackets are {LEVEL}% intervals.",
        *_aggregated(summary, drawn),
        *_per_task(summary),
        *_against_baseline(summary, drawn),
        *_against_published(summary),
        *_curves(drawn),
        *_made(summary),
        *_remarked(remarks),
    ]
    return "\n\n".join(parts) + "\n"


def _aggregated(summary: Summary, drawn: Sequence[str]) -> Iterator[str]:
    if not summary.aggregates:
        return
    yield "## Over all tasks"
    yield "Scores are normalised with the references of each task, which are listed below."
    yield _table(
        ["name", "tasks", "runs", "IQM", "mean", "median of task means", "optimality gap"],
        (
            [
                entry.name,
                str(len(entry.tasks)),
                str(entry.num_runs),
                *map(shown, (entry.iqm, entry.mean, entry.median, entry.optimality_gap)),
            ]
            for entry in summary.aggregates
        ),
    )
    yield from _pictures(drawn, ["aggregates.png", "profile.png", "training.png"])


def _per_task(summary: Summary) -> Iterator[str]:
    yield "## Per task"
    yield "Raw returns. *Best* is the mean over seeds of each run's highest evaluation, which is not a score."
    units = sorted({entry.unit for entry in summary.tasks})
    yield _table(
        ["task", "name", "seeds", "IQM", "mean", "median", "best", " or ".join(units)],
        (
            [
                entry.task,
                entry.name,
                str(len(entry.runs)),
                *map(shown, (entry.iqm, entry.mean, entry.median)),
                _number(entry.best),
                f"{max(run.evaluations[-1].step for run in entry.runs):,}"
                + (f" {entry.unit}" if len(units) > 1 else ""),
            ]
            for entry in summary.tasks
        ),
    )


def _against_baseline(summary: Summary, drawn: Sequence[str]) -> Iterator[str]:
    if not summary.improvements:
        return
    yield "## Compared with the baseline"
    yield "The probability that a run beats a run of the baseline on the same task; 0.5 means no difference."
    rows = [
        [task, entry.name, entry.baseline, shown(found)]
        for entry in summary.improvements
        for task, found in [*entry.per_task.items(), ("**all**", entry.overall)]
    ]
    yield _table(["task", "name", "baseline", "probability of improvement"], rows)
    yield from _pictures(drawn, ["improvement.png"])


def _against_published(summary: Summary) -> Iterator[str]:
    if not summary.comparisons:
        return
    yield "## Compared with published scores"
    yield f"{VERDICT_RULE}."
    yield _table(
        ["task", "name", "seeds", "mean", "published", "its interval", "verdict", "source"],
        (
            [
                entry.task,
                entry.name,
                str(entry.num_seeds),
                shown(entry.ours),
                published_figure(entry.published),
                _brackets(entry.published.interval) or "none",
                entry.verdict if entry.num_seeds > 1 else f"{entry.verdict}, of one seed",
                ". ".join(filter(None, (entry.published.source, entry.published.remark))),
            ]
            for entry in summary.comparisons
        ),
    )


def _curves(drawn: Sequence[str]) -> Iterator[str]:
    shown = list(_pictures(drawn, ["steps.png", "updates.png", "time.png"]))
    if shown:
        yield "## Curves"
        yield "IQM of the evaluations over seeds, with pointwise intervals; whole runs are resampled."
        yield from shown


def _made(summary: Summary) -> Iterator[str]:
    yield "## How this was computed"
    few = ", ".join(f"{percent}% with {seeds} seeds" for seeds, percent in COVERAGE.items())
    lines = [
        f"Score: {SCORE_RULE}. Best: {BEST_RULE}.",
        "IQM: the mean of all runs without the lowest and the highest quarter (rounded down, so that all runs count "
        "if there are fewer than four).",
        f"Intervals: {LEVEL}% percentile intervals of a stratified bootstrap with {summary.settings.resamples:,} "
        f"resamples of the seeds within each task and seed {summary.settings.seed}; none for a task with one seed.",
        "Intervals of few seeds are too narrow: for one task with normally distributed scores, the interval of the "
        f"mean contains the true mean in {few}.",
        "Statistics as in [Agarwal et al. 2021](https://arxiv.org/abs/2108.13264).",
    ]
    if summary.aggregates:
        lines += [
            "Mean and median are computed over the means of the tasks; IQM, optimality gap (the mean distance below 1) "
            "and performance profile over all runs of all tasks."
        ]
    if any(entry.over_training for entry in summary.aggregates):
        lines += ["Evaluations over the fraction of training are interpolated linearly."]
    if any(entry.over_time for entry in summary.tasks):
        lines += [
            "Wall time includes evaluations and checkpoints; curves over it are interpolated linearly within the range "
            "that all runs have in common."
        ]
    yield "\n".join(f"- {line}" for line in lines)
    if summary.aggregates:
        used = {task for entry in summary.aggregates for task in entry.tasks}
        yield _table(
            ["task", "normalised to 0", "normalised to 1"],
            ([task, *(f"{edge:,g}" for edge in summary.references[task])] for task in sorted(used)),
        )


def _remarked(remarks: Sequence[str]) -> Iterator[str]:
    if remarks:
        yield "## Remarks"
        yield "\n".join(f"- {_plain(remark)}" for remark in remarks)


def _pictures(drawn: Sequence[str], wanted: Iterable[str]) -> Iterator[str]:
    for name in wanted:
        if name in drawn:
            yield f"![{CAPTIONS[name]}]({name})"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(_plain, cells))} |" for cells in lines)


def _plain(text: str) -> str:
    """Return a text that fits into a table cell."""
    return printable(text).replace("\n", " ").replace("|", "\\|")


def shown(found: Estimate) -> str:
    """Format a value with its interval, if it has one."""
    return f"{_number(found.value)} {_brackets(found)}".rstrip()


def _brackets(found: Estimate) -> str:
    if found.low is None or found.high is None:
        return ""
    return f"[{_number(found.low)}, {_number(found.high)}]"


def published_figure(figure: Published) -> str:
    """Format a published score with its standard deviation and number of runs, if known."""
    spread = "" if figure.std is None else f" ± {_number(figure.std)}"
    seeds = "" if figure.num_seeds is None else f" (n = {figure.num_seeds})"
    return f"{_number(figure.mean)}{spread}{seeds}"


def _number(value: float) -> str:
    """Format a number with about four significant digits."""
    size = abs(value)
    if size == 0:
        return "0"
    digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3
    return f"{value:,.{digits}f}"


def remarks(summary: Summary) -> list[str]:
    """Return everything that limits the results, such as missing seeds, references or times."""
    of_tasks = [remark for entry in summary.tasks for remark in _task_remarks(entry)]
    return [*of_tasks, *_reference_remarks(summary), *_baseline_remarks(summary)]


def _task_remarks(entry: TaskSummary) -> Iterator[str]:
    what = f"{entry.name} on {entry.task}"
    if len(entry.runs) == 1:
        yield f"{what} has only one seed, so there is no interval."
    ends = sorted({run.evaluations[-1].step for run in entry.runs})
    if len(ends) > 1:
        yield (
            f"The runs of {what} end at different {entry.unit}, {ends[0]:,} to {ends[-1]:,}; each score is from the "
            "end of its run."
        )
    curves = over_steps(entry.runs)
    if curves is None:
        yield f"The runs of {what} have no range of {entry.unit} in common, so there is no curve over {entry.unit}."
    elif curves.interpolated:
        yield (
            f"The runs of {what} were evaluated at different {entry.unit}; their curve is interpolated linearly within "
            "the common range."
        )
    if entry.over_time is None:
        yield f"The runs of {what} have unknown times or no common range, so there is no curve over time."


def _reference_remarks(summary: Summary) -> Iterator[str]:
    tasks = {entry.task for entry in summary.tasks}
    missing = sorted(tasks - summary.references.keys())
    if len(missing) == len(tasks):
        yield "No references are given, so scores are not normalised or aggregated over tasks."
    elif missing:
        yield f"Not aggregated, because there are no references: {', '.join(missing)}."
    if len({tuple(entry.tasks) for entry in summary.aggregates}) > 1:
        yield "Aggregates are over different tasks, so they cannot be compared with each other."


def _baseline_remarks(summary: Summary) -> Iterator[str]:
    if not summary.has_baseline:
        return
    compared = {(entry.name, task) for entry in summary.improvements for task in entry.per_task}
    left_out = sorted({(entry.name, entry.task) for entry in summary.tasks} - compared)
    if left_out:
        yield f"Not in the baseline: {', '.join(f'{name} on {task}' for name, task in left_out)}."
