"""`learning_curve.png`: what people look at first."""

from pathlib import Path
from typing import Any

from rl_training.experiment.files import write_bytes
from rl_training.experiment.logs.drawing import as_png, new_figure, silent_drawing, warn_not_drawn
from rl_training.experiment.logs.rows import STEP, is_evaluation, is_metrics_row, read_rows


def plot_learning_curve(run_dir: Path, title: str) -> Path | None:
    """Draw training and evaluation returns of a run; nothing if there are none yet.

    No picture is worth a run: whatever goes wrong is a warning.
    """
    try:
        return _plot(run_dir, title)
    except Exception as error:  # damaged logs, matplotlib, the disk
        warn_not_drawn(run_dir / "learning_curve.png", error)
        return None


def _plot(run_dir: Path, title: str) -> Path | None:
    rows = read_rows(run_dir / "metrics.jsonl", is_metrics_row)
    rows = [row for row in rows if row.get("rollout/ep_rew_mean") is not None]
    evaluations = read_rows(run_dir / "evaluations.jsonl", is_evaluation)
    if not rows and not evaluations:
        return None
    with silent_drawing():
        picture = _draw(rows, evaluations, title)
    path = run_dir / "learning_curve.png"
    write_bytes(path, picture)  # replaces the file, and so no link leads the picture elsewhere
    return path


def _draw(rows: list[dict[str, Any]], evaluations: list[dict[str, Any]], title: str) -> bytes:
    figure = new_figure(7, 4)
    axes = figure.add_subplot()
    if rows:
        axes.plot(
            [row[STEP] for row in rows], [row["rollout/ep_rew_mean"] for row in rows],
            color="tab:gray", label="training, mean of last 100 episodes",
        )  # fmt: skip
    if evaluations:
        steps = [row["timesteps"] for row in evaluations]
        for step, row in zip(steps, evaluations, strict=True):
            axes.plot([step] * len(row["returns"]), row["returns"], ".", color="tab:blue", alpha=0.25, ms=4)
        axes.plot(
            steps,
            [row["mean_reward"] for row in evaluations],
            color="tab:blue",
            label="evaluation, mean (dots: episodes)",
        )
    axes.set(xlabel="environment steps", ylabel="return", title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize=8)
    figure.tight_layout()
    return as_png(figure)
