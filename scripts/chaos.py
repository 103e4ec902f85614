"""Kills training runs with SIGKILL again and again, resumes them, and compares with runs that were left alone.

`make chaos` writes `results/chaos.md`. The promise under test: the final checkpoint, the replay data and the metric
files (wall-clock columns apart) of a killed and resumed run are byte for byte those of an uninterrupted one. A part of
the kills is aimed at the moment a checkpoint is being written.
"""

import csv
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from rl_training.experiment.checkpointing import pointed
from rl_training.experiment.files import write_text
from rl_training.experiment.logging import WALL_CLOCK

ROOT = Path(__file__).resolve().parents[1]
PPO = ("ppo", "--num-steps", "64", "--batch-size", "128", "--num-envs", "4", "--update-epochs", "8")
A2C = ("a2c", "--num-envs", "4")
REPLAY = (
    "--buffer-size",
    "3000",
    "--learning-starts",
    "300",
    "--batch-size",
    "64",
    "--hidden-sizes",
    "64",
    "64",
)
DQN = ("dqn", *REPLAY, "--num-envs", "3", "--train-freq", "3", "--target-update-every-timesteps", "250")
RAINBOW = ("--double", "--dueling", "--noisy", "--prioritized", "--n-step", "3", "--distribution", "c51")
SAC = ("sac", *REPLAY, "--num-envs", "2", "--train-freq", "2", "--n-step", "2")
TD3 = ("td3", *REPLAY, "--num-envs", "2", "--train-freq", "2", "--action-noise", "ornstein_uhlenbeck")
NORMALISED = ("--normalize-obs", "--normalize-reward")


@dataclass(frozen=True)
class Scenario:
    """A run that is killed several times."""

    name: str
    flags: tuple[str, ...]
    timesteps: int = 24_000
    checkpoint_every: int = 1_500

    @property
    def cadence(self) -> tuple[str, ...]:
        """How often it saves, evaluates and logs."""
        numbers = {
            "checkpoint": self.checkpoint_every,
            "eval": 4 * self.checkpoint_every,
            "log": self.checkpoint_every // 2 - 50,
        }
        flags = [(f"--{name}-every-timesteps", str(number)) for name, number in numbers.items()]
        return tuple(word for flag in flags for word in flag)


SCENARIOS = (
    Scenario(
        "sync, time limit", (*PPO, "--env-id", "CartPole-v1", "--env-kwargs", "{max_episode_steps: 60}")
    ),
    Scenario("async, time limit", (*PPO, "--env-id", "CartPole-v1", "--env-backend", "async")),
    Scenario("sync, stochastic", (*PPO, "--env-id", "FrozenLake-v1", "--normalize-reward")),
    Scenario("sync, MuJoCo", (*PPO, "--env-id", "Hopper-v5", *NORMALISED)),
    Scenario(
        "async, MuJoCo", (*PPO, "--env-id", "InvertedPendulum-v5", "--env-backend", "async", *NORMALISED)
    ),
    Scenario("sync, nested Dict", (*PPO, "--env-id", "chaos_envs:LongNestedDict-v0", *NORMALISED)),
    Scenario(
        "async, nested Dict", (*PPO, "--env-id", "chaos_envs:LongNestedDict-v0", "--env-backend", "async")
    ),
    Scenario(
        "sync, time limit",
        (*A2C, "--env-id", "CartPole-v1", "--env-kwargs", "{max_episode_steps: 60}", *NORMALISED),
        timesteps=160_000,
        checkpoint_every=10_000,
    ),
    Scenario(
        "all of Rainbow", (*DQN, *RAINBOW, "--env-id", "CartPole-v1"), timesteps=8_000, checkpoint_every=500
    ),
    Scenario(
        "random actions, nested Dict, normalised",
        (*DQN, "--prioritized", "--env-id", "chaos_envs:LongNestedDict-v0", *NORMALISED),
        timesteps=12_000,
        checkpoint_every=700,
    ),
    Scenario("2-step", (*SAC, "--env-id", "Pendulum-v1"), timesteps=6_000, checkpoint_every=400),
    Scenario(
        "async, correlated noise",
        (*TD3, "--env-id", "Pendulum-v1", "--env-backend", "async"),
        timesteps=9_000,
        checkpoint_every=600,
    ),
)


@dataclass
class Trial:
    """What happened to one killed run."""

    scenario: Scenario
    kills: list[str] = field(default_factory=list)
    before_first: int = 0
    differences: list[str] = field(default_factory=list)


