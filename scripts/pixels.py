"""Atari games from pixels beside stable-baselines3: `results/pixels.md` with the curves of both at the same steps.

Part of `make learn`. Ours are trained here, and kept in `results/pixels_ours.json` as long as their settings stay the
same; the peer's were trained once by `make pixels-peer`. Both play with the same wrappers and settings. A point
of a curve is the mean raw score of the last 100 finished games of training, as both libraries log it.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig, load_config
from rl_training.experiment.files import write_json, write_text
from rl_training.experiment.logs.rows import read_rows

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
OURS, PEER = RESULTS / "pixels_ours.json", RESULTS / "pixels_peer.json"
SHORT = {"eval_every_timesteps": 0, "log_every_timesteps": 10_000}
"""The curves are of training; one evaluation at the end is enough."""

FALLING = {
    "learning_rate": 5e-4,
    "learning_rate_schedule": "linear",
    "clip_coef": 0.1,
    "clip_coef_schedule": "linear",
}
"""The peer's settings, which the preset had before."""


@dataclass(frozen=True)
class Case:
    """A preset of ours, what is changed of it, and the seeds it is trained with."""

    preset: str
    changes: dict[str, Any]
    seeds: tuple[int, ...] = (1,)

    @property
    def config(self) -> TrainConfig:
        """The preset with its changes."""
        return load_config(ROOT / self.preset).with_overrides(**self.changes)


CASES = {
    "ppo_breakout_start": Case(
        "configs/ppo/breakout_atari.yaml", {"total_timesteps": 200_000, **SHORT}, seeds=(1, 2, 3)
    ),
    "dqn_breakout_start": Case(
        "configs/dqn/breakout_atari.yaml", {"total_timesteps": 100_000, "learning_starts": 10_000, **SHORT}
    ),
    "ppo_pong_42": Case("configs/ppo/pong_42.yaml", FALLING),
}


def main(names: list[str]) -> None:
    """Train what is missing of ours, then write the page."""
    for name in names or list(CASES):
        for seed in CASES[name].seeds:
            if key(name, seed) not in read(OURS):
                curve = train(CASES[name], seed)
                write_json(OURS, read(OURS) | {key(name, seed): curve})
    write_page()


def read(path: Path) -> dict[str, Any]:
    """Return what is stored so far."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def key(name: str, seed: int) -> str:
    """Name a curve by everything that determines it."""
    return f"{name}/{CASES[name].config.fingerprint()}/seed{seed}"


def train(case: Case, seed: int) -> list[list[float]]:
    """Train in a process of its own; return the mean score of the last 100 games by step."""
    command = [sys.executable, "-m", "rl_training.cli", "train", "--config", str(ROOT / case.preset)]
    command += ["--seed", str(seed), "--output-dir", str(ROOT / "runs" / "pixels"), "--quiet"]
    for setting, value in case.changes.items():
        command += [f"--{setting.replace('_', '-')}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{case.preset} failed: {done.stderr}")
    return curve_of(Path(done.stdout.strip().splitlines()[-1]))


def curve_of(run_dir: Path) -> list[list[float]]:
    """Return the scores that a run logged by step; there are none before its first game ended."""
    rows = read_rows(run_dir / "metrics.jsonl")
    steps, score = "time/total_timesteps", "rollout/ep_rew_mean"
    return [[row[steps], row[score]] for row in rows if row.get(score) is not None]


def write_page() -> None:
    """Write the table and the pictures of all cases that both sides have."""
    ours, theirs = read(OURS), read(PEER)
    lines = [
        "# Atari games from pixels, beside stable-baselines3",
        "",
        "Made by `make learn`; the peer's curves by `make pixels-peer`, once. BreakoutNoFrameskip-v4 in 84 x 84 x 4 "
        "with the Nature CNN, PongNoFrameskip-v4 in 42 x 42 x 4 with the small one; same wrappers, network and "
        "settings on both sides. A few runs are anecdotes: they show whether something is wrong, not who is ahead. "
        "The score is the mean of the last 100 finished games of training, raw points.",
        "",
        "| | steps | ours, by seed | stable-baselines3, by seed |",
        "|---|---|---|---|",
    ]
    pictures = []
    for name, case in CASES.items():
        curves = {seed: ours[key(name, seed)] for seed in case.seeds if key(name, seed) in ours}
        if not curves or name not in theirs:
            continue
        peers = theirs[name]["curves"]
        for part in (0.5, 1.0):
            steps = part * case.config.total_timesteps
            listed = [
                ", ".join(f"{score_at(curve, steps):.1f}" for curve in side.values())
                for side in (curves, peers)
            ]
            lines.append(f"| {name} | {steps:,.0f} | {listed[0]} | {listed[1]} |")
        plot(name, curves, peers)
        pictures.append(f"![{name}](curves/{name}.png)")
    versions = {case["version"] for case in theirs.values()}
    lines += ["", f"stable-baselines3 {', '.join(sorted(versions))}.", "", *pictures, ""]
    write_text(RESULTS / "pixels.md", "\n".join(lines))


def score_at(curve: list[list[float]], steps: float) -> float:
    """Return the last score noted up to so many steps, or a rollout later."""
    return [score for step, score in curve if step <= 1.02 * steps][-1]


def plot(name: str, ours: dict[int, list[list[float]]], peers: dict[str, list[list[float]]]) -> None:
    """Draw the curves: one colour for each side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3), dpi=80)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for label, colour, curves in (("ours", "C0", ours), ("stable-baselines3", "C1", peers)):
        for number, curve in enumerate(curves.values()):
            axes.plot(*zip(*curve, strict=True), color=colour, label=None if number else label)
    axes.set(xlabel="environment steps", ylabel="score of the last 100 games", title=name)
    axes.legend(fontsize=7)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    (RESULTS / "curves").mkdir(parents=True, exist_ok=True)
    figure.savefig(RESULTS / "curves" / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
