"""Threads: `make bench-threads`, or `python benchmarks/threads.py`. Writes `results/threads.md`.

Every network trains with one thread, with two and with `num_threads: auto`, in fresh processes that take turns: on idle
cores, and beside a process that keeps one core busy. The ratio to one thread is taken within each round. Run it on a
machine with two cores that does nothing else.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from summary import Figure, figure

ROOT = Path(__file__).resolve().parents[1]
CHEETAH = {"env_id": "HalfCheetah-v5", "num_envs": 1, "learning_starts": 100, "buffer_size": 20_000}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "SAC, 256 wide": ("sac", CHEETAH),
    "SAC, 1024 wide": ("sac", CHEETAH | {"hidden_sizes": (1024, 1024)}),
    "TD3, 400 and 300 wide": ("td3", CHEETAH),
    "DQN, CartPole": ("dqn/cartpole", {"learning_starts": 1000}),
    "PPO, CartPole": ("ppo/cartpole", {}),
    "PPO, Breakout": ("ppo/breakout_atari", {}),
}
SETTINGS = ("1", "2", "auto")
IDLE, BUSY = "idle cores", "one core busy"
WARM_UP, MEASURED = 2.0, 3.5
"""Seconds of training before the measurement, and its least length: whole iterations are measured."""
MOST = 60.0
"""Seconds after which a measurement ends, with at least one iteration."""


def measure(case: str, threads: str) -> float:
    """Return the steps per second of one training, without its first seconds."""
    from rl_training.algorithms import ALGORITHMS
    from rl_training.runtime.callbacks import Callback, StopTraining

    class Stopwatch(Callback):
        def __init__(self) -> None:
            self.begun = self.first = None
            self.rate = 0.0

        def on_update(self, progress: Any, result: Any) -> None:
            now = time.perf_counter()
            self.begun = self.begun or now
            if self.first is None:
                if now - self.begun >= WARM_UP:
                    self.first = (progress.timesteps, now)
                return
            steps, started = self.first
            if progress.timesteps > steps:
                self.rate = (progress.timesteps - steps) / (now - started)
            if self.rate and now - started >= MEASURED:
                raise StopTraining("measured")

    source, settings = CASES[case]
    model_class = ALGORITHMS[source.partition("/")[0]]
    quiet = {"log_every_timesteps": 10**9, "eval_every_timesteps": 0, "checkpoint_every_timesteps": 0}
    quiet |= {
        "num_eval_episodes": 1,
        "max_eval_episode_steps": 10,
        "total_timesteps": 10**7,
        "max_time": MOST,
    }
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        given = settings | quiet | {"output_dir": folder, "num_threads": threads}
        make = model_class.from_preset if "/" in source else model_class
        first = (source,) if "/" in source else ()
        make(*first, seed=1, **given).learn(progress=False, callbacks=[watch])
    return watch.rate


@contextmanager
def neighbour(condition: str) -> Any:
    """Keep one core busy for a while, or none."""
    if condition == IDLE:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def rounds_of(case: str, condition: str, rounds: int) -> list[dict[str, float]]:
    """Return the steps per second of every setting in every round; the order changes from round to round."""
    kept = []
    for number in range(rounds):
        order = [*SETTINGS[number % 3 :], *SETTINGS[: number % 3]]
        found = {}
        for threads in order:
            child = [sys.executable, __file__, "--child", case, threads]
            with neighbour(condition):
                done = subprocess.run(child, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{case}, {threads}: failed\n{done.stderr[-3000:]}")
            found[threads] = json.loads(done.stdout.splitlines()[-1])
        kept.append(found)
        told = ", ".join(f"{threads}: {found[threads]:,.0f}" for threads in SETTINGS)
        print(f"{case}, {condition}, round {number + 1}: {told} steps/s", flush=True)
    return kept


def line(case: str, condition: str, kept: list[dict[str, float]]) -> str:
    """Return a row of the table: speeds, and ratios to one thread."""
    speeds = [figure(found[threads] for found in kept).median for threads in SETTINGS]
    ratios: list[Figure] = [figure(found[threads] / found["1"] for found in kept) for threads in SETTINGS[1:]]
    cells = [f"{speed:,.0f}" for speed in speeds] + [each.text(".2f") for each in ratios]
    return f"| {' | '.join([case, condition, *cells])} |"


def main() -> None:
    """Measure all cases and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=2, metavar=("CASE", "THREADS"), help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.child:
        warnings.filterwarnings("ignore")
        print(json.dumps(measure(*flags.child)))
        return
    from rl_training.experiment.logs.metadata import machine

    lines = [
        line(case, condition, rounds_of(case, condition, flags.rounds))
        for condition in (IDLE, BUSY)
        for case in CASES
    ]
    head = "| training | machine | 1 thread | 2 threads | auto | 2 threads / 1 | auto / 1 |"
    text = (
        "# Threads\n\nSteps per second of training with `num_threads` 1, 2 and auto: medians of "
        f"{flags.rounds} rounds on two cores of {machine()['processor']}, and the ratio to one thread within a round "
        "(least to greatest). The settings take turns. A busy core is a process that counts. Renewed by "
        "`make bench-threads`.\n\n"
    )
    table = [head, "|---" * 7 + "|", *lines]
    (ROOT / "results" / "threads.md").write_text(text + "\n".join(table) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
