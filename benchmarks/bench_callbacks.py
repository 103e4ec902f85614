"""What listening costs: a step without listeners, with `on_step` and with `info_keywords`. Part of `make bench-ours`.

Writes `results/callbacks.md`. Eight CartPoles are stepped by PPO with one thread. Each figure is the median of several
rounds; the variants take turns within a round, as a machine's speed drifts.
"""

import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import gymnasium

from rl_training import PPO
from rl_training.experiment.files import write_text
from rl_training.experiment.logs.metadata import machine
from rl_training.runtime.callbacks import Callback

ROOT = Path(__file__).resolve().parents[1]
ENVS, STEPS, ROUNDS, PHASES = 8, 2000, 7, 4


class Fuel(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Reports a number in every step."""

    def step(self, action: Any) -> Any:
        """Step, and report."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, info | {"fuel": 1.0}


class Clock(Callback):
    """Times phases of collecting: from the last update to the end of the next collect."""

    def __init__(self) -> None:
        self.updated: float | None = None
        self.seconds: list[float] = []

    def on_collect(self, progress: Any) -> None:
        """Keep the time of this phase."""
        if self.updated is not None:
            self.seconds.append(time.perf_counter() - self.updated)

    def on_update(self, progress: Any, result: Any) -> None:
        """Start the clock."""
        self.updated = time.perf_counter()


class Listener(Callback):
    """Listens, and does nothing."""

    def on_step(self, step: Any) -> None:
        """Do nothing."""


def make_env(**_: Any) -> Any:
    """Return a CartPole that reports its fuel."""
    return Fuel(gymnasium.make("CartPole-v1"))


def step_time(callbacks: list[Callback], **settings: Any) -> float:
    """Return the microseconds of one step of all environments."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        model = PPO(
            make_env, num_envs=ENVS, num_steps=STEPS, batch_size=STEPS * ENVS, update_epochs=1, output_dir=folder,
            eval_every_timesteps=0, checkpoint_every_timesteps=0, num_eval_episodes=1, max_eval_episode_steps=10,
            log_every_timesteps=10**9, seed=1, **settings,
        )  # fmt: skip
        model.learn(STEPS * ENVS * (PHASES + 1), progress=False, callbacks=[clock, *callbacks])
    return statistics.median(clock.seconds) / STEPS * 1e6


def main() -> None:
    """Measure in turns and write the table."""
    warnings.filterwarnings("ignore")
    variants: dict[str, Any] = {
        "nobody listens": lambda: step_time([]),
        "`on_step`": lambda: step_time([Listener()]),
        "`info_keywords: [fuel]`": lambda: step_time([], info_keywords=["fuel"]),
    }
    found: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(ROUNDS):
        for name, run in variants.items():
            found[name].append(run())
    middle = {name: statistics.median(times) for name, times in found.items()}
    alone = middle["nobody listens"]
    rows = [f"| {name} | {each:.0f} | {each - alone:+.0f} |" for name, each in middle.items()]
    text = (
        f"# What listening costs\n\nMicroseconds of one step of {ENVS} CartPoles while PPO collects: medians of "
        f"{ROUNDS} rounds on {machine()['processor']}. Renewed by `make bench-ours`.\n\n"
    )
    table = ["| | µs per step | more |", "|---|---|---|", *rows]
    write_text(ROOT / "results" / "callbacks.md", text + "\n".join(table) + "\n")


if __name__ == "__main__":
    main()
