"""`learning_curve.png`: what people look at first."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl_training.experiment.files import write_bytes
from rl_training.experiment.rows import STEP, is_evaluation, is_metrics_row, read_rows


def plot_learning_curve(run_dir: Path, title: str) -> Path | None:
    """Draw training and evaluation returns of a run; nothing if there are none yet.

    No picture is worth a run: whatever goes wrong is a warning.
    """
    try:
        return _plot(run_dir, title)
    except Exception as error:  # damaged logs, matplotlib, the disk
        problem = f"{type(error).__name__}: {error}"
        if isinstance(error, OSError) and error.strerror:
            problem = error.strerror
        warnings.warn(f"{run_dir / 'learning_curve.png'} was not drawn: {problem}", stacklevel=2)
        return None


def _plot(run_dir: Path, title: str) -> Path | None:
    rows = read_rows(run_dir / "metrics.jsonl", is_metrics_row)
    rows = [row for row in rows if row.get("rollout/ep_rew_mean") is not None]
    evaluations = read_rows(run_dir / "evaluations.jsonl", is_evaluation)
    if not rows and not evaluations:
        return None
    with _silent_drawing() as matplotlib, matplotlib.rc_context():
        matplotlib.rcdefaults()  # not what a `matplotlibrc` in the working folder says
        picture = _draw(rows, evaluations, title)
    path = run_dir / "learning_curve.png"
    write_bytes(path, picture)  # replaces the file, and so no link leads the picture elsewhere
    return path


@contextlib.contextmanager
def _silent_drawing() -> Iterator[Any]:
    """Yield matplotlib, which would tell of a home that it cannot write to, where its fonts are remembered."""
    logger = logging.getLogger("matplotlib")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        import matplotlib

        yield matplotlib
    finally:
        logger.setLevel(before)


def _draw(rows: list[dict[str, Any]], evaluations: list[dict[str, Any]], title: str) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=110)
    FigureCanvasAgg(figure)
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
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()
