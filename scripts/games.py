"""Trains agents in board games by self-play, and plays them against others: `make games` writes `results/games.md`.

Every run is a process with one thread; what is done is kept in `results/games.json`, so an interrupted call goes on.
Settings are those of the presets, which were chosen on seed 101; the seeds here are for this page alone.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from rl_training.config import load_config
from rl_training.experiment.files import write_text

ROOT = Path(__file__).resolve().parents[1]
DATA, TABLE = ROOT / "results" / "games.json", ROOT / "results" / "games.md"
SEEDS = (1, 2, 3)
GAMES = 400
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
HALF = "the agent of half the budget"


@dataclass(frozen=True)
class Task:
    """A preset, and the players that its agents meet: by name, the flags of `eval`."""

    preset: str
    against: dict[str, tuple[str, ...]]


TASKS = (
    Task(
        "ppo/connect_four",
        {"random": ("--against", "random"), HALF: ("--random-openings", "2")},
    ),
    Task(
        "ppo/tictactoe",
        {
            "random": ("--against", "random"),
            "a perfect player": ("--against", "scripts.best_play:tic_tac_toe"),
        },
    ),
)


@dataclass(frozen=True)
class Flags:
    """Train what is missing, and write the page."""

    seeds: tuple[int, ...] = SEEDS


def command(*words: str) -> str:
    """Run a command of the package; return what it prints."""
    environment = (
        os.environ
        | ONE_THREAD
        | {"PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    )
    done = subprocess.run(
        [sys.executable, "-m", "rl_training.cli", *words],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=ROOT,
    )
    if done.returncode:
        raise SystemExit(f"rl-training {' '.join(words)}\n{done.stderr}")
    return done.stdout


def trained(task: Task, seed: int) -> dict[str, Any]:
    """Train one agent, and let it play."""
    budget = load_config(ROOT / "configs" / f"{task.preset}.yaml").total_timesteps
    started = time.monotonic()
    run = command(
        "train", "--config", task.preset, "--seed", str(seed), "--checkpoint-every-timesteps", str(budget // 2),
        "--num-threads", "1", "--output-dir", str(ROOT / "runs" / "games"), "--quiet",
    ).strip().splitlines()[-1]  # fmt: skip
    found: dict[str, Any] = {"seconds": time.monotonic() - started, "steps": budget}
    steps = sorted(int(path.name.removeprefix("step_")) for path in Path(run, "checkpoints").glob("step_*"))
    half = min(steps, key=lambda step: abs(step - budget // 2))
    for name, flags in task.against.items():
        other = ("--against", f"{run}/checkpoints/step_{half}") if name == HALF else ()
        said = command("eval", run, "--games", str(GAMES), "--seats", "all", "--json", *other, *flags)
        found[name] = json.loads(said)
    return found


def line(task: Task, name: str, runs: dict[int, dict[str, Any]]) -> str:
    """Return a row of the table."""
    counts = [runs[seed][name] for seed in runs]
    won, drawn, lost = (sum(each[key] for each in counts) for key in ("wins", "draws", "losses"))
    played = won + drawn + lost
    scores = ", ".join(f"{each['score']:.1%}" for each in counts)
    rates = f"{won / played:.1%} | {lost / played:.1%}"
    return f"| `{task.preset}` | {name} | {won} | {drawn} | {lost} | {rates} | {scores} |"


def page(kept: dict[str, Any]) -> str:
    """Return the page."""
    lines = [
        "# Board games",
        "",
        f"Made by `make games`: agents of the presets, by self-play, seeds {SEEDS[0]} to {SEEDS[-1]}, the last policy, "
        f"without sampling. {GAMES} games for each seed, half of them from each seat. Games against the agent of "
        "half the budget begin with two random moves, because two agents that never sample would play a single "
        "game from each seat. A score is a win, or half a draw.",
        "",
        "| preset | against | won | drawn | lost | won of all | lost of all | score by seed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    times = []
    for task in TASKS:
        runs = {seed: kept[f"{task.preset} {seed}"] for seed in SEEDS if f"{task.preset} {seed}" in kept}
        if not runs:
            continue
        lines += [line(task, name, runs) for name in task.against]
        seconds = [each["seconds"] for each in runs.values()]
        steps = next(iter(runs.values()))["steps"]
        span = f"{min(seconds):.0f} to {max(seconds):.0f} s"
        times.append(f"`{task.preset}`: {steps:,} actions in {span} on one core, evaluations included")
    return "\n".join([*lines, "", "; ".join(times) + "."]) + "\n"


def main(flags: Flags) -> None:
    """Train, play, and write the page."""
    kept: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {}
    for seed in flags.seeds:
        for task in TASKS:
            key = f"{task.preset} {seed}"
            if key not in kept:
                kept[key] = trained(task, seed)
                write_text(DATA, json.dumps(dict(sorted(kept.items())), indent=1) + "\n")
                print(key, {name: kept[key][name]["score"] for name in task.against}, flush=True)
    write_text(TABLE, page(kept))


if __name__ == "__main__":
    main(tyro.cli(Flags, description=__doc__))
