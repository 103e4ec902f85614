"""Breakout from pixels beside stable-baselines3: `results/pixels.md` with the curves of both at the same steps.

Part of `make learn`. Ours are trained here, and kept in `results/pixels_ours.json` as long as their settings stay the
same; the peer's were trained once by `make pixels-peer`. Both play with the same wrappers, settings and seed. A point
of a curve is the mean raw score of the last 100 finished games of training, as both libraries log it.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig, load_config
from rl_training.experiment.files import write_json, write_text
from rl_training.experiment.logging import read_rows

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
OURS, PEER = RESULTS / "pixels_ours.json", RESULTS / "pixels_peer.json"
CASES: dict[str, tuple[str, dict[str, int]]] = {
    "ppo_breakout_start": ("configs/ppo/breakout_atari.yaml", {"total_timesteps": 200_000}),
    "dqn_breakout_start": (
        "configs/dqn/breakout_atari.yaml",
        {"total_timesteps": 100_000, "learning_starts": 10_000},
    ),
}
SHORT = {"eval_every_timesteps": 0, "log_every_timesteps": 10_000}
"""The curves are of training; one evaluation at the end is enough."""


def main(names: list[str]) -> None:
    """Train what is missing of ours, then write the page."""
    for name in names or list(CASES):
        ours = json.loads(OURS.read_text()) if OURS.exists() else {}
        key = f"{name}/{config_of(name).fingerprint()}"
        if key not in ours:
            curve = train(name)
            ours = json.loads(OURS.read_text()) if OURS.exists() else {}
            write_json(OURS, ours | {key: {"seed": 1, "curve": curve}})
    write_page()


def config_of(name: str) -> TrainConfig:
    """Return the preset with the short budget."""
    preset, changes = CASES[name]
    return load_config(ROOT / preset).with_overrides(**changes, **SHORT)


def train(name: str) -> list[list[float]]:
    """Train in a process of its own; return the mean score of the last 100 games by step."""
    preset, changes = CASES[name]
    command = [
        sys.executable,
        "-m",
        "rl_training.cli",
        "train",
        "--config",
        str(ROOT / preset),
        "--seed",
        "1",
    ]
    command += ["--output-dir", str(ROOT / "runs" / "pixels"), "--quiet"]
    for setting, value in {**changes, **SHORT}.items():
        command += [f"--{setting.replace('_', '-')}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name} failed: {done.stderr}")
    return curve_of(Path(done.stdout.strip().splitlines()[-1]))


def curve_of(run_dir: Path) -> list[list[float]]:
    """Return the scores that a run logged by step; there are none before its first game ended."""
    rows = read_rows(run_dir / "metrics.jsonl")
    steps, score = "time/total_timesteps", "rollout/ep_rew_mean"
    return [[row[steps], row[score]] for row in rows if row.get(score) is not None]


def write_page() -> None:
    """Write the table and the pictures of all cases that both sides have."""
    ours = json.loads(OURS.read_text()) if OURS.exists() else {}
    theirs = json.loads(PEER.read_text()) if PEER.exists() else {}
    lines = [
        "# Breakout from pixels, beside stable-baselines3",
        "",
        "Made by `make learn`; the peer's curves by `make pixels-peer`, once. BreakoutNoFrameskip-v4, 84 x 84 x 4, the "
        "Nature CNN, same wrappers and settings, seed 1 each: one run is an anecdote, so this shows that ours is not "
        "behind, not that it is ahead. The score is the mean of the last 100 finished games of training, raw points.",
        "",
        "| | steps | ours | stable-baselines3 |",
        "|---|---|---|---|",
    ]
    pictures = []
    for name in CASES:
        key = f"{name}/{config_of(name).fingerprint()}"
        if key not in ours or name not in theirs:
            continue
        mine, peer = ours[key]["curve"], theirs[name]["curve"]
        for part in (0.5, 1.0):
            steps = part * config_of(name).total_timesteps
            lines.append(
                f"| {name} | {steps:,.0f} | {score_at(mine, steps):.1f} | {score_at(peer, steps):.1f} |"
            )
        plot(name, mine, peer)
        pictures.append(f"![{name}](curves/{name}.png)")
    versions = {case["version"] for case in theirs.values()}
    lines += ["", f"stable-baselines3 {', '.join(sorted(versions))}.", "", *pictures, ""]
    write_text(RESULTS / "pixels.md", "\n".join(lines))


def score_at(curve: list[list[float]], steps: float) -> float:
    """Return the last score noted up to so many steps, or a rollout later."""
    return [score for step, score in curve if step <= 1.02 * steps][-1]


def plot(name: str, ours: list[list[float]], theirs: list[list[float]]) -> None:
    """Draw both curves."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3), dpi=80)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    curves: dict[str, Any] = {"ours": ours, "stable-baselines3": theirs}
    for label, curve in curves.items():
        axes.plot(*zip(*curve, strict=True), label=label)
    axes.set(xlabel="environment steps", ylabel="score of the last 100 games", title=name)
    axes.legend(fontsize=7)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    (RESULTS / "curves").mkdir(parents=True, exist_ok=True)
    figure.savefig(RESULTS / "curves" / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