@dataclass
class Args:
    """How much chaos."""

    kills: int = 120
    """Kills in all, spread over the scenarios."""
    seed: int = 0
    """Seed of the kill times."""
    scenarios: Annotated[tuple[int, ...], tyro.conf.arg(help="Which scenarios, by number; none is all.")] = ()
    """Which scenarios, by number; none is all."""


def main(args: Args) -> int:
    """Run the chaos, print and write what came of it."""
    chosen = [SCENARIOS[i] for i in args.scenarios] or list(SCENARIOS)
    rng = random.Random(args.seed)
    shares = [args.kills // len(chosen) + (i < args.kills % len(chosen)) for i in range(len(chosen))]
    jobs = [(scenario, share, rng.random()) for scenario, share in zip(chosen, shares, strict=True)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max_workers=2) as pool:
        trials = list(pool.map(lambda job: torture(*job, Path(folder)), jobs))
    text = report(trials)
    print(text)
    if not args.scenarios:
        write_text(ROOT / "results" / "chaos.md", text)
    return 1 if any(trial.differences for trial in trials) else 0


def torture(scenario: Scenario, kills: int, seed: float, folder: Path) -> Trial:
    """Kill one scenario's run `kills` times in all, starting over when it finishes early; compare each finished run."""
    trial, rng = Trial(scenario), random.Random(seed)
    home = folder / f"{scenario.flags[0]} {scenario.name}"
    reference = finish(start(scenario, home / "reference"))
    attempt = 0
    while len(trial.kills) < kills:
        attempt += 1
        output = home / str(attempt)
        process = start(scenario, output)
        while len(trial.kills) < kills and kill(process, output, rng, trial):
            process = resume(run_of(output))
        run_dir = finish(process)
        trial.differences += compare(reference, run_dir)
        done = len(trial.kills)
        print(
            f"{home.name}: {done} kills, {len(trial.differences)} differences",
            file=sys.stderr,
            flush=True,
        )
    return trial


def start(scenario: Scenario, output: Path) -> subprocess.Popen[str]:
    """Start a run in a process of its own."""
    flags = [*scenario.flags, *scenario.cadence, "--total-timesteps", str(scenario.timesteps), "--seed", "3"]
    return launch(["train", *flags, "--output-dir", str(output), "--quiet"])


def resume(run_dir: Path) -> subprocess.Popen[str]:
    """Resume a run in a process of its own."""
    return launch(["resume", str(run_dir), "--quiet"])


def launch(arguments: list[str]) -> subprocess.Popen[str]:
    """Start the command line in a process group of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
    command = [sys.executable, "-m", "rl_training.cli", *arguments]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment,
    )


def finish(process: subprocess.Popen[str]) -> Path:
    """Wait for the end of a run and return its folder."""
    output, errors = process.communicate(timeout=300)
    if process.returncode != 0:
        raise RuntimeError(f"a run ended with {process.returncode}: {errors}")
    return Path(output.strip().splitlines()[-1])


def kill(process: subprocess.Popen[str], output: Path, rng: random.Random, trial: Trial) -> bool:
    """Kill the process at a random moment, a third of the time while it writes a checkpoint; False if it was done."""
    kind = rng.choices(["early", "writing", "any"], [0.1, 0.35, 0.55])[0]
    before = None if kind == "early" else progress(output)
    if not wait_for_progress(process, output, before, own=kind != "early"):
        return False
    if kind == "writing":
        wait_for_write(process, output)
    else:
        time.sleep(rng.uniform(0.0, 1.2 if kind == "any" else 0.2))
    if process.poll() is not None:
        return False
    process.send_signal(signal.SIGKILL)
    process.communicate()
    if process.returncode != -signal.SIGKILL:
        return False
    trial.kills.append(where(output))
    trial.before_first += pointed(run_of(output) / "checkpoints", "last") in (None, "step_0")
    return True


def progress(output: Path) -> str | None:
    """Return the name of the newest checkpoint, if the run exists."""
    runs = list(output.glob("*__*"))
    return pointed(runs[0] / "checkpoints", "last") if runs else None


def wait_for_progress(process: subprocess.Popen[str], output: Path, before: str | None, *, own: bool) -> bool:
    """Wait until there is a checkpoint, with `own` one that this process wrote, so that a chain of kills gets on."""
    while process.poll() is None:
        now = progress(output)
        if now is not None and (not own or now not in (before, "step_0")):
            return True
        time.sleep(0.002)
    return False


def wait_for_write(process: subprocess.Popen[str], output: Path) -> None:
    """Wait until a temporary checkpoint folder is there."""
    checkpoints = run_of(output) / "checkpoints"
    while process.poll() is None:
        if any(name.endswith(".tmp") for name in os.listdir(checkpoints)):
            return


def where(output: Path) -> str:
    """Tell from what was left behind what the process was doing."""
    checkpoints = run_of(output) / "checkpoints"
    leftovers = [name for name in os.listdir(checkpoints) if name.endswith((".tmp", ".old"))]
    if any((checkpoints / "replay").glob("*.tmp")):
        return "writing replay data"
    if any(name.startswith(".step_") for name in leftovers):
        return "writing a checkpoint"
    if leftovers:
        return "moving last or best"
    newest = max((int(p.name.removeprefix("step_")) for p in checkpoints.glob("step_*")), default=0)
    if pointed(checkpoints, "last") != f"step_{newest}":
        return "between checkpoint and pointer"
    return "training"


def run_of(output: Path) -> Path:
    """Return the one run in a folder."""
    (run_dir,) = output.glob("*__*")
    return run_dir


def compare(reference: Path, run_dir: Path) -> list[str]:
    """Return what differs between two finished runs."""
    found = []
    final = pointed(reference / "checkpoints", "last")
    saved = [hashes(folder / "checkpoints", str(final)) for folder in (reference, run_dir)]
    for name in sorted(saved[0].keys() | saved[1].keys()):
        if saved[0].get(name) != saved[1].get(name):
            found.append(f"{run_dir.name}: {name}")
    for name in ("last", "best"):
        if pointed(reference / "checkpoints", name) != pointed(run_dir / "checkpoints", name):
            found.append(f"{run_dir.name}: {name}")
    for name, read in (
        ("metrics.csv", csv_rows),
        ("metrics.jsonl", json_rows),
        ("evaluations.jsonl", json_rows),
    ):
        if read(reference / name) != read(run_dir / name):
            found.append(f"{run_dir.name}: {name}")
    return found


def hashes(checkpoints: Path, name: str) -> dict[str, str]:
    """Return the hash of every tensor file of a checkpoint, and of all replay data."""
    files = [*(checkpoints / name).glob("*.safetensors"), *(checkpoints / "replay").glob("*")]
    return {
        path.relative_to(checkpoints).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def csv_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows without wall-clock columns."""
    with path.open(newline="") as file:
        return [{k: v for k, v in row.items() if k not in WALL_CLOCK} for row in csv.DictReader(file)]


def json_rows(path: Path) -> list[dict[str, object]]:
    """Return the rows without wall-clock columns."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in WALL_CLOCK} for row in rows]


def report(trials: list[Trial]) -> str:
    """Return the Markdown report."""
    kills = [kill for trial in trials for kill in trial.kills]
    places = Counter(kills)
    before = sum(trial.before_first for trial in trials)
    differences = [difference for trial in trials for difference in trial.differences]
    lines = [
        "# Chaos",
        "",
        "Made by `make chaos`: runs are killed with SIGKILL and resumed until they finish; everything in "
        "their final checkpoint (model, critics, targets, optimizer, random states, priorities, waiting n-step "
        "windows, noise), all replay data, the checkpoint pointers and all metric files (wall-clock columns apart) are "
        "compared with an uninterrupted run.",
        "",
        "| runs | kills | after the first checkpoint | while a checkpoint was written | differences |",
        "|---|---|---|---|---|",
    ]
    for trial in trials:
        writing = sum(kill != "training" for kill in trial.kills)
        after = len(trial.kills) - trial.before_first
        name = f"{trial.scenario.flags[0].upper()}, {trial.scenario.name}"
        lines.append(f"| {name} | {len(trial.kills)} | {after} | {writing} | {len(trial.differences)} |")
    writing = len(kills) - places["training"]
    lines.append(
        f"| **all** | **{len(kills)}** | **{len(kills) - before}** | **{writing}** | **{len(differences)}** |"
    )
    lines += [
        "",
        "Where the kills hit: " + ", ".join(f"{name} {n}" for name, n in places.most_common()) + ".",
        "",
    ]
    lines += [f"- {difference}" for difference in differences]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args, description=__doc__)))
