"""What a reader of a benchmark must know to judge it, in sentences."""

from collections.abc import Iterator

from rl_training.experiment.benchmark_summary import Summary, TaskSummary
from rl_training.experiment.run_curves import over_steps


def remarks(summary: Summary) -> list[str]:
    """Return everything about these runs that makes a figure weaker than it looks, or that is not there."""
    told = [sentence for entry in summary.tasks for sentence in _task_remarks(entry)]
    return [*told, *_reference_remarks(summary), *_baseline_remarks(summary)]


def _task_remarks(entry: TaskSummary) -> Iterator[str]:
    what = f"{entry.name} on {entry.task}"
    if len(entry.runs) == 1:
        yield f"{what} has one seed, which tells no spread: no interval."
    ends = sorted({run.evaluations[-1].step for run in entry.runs})
    if len(ends) > 1:
        yield f"The runs of {what} end at different steps, {ends[0]:,} to {ends[-1]:,}; scores are of their ends."
    curves = over_steps(entry.runs)
    if curves is None:
        yield f"The runs of {what} have no steps in common: no curve over steps."
    elif curves.interpolated:
        yield (
            f"The runs of {what} were evaluated at different steps: their curve is linear between evaluations and goes "
            "as far as all of them."
        )
    if entry.over_time is None:
        yield f"The times of {what} are not known for all evaluations, or not shared: no curve over time."


def _reference_remarks(summary: Summary) -> Iterator[str]:
    tasks = {entry.task for entry in summary.tasks}
    missing = sorted(tasks - summary.references.keys())
    if len(missing) == len(tasks):
        yield "No references are given: scores are raw, and not aggregated over tasks."
    elif missing:
        yield f"Without references, and so left out of what is aggregated: {', '.join(missing)}."
    if len({tuple(entry.tasks) for entry in summary.aggregates}) > 1:
        yield "Aggregates are over different tasks, and so cannot be compared with each other."


def _baseline_remarks(summary: Summary) -> Iterator[str]:
    if not summary.has_baseline:
        return
    compared = {(entry.name, task) for entry in summary.improvements for task in entry.per_task}
    left_out = sorted({(entry.name, entry.task) for entry in summary.tasks} - compared)
    if left_out:
        yield f"Not in the baseline: {', '.join(f'{name} on {task}' for name, task in left_out)}."
