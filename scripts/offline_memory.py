"""Measures a dataset on disk beside the same one in memory: memory of the process, and updates per second.

Each case is a process of its own, because memory that a process freed may stay with it. Writes a table.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from gymnasium import spaces

from rl_training.config import TrainConfig
from rl_training.datasets.builder import num_bytes
from rl_training.datasets.minari_writing import write_minari
from rl_training.datasets.recording import Episode, Recording
from rl_training.experiment import run_data
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import Callback

MB = 10**6
LIMIT = 32 * MB
STEPS, WIDTH = 1000, 256
BUSY = 0.5
"""Load, averaged over a minute, from which on a machine is not idle."""
SPACES = spaces.Box(-np.inf, np.inf, (WIDTH,)), spaces.Box(-1, 1, (6,))


def resident() -> int:
    """Return the resident bytes of this process, mapped files included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def made(episodes: int) -> Recording:
    """Return episodes of random numbers."""

    def recorded():
        for number in range(episodes):
            rng = np.random.default_rng(number)
            last = np.arange(STEPS) == STEPS - 1
            obs = rng.standard_normal((STEPS + 1, WIDTH), np.float32)
            actions = rng.uniform(-1, 1, (STEPS, 6))
            yield Episode({"": obs}, actions, rng.standard_normal(STEPS), ~last & last, last)

    return Recording("made", *SPACES, STEPS * episodes, episodes, recorded)


class Clock(Callback):
    """Notes when updates 100 and last happened."""

    def __init__(self) -> None:
        self.times: dict[int, float] = {}

    def on_update(self, progress, result) -> None:
        self.times[progress.updates] = time.perf_counter()


class Watch(threading.Thread):
    """Notes the largest resident memory, every few milliseconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.over = 0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.005):
            self.most = max(self.most, resident())


def case(folder: str, algo: str, limit: int | None, updates: int) -> dict[str, float]:
    """Train and return what was measured; growth counts from before the dataset is opened."""
    clock, watch = Clock(), Watch()
    with tempfile.TemporaryDirectory() as output:
        config = TrainConfig(
            algo=algo, dataset=folder, total_updates=updates, max_dataset_memory=limit, output_dir=output,
            held_out_fraction=0.0,
        )  # fmt: skip
        open_named, before = run_data.open_named, 0

        def opening(*given):
            nonlocal before
            before = resident()
            watch.start()
            return open_named(*given)

        run_data.open_named = opening
        train(config, callbacks=[clock])
    watch.over.set()
    watch.join()
    rate = (updates - 100) / (clock.times[updates] - clock.times[100])
    return {"growth": watch.most - before, "rate": rate}


def remark(load: float) -> list[str]:
    """Return what to say about a machine whose load was this before the measurement; nothing if it was idle."""
    if load < BUSY:
        return []
    cores = os.cpu_count() or 1
    return [
        "",
        f"Measured while the machine had other work (load {load:.1f} on {cores} cores): memory is exact, updates per "
        "second are only rough.",
    ]


def main() -> None:
    """Measure all cases, or one of them, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("results/offline_memory.md"))
    parser.add_argument("--episodes", type=int, default=150)
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--case", nargs=3, metavar=("FOLDER", "ALGO", "LIMIT"))
    flags = parser.parse_args()
    if flags.case:
        folder, algo, limit = flags.case
        print(json.dumps(case(folder, algo, int(limit) or None, flags.updates)))
        return
    rows, load = [], os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        write_minari(made(flags.episodes), Path(folder) / "data")
        for algo in ("bc", "td3"):
            for limit in (0, LIMIT):
                words = ["--case", f"{folder}/data", algo, str(limit), "--updates", str(flags.updates)]
                told = subprocess.run(
                    [sys.executable, __file__, *words], capture_output=True, text=True, check=True
                ).stdout
                found = json.loads(told.splitlines()[-1])
                where = f"at most {limit / MB:.0f} MB in memory" if limit else "in memory"
                rows.append(f"| {algo} | {where} | {found['growth'] / MB:.0f} MB | {found['rate']:.0f} |")
    size = num_bytes(*SPACES, STEPS * flags.episodes, flags.episodes)
    text = [
        "# A dataset larger than its memory",
        "",
        f"`make offline-memory`: {flags.episodes * STEPS:,} steps of {WIDTH} numbers, {size / MB:.0f} MB, "
        f"{size / LIMIT:.1f} times `max_dataset_memory` where it is set; {flags.updates:,} updates on batches of 256. "
        "Growth is the largest resident memory of the process since before the dataset was opened, reading and "
        "learning included. The file itself is in the system's cache here.",
        "",
        "| algorithm | dataset | growth of the process | updates per second |",
        "|---|---|---:|---:|",
        *rows,
        *remark(load),
    ]
    flags.output.write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
