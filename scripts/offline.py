"""Trains the offline algorithms on the datasets of `make datasets`, and compares them with cloning and the behaviour.

`make offline` trains what is missing, as many runs at a time as there are cores with one thread each, and writes
`results/offline.md`. A finished run is kept at once; delete `results/offline.json` to start over. Names of tasks train
those only: `python scripts/offline.py pendulum-mixed --at-once 1`. Seeds 1 to 10 are for this page alone; settings are
those of the papers, or of the presets.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.datasets.opening import open_dataset
from rl_training.experiment.files import write_text
from rl_training.lab.statistics import draw, estimate, mean

ROOT = Path(__file__).resolve().parents[1]
DATA, TABLE = ROOT / "results" / "offline.json", ROOT / "results" / "offline.md"
FOLDER = ROOT / "datasets"
EPISODES = 20
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
NORMALISED = ("--normalize-obs",)
"""As in the papers of TD3+BC and ReBRAC."""


@dataclass(frozen=True)
class Task:
    """A dataset, the algorithms that learn from it, and their settings as flags."""

    title: str
    updates: int
    sides: dict[str, tuple[str, ...]]
    num_seeds: int = 3

    @property
    def seeds(self) -> range:
        """The seeds, from 1 on."""
        return range(1, self.num_seeds + 1)


TASKS = {
    "halfcheetah-mixed": Task(
        "HalfCheetah-v5, mixed",
        30_000,
        {
            "bc": (),
            "td3_bc": NORMALISED,
            "iql": (),
            "awac": ("--batch-size", "256"),
            "rebrac": (*NORMALISED, "--batch-size", "256", "--hidden-sizes", "256", "256"),
            "cql": ("--num-sampled-actions", "4"),
        },
    ),
    "pendulum-medium": Task("Pendulum-v1, medium", 10_000, {"bc": (), "td3_bc": NORMALISED, "iql": ()}),
    "pendulum-mixed": Task("Pendulum-v1, mixed", 10_000, {"bc": (), "td3_bc": NORMALISED, "iql": ()}),
    "cartpole-mixed": Task("CartPole-v1, mixed", 10_000, {"bc": (), "cql": ()}, num_seeds=10),
    "cartpole-weak": Task("CartPole-v1, weak", 10_000, {"bc": (), "cql": ()}, num_seeds=5),
}


def key_of(dataset: str, algo: str, seed: int) -> str:
    """Return the name of a run in the data; other settings are another run."""
    task = TASKS[dataset]
    return " ".join([dataset, algo, str(seed), str(task.updates), *task.sides[algo]])


def jobs(names: list[str]) -> Iterator[tuple[str, str, int]]:
    """Yield dataset, algorithm and seed of every run, those that take longest last."""
    found = [(name, algo, seed) for name in names for seed in TASKS[name].seeds for algo in TASKS[name].sides]
    yield from sorted(found, key=lambda job: ((job[1] == "cql") * TASKS[job[0]].updates, job[2]))


def trained(dataset: str, algo: str, seed: int) -> dict[str, Any]:
    """Train once in a fresh process; return the returns of the last evaluation."""
    task = TASKS[dataset]
    command = [
        sys.executable, "-m", "rl_training.cli", "train", algo, "--dataset", str(FOLDER / dataset),
        "--total-updates", str(task.updates), "--seed", str(seed), "--held-out-fraction", "0",
        "--eval-every-timesteps", str(task.updates), "--num-eval-episodes", str(EPISODES),
        "--checkpoint-every-timesteps", "0", "--num-threads", "1",
        "--output-dir", str(ROOT / "runs" / "offline"), "--quiet", *task.sides[algo],
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | ONE_THREAD, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    run_dir = Path(done.stdout.strip().splitlines()[-1])
    last = json.loads((run_dir / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    return {
        "returns": last["returns"],
        "updates": last["updates"],
    }


def saved() -> dict[str, Any]:
    """Return the runs that are finished, by name."""
    return json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {}


def fill(names: list[str], at_once: int) -> None:
    """Train what is missing; save after every run."""
    there = saved()
    missing = [job for job in jobs(names) if key_of(*job) not in there]
    saving = threading.Lock()

    def one(job: tuple[str, str, int]) -> None:
        found = trained(*job)
        print(f"{' '.join(map(str, job))}: {float(np.mean(found['returns'])):.1f}", flush=True)
        with saving:  # read again: another process may train other tasks
            write_text(
                DATA, json.dumps(dict(sorted({**saved(), key_of(*job): found}.items())), indent=1) + "\n"
            )

    with ThreadPoolExecutor(at_once) as pool:
        for done in [pool.submit(one, job) for job in missing]:
            done.result()


def numbers(low: float | None, value: float, high: float | None) -> str:
    """Return a value with its interval."""
    return f"{value:,.1f}" if low is None or high is None else f"{value:,.1f} ({low:,.1f} to {high:,.1f})"


def complete(dataset: str, kept: dict[str, Any]) -> list[str]:
    """Return the algorithms whose runs are all there."""
    task = TASKS[dataset]
    return [algo for algo in task.sides if all(key_of(dataset, algo, seed) in kept for seed in task.seeds)]


def rows_of(dataset: str, kept: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a dataset's table."""
    behaviour = open_dataset(str(FOLDER / dataset)).returns()
    found = estimate(mean, [behaviour], draw([len(behaviour)]))
    yield f"| the behaviour | {numbers(found.low, found.value, found.high)} | | |"
    seeds = TASKS[dataset].seeds
    draws = draw([len(seeds)])
    cloned = np.array([np.mean(kept[key_of(dataset, "bc", seed)]["returns"]) for seed in seeds])
    for algo in complete(dataset, kept):
        scores = np.array([np.mean(kept[key_of(dataset, algo, seed)]["returns"]) for seed in seeds])
        own = estimate(mean, [scores], draws)
        apart = estimate(mean, [scores - cloned], draws)
        difference = "" if algo == "bc" else numbers(apart.low, apart.value, apart.high)
        by_seed = ", ".join(f"{score:,.1f}" for score in scores)
        yield f"| `{algo}` | {numbers(own.low, own.value, own.high)} | {by_seed} | {difference} |"


