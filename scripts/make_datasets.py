"""Makes small datasets of known quality: trains agents, records episodes with them, and writes `results/datasets.md`.

`make datasets` writes to the folder `datasets`. Interrupted, it goes on; what is complete is kept. All seeds are fixed.
"""

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

import rl_training
from rl_training.datasets.dataset import Dataset
from rl_training.datasets.opening import open_dataset
from rl_training.experiment.files import write_text

ROOT = Path(__file__).resolve().parents[1]
EVERY_CHECKPOINT = ("--keep-checkpoints", "30", "--num-threads", "1", "--seed", "1", "--quiet")
RUNS = {
    "pendulum": (
        *("sac", "--env-id", "Pendulum-v1", "--total-timesteps", "8000", "--num-envs", "1"),
        *("--learning-rate", "1e-3", "--learning-starts", "500"),
        *("--checkpoint-every-timesteps", "500", "--eval-every-timesteps", "1000", "--num-eval-episodes", "5"),
    ),
    "half_cheetah": (
        *("sac", "--env-id", "HalfCheetah-v5", "--total-timesteps", "30000", "--num-envs", "1"),
        *("--learning-starts", "2000"),
        *("--checkpoint-every-timesteps", "5000", "--eval-every-timesteps", "10000", "--num-eval-episodes", "2"),
    ),
    "cartpole": (
        *("ppo", "--config", "ppo/cartpole", "--total-timesteps", "30000"),
        *("--checkpoint-every-timesteps", "2000", "--eval-every-timesteps", "0"),
    ),
}  # fmt: skip
"""The agents, by the name of their folder: the flags of `rl-training train`."""


@dataclass(frozen=True)
class Recipe:
    """How a dataset is recorded."""

    run: str
    checkpoints: tuple[int, ...]
    """The timesteps after which the agents were saved; each checkpoint is the first one from there on."""
    num_episodes: int
    random_fraction: float
    about: str


RECIPES = {
    "pendulum-medium": Recipe("pendulum", (4_000,), 200, 0.0, "SAC after half of its training"),
    "pendulum-mixed": Recipe(
        "pendulum", (1_500, 8_000), 200, 1 / 3, "random actions, SAC early, SAC at the end"
    ),
    "halfcheetah-mixed": Recipe(
        "half_cheetah", (10_000, 20_000, 30_000), 80, 0.25, "random actions, SAC early, in the middle, at the end"
    ),
    "cartpole-mixed": Recipe(
        "cartpole", (4_000, 30_000), 300, 1 / 3, "random actions, PPO early, PPO at the end"
    ),
    "cartpole-weak": Recipe("cartpole", (2_000, 4_000), 300, 1 / 2, "random actions, PPO very early, PPO early"),
}  # fmt: skip
NUM_RANDOM = 100
"""Episodes of random actions, for the last column of the table."""


@dataclass
class Args:
    """Where to write."""

    to: Path = ROOT / "datasets"
    """Folder of the datasets; the agents are in its folder `runs`."""
    report: Path = ROOT / "results" / "datasets.md"
    """File of the table."""


def main(args: Args) -> int:
    """Make what is missing."""
    begun = time.monotonic()
    rows = []
    for name, recipe in RECIPES.items():
        checkpoints = trained(recipe.run, args.to / "runs" / recipe.run)
        agents = [checkpoint_from(checkpoints, timesteps) for timesteps in recipe.checkpoints]
        print(f"{name}: {', '.join(agent.name for agent in agents)}", flush=True)
        folder = rl_training.record(
            agents,
            args.to / name,
            num_episodes=recipe.num_episodes,
            random_fraction=recipe.random_fraction,
        )
        at_random = rl_training.record(
            agents[-1], args.to / "random" / name, num_episodes=NUM_RANDOM, random_fraction=1.0, seed=1
        )
        rows.append(row(name, recipe, open_dataset(str(folder)), open_dataset(str(at_random))))
    write_text(args.report, report(rows))
    print(f"{args.report} after {time.monotonic() - begun:.0f} s")
    return 0


def trained(name: str, output: Path) -> Path:
    """Return the checkpoints of a run, which is trained, or resumed, if it is not finished."""
    runs = [path for path in sorted(output.glob("*__*")) if (path / "config.yaml").exists()]
    if not runs:
        command("train", *RUNS[name], *EVERY_CHECKPOINT, "--output-dir", str(output))
    elif rl_training.load_runs(runs[0])[0].status != "finished":
        command("resume", str(runs[0]), "--quiet")
    (run,) = [path for path in output.glob("*__*") if (path / "config.yaml").exists()]
    return run / "checkpoints"


def checkpoint_from(checkpoints: Path, timesteps: int) -> Path:
    """Return the first checkpoint after so many timesteps."""
    found = {int(path.name.removeprefix("step_")): path for path in checkpoints.glob("step_*")}
    return found[min(step for step in found if step >= timesteps)]


def command(*words: str) -> None:
    """Run `rl-training` in a process of its own."""
    print("rl-training", *words, flush=True)
    subprocess.run([sys.executable, "-m", "rl_training.cli", *words], check=True)


def interval(returns: np.ndarray) -> str:
    """Return a mean with its 95% bootstrap interval over episodes."""
    rng = np.random.default_rng(0)
    means = rng.choice(returns, (2_000, len(returns))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{returns.mean():.1f} ({low:.1f} to {high:.1f})"


def row(name: str, recipe: Recipe, made: Dataset, at_random: Dataset) -> str:
    """Return a line of the table."""
    cells = [
        f"`{name}`",
        made.recorded_in.env_id,
        recipe.about,
        f"{made.num_episodes:,}",
        f"{made.num_steps:,}",
        interval(made.returns()),
        interval(at_random.returns()),
    ]
    return f"| {' | '.join(cells)} |"


def report(rows: list[str]) -> str:
    """Return the page."""
    return "\n".join(
        [
            "# Datasets",
            "",
            "Made by `make datasets`: short training runs and episodes recorded with their checkpoints, all with fixed",
            "seeds. Actions are sampled. Returns are means over episodes with 95% bootstrap intervals; the last column",
            f"has {NUM_RANDOM} episodes of uniformly random actions.",
            "",
            "| dataset | environment | behaviour | episodes | steps | return of the behaviour | of random actions |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args, description=__doc__)))
