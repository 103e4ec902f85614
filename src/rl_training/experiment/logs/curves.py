"""The learning curve of a run, as a figure and as `learning_curve.png`."""

from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from rl_training.core.errors import UserError
from rl_training.experiment.files import write_bytes
from rl_training.experiment.logs.drawing import as_png, new_figure, silent_drawing, warn_not_drawn
from rl_training.experiment.logs.rows import (
    clock_of,
    counts_updates,
    is_evaluation,
    is_metrics_row,
    read_rows,
)

MAX_POINTS = 20_000
"""Points of a curve: more than there are pixels."""
MAX_DOTTED = 1_000
"""Evaluations whose episodes are drawn as dots; each takes a millisecond."""


def plot_learning_curve(run_dir: Path, title: str) -> None:
    """Write the returns of a run, if there are any, as `learning_curve.png`; a failure is only a warning."""
    path = run_dir / "learning_curve.png"
    try:
        rows, evaluations = _returns(run_dir)
        if not rows and not evaluations:
            return
        with silent_drawing():
            picture = _draw(rows, evaluations, title)
        write_bytes(path, picture)  # replaces the file, so that a link in its place is not followed
    except Exception as error:  # damaged logs, matplotlib, the disk
        warn_not_drawn(path, error)


def learning_curve(run_dir: Path, title: str, path: str | PathLike[str] | None = None) -> Any:
    """Return training and evaluation returns of a run as a matplotlib figure; with `path`, also save it there."""
    rows, evaluations = _returns(run_dir)
    if not rows and not evaluations:
        raise UserError(f"{run_dir} has no returns to plot yet; train until an episode or an evaluation ends")
    with silent_drawing():
        figure = _figure(rows, evaluations, title)
        if path is not None:
            try:
                figure.savefig(path)
            except (OSError, ValueError) as error:  # an unknown file ending is a ValueError
                raise UserError(f"cannot write {path}: {error}") from error
    figure._repr_png_ = partial(as_png, figure)  # shown by notebooks, whichever backend is active
    return figure


def _returns(run_dir: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of metrics that have a training return, and the evaluations."""
    rows = read_rows(run_dir / "metrics.jsonl", is_metrics_row)
    rows = [row for row in rows if row.get("rollout/ep_rew_mean") is not None]
    return thinned(rows), thinned(read_rows(run_dir / "evaluations.jsonl", is_evaluation))


def thinned(rows: list[dict[str, Any]], limit: int = MAX_POINTS) -> list[dict[str, Any]]:
    """Return at most `limit` of the rows, at equal distances."""
    return rows[:: -(-len(rows) // limit)] if rows else rows


def _draw(rows: list[dict[str, Any]], evaluations: list[dict[str, Any]], title: str) -> bytes:
    return as_png(_figure(rows, evaluations, title))


def _figure(rows: list[dict[str, Any]], evaluations: list[dict[str, Any]], title: str) -> Any:
    figure = new_figure(7, 4)
    axes = figure.add_subplot()
    xlabel = "updates" if counts_updates([*rows, *evaluations][0]) else "environment steps"
    if rows:
        axes.plot(
            [clock_of(row) for row in rows], [row["rollout/ep_rew_mean"] for row in rows],
            color="tab:gray", label="training, mean of last 100 episodes",
        )  # fmt: skip
    if evaluations:
        steps = [clock_of(row) for row in evaluations]
        for row in thinned(evaluations, MAX_DOTTED):
            axes.plot(
                [clock_of(row)] * len(row["returns"]), row["returns"], ".", color="tab:blue", alpha=0.25, ms=4
            )
        axes.plot(
            steps,
            [row["mean_reward"] for row in evaluations],
            color="tab:blue",
            label="evaluation, mean (dots: episodes)",
        )
    axes.set(xlabel=xlabel, ylabel="return", title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize=8)
    figure.tight_layout()
    return figure
