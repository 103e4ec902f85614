"""`learning_curve.png`: what people look at first."""

from pathlib import Path

from rl_training.experiment.logging import STEP, read_rows


def plot_learning_curve(run_dir: Path, title: str) -> Path | None:
    """Draw training and evaluation returns of a run; nothing if there are none yet."""
    rows = [row for row in read_rows(run_dir / "metrics.jsonl") if row.get("rollout/ep_rew_mean") is not None]
    evaluations = read_rows(run_dir / "evaluations.jsonl")
    if not rows and not evaluations:
        return None
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
    path = run_dir / "learning_curve.png"
    figure.savefig(path)
    return path
