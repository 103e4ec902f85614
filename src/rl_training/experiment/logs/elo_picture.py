"""The ratings of a run that plays against snapshots of its policy, as `elo.png`."""

from pathlib import Path
from typing import Any

from rl_training.experiment.files import write_bytes
from rl_training.experiment.logs.curves import thinned
from rl_training.experiment.logs.drawing import as_png, new_figure, silent_drawing, warn_not_drawn
from rl_training.experiment.logs.rows import clock_of, is_metrics_row, read_rows

RATING, LOWEST, HIGHEST = "selfplay/elo", "selfplay/pool_elo_min", "selfplay/pool_elo_max"


def plot_ratings(run_dir: Path, title: str) -> None:
    """Write the ratings of the learner and its pool, if there are any, as `elo.png`; a failure is only a warning."""
    path = run_dir / "elo.png"
    try:
        rows = read_rows(run_dir / "metrics.jsonl", is_metrics_row)
        rows = thinned([row for row in rows if row.get(RATING) is not None])
        if not rows:
            return
        with silent_drawing():
            picture = as_png(_figure(rows, title))
        write_bytes(path, picture)
    except Exception as error:  # damaged logs, matplotlib, the disk
        warn_not_drawn(path, error)


def _figure(rows: list[dict[str, Any]], title: str) -> Any:
    figure = new_figure(7, 4)
    axes = figure.add_subplot()
    steps = [clock_of(row) for row in rows]
    lowest, highest = ([row.get(name, row[RATING]) for row in rows] for name in (LOWEST, HIGHEST))
    axes.fill_between(
        steps, lowest, highest, color="tab:gray", alpha=0.3, lw=0, label="snapshots, weakest to strongest"
    )
    axes.plot(steps, [row[RATING] for row in rows], color="tab:blue", label="learner")
    axes.set(xlabel="environment steps", ylabel="Elo rating", title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize=8)
    figure.tight_layout()
    return figure
