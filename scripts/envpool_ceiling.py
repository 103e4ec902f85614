"""Measures the raw speed of environments behind each backend, without a policy; writes results/envpool.md.

python scripts/envpool_ceiling.py

Backends take turns, so that what else the machine does reaches all of them. Random actions are drawn before the clock
starts. The table has the median over the rounds, and the range.
"""

import statistics
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from rl_training.config import TrainConfig
from rl_training.core.cpu import usable_cores
from rl_training.envs.stepper_factory import training_stepper
from rl_training.experiment.files import write_text

ROOT = Path(__file__).resolve().parents[1]
NUM_ENVS = 8


@dataclass(frozen=True)
class Task:
    """An environment, its backends, and how long to step it."""

    title: str
    settings: dict[str, Any]
    backends: tuple[str, ...]
    num_steps: int


TASKS = (
    Task(
        "Breakout",
        {"env_id": "ALE/Breakout-v5", "preprocessing": "atari"},
        ("sync", "async", "native", "envpool"),
        400,
    ),
    Task("HalfCheetah", {"env_id": "HalfCheetah-v5"}, ("sync", "async", "envpool"), 2_000),
    Task("CartPole", {"env_id": "CartPole-v1"}, ("sync", "async", "native", "envpool"), 5_000),
)


def steps_per_second(task: Task, backend: str) -> float:
    """Return environment steps per second of all environments together."""
    config = TrainConfig(algo="ppo", num_envs=NUM_ENVS, env_backend=backend, **task.settings)  # type: ignore[arg-type]
    stepper = training_stepper(config, None)
    try:
        space: Any = stepper.spec.action_space
        space.seed(0)
        actions = np.stack([[space.sample() for _ in range(NUM_ENVS)] for _ in range(task.num_steps)])
        stepper.reset()
        for action in actions[:20]:
            stepper.step(action)
        began = time.perf_counter()
        for action in actions:
            stepper.step(action)
        return NUM_ENVS * task.num_steps / (time.perf_counter() - began)
    finally:
        stepper.close()


def page(found: dict[tuple[str, str], list[float]], rounds: int) -> str:
    """Return the page."""
    lines = [
        "# EnvPool and the other backends",
        "",
        f"`python scripts/envpool_ceiling.py`: steps per second of {NUM_ENVS} environments on {usable_cores()} cores "
        "with random actions and without a policy, through the stepper that training uses; the median of "
        f"{rounds} rounds in turns (lowest to highest). EnvPool {version('envpool')}, ale-py {version('ale-py')}, "
        f"Gymnasium {version('gymnasium')}.",
        "",
        "| environment | backend | steps per second | range | times sync |",
        "|---|---|---:|---:|---:|",
    ]
    for (title, backend), speeds in found.items():
        middle = statistics.median(speeds)
        ratio = middle / statistics.median(found[title, "sync"])
        lines.append(
            f"| {title} | `{backend}` | {middle:,.0f} | {min(speeds):,.0f} to {max(speeds):,.0f} | {ratio:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main(rounds: int = 5, output: Path = ROOT / "results" / "envpool.md", remark: str = "") -> int:
    """Measure and write the page, with a remark at its end."""
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for task in TASKS:
            for backend in task.backends:
                found.setdefault((task.title, backend), []).append(steps_per_second(task, backend))
    text = page(found, rounds)
    write_text(output, f"{text}\n{remark}\n" if remark else text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