def page(kept: dict[str, Any]) -> str:
    """Return the page for the datasets whose runs are all there."""
    lines = [
        "# Learning from datasets",
        "",
        "Made by `make offline` from the [datasets](datasets.md) of `make datasets`. Mean return of the last policy "
        f"over {EPISODES} episodes, actions without noise, and seeds from 1 on; intervals are 95% bootstrap intervals "
        "over seeds (of the behaviour, over its episodes), and differences are paired by seed. Three seeds give wide "
        "intervals, and ones that are too narrow. Settings are the defaults, which follow the papers; "
        "observations are normalised where the papers do so, and minibatches and sampled actions are fewer where "
        "listed, to save time. No setting was chosen on these seeds.",
    ]
    for dataset, task in TASKS.items():
        if "bc" not in complete(dataset, kept):
            continue
        there = complete(dataset, kept)
        shown = [f"`{algo}`: `{' '.join(task.sides[algo])}`" for algo in there if task.sides[algo]]
        lines += [
            "",
            f"## {task.title}",
            "",
            f"{task.updates:,} updates, {task.num_seeds} seeds. {'; '.join(shown)}".rstrip(),
            "",
        ]
        if missing := [f"`{algo}`" for algo in task.sides if algo not in there]:
            lines += [f"Not measured with all seeds yet: {', '.join(missing)}.", ""]
        lines += ["| | return | by seed | minus `bc` |", "|---|---|---|---|"]
        lines += rows_of(dataset, kept)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"{', '.join(TASKS)}; all by default")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, help="runs at the same time")
    flags = parser.parse_args()
    if unknown := [name for name in flags.tasks if name not in TASKS]:
        parser.error(f"no task is called {', '.join(unknown)}: choose from {', '.join(TASKS)}")
    fill(flags.tasks or list(TASKS), flags.at_once)
    write_text(TABLE, page(saved()))


if __name__ == "__main__":
    main()
