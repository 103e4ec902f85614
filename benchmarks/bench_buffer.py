"""Speed of the replay buffer from ten thousand to a million transitions: part of `make bench-ours`.

Writes `results/bench_buffer.md`. Transitions have HalfCheetah's sizes (17 observations, 6 actions). Each figure is the
median of several rounds; the sizes take turns within a round, as a machine's speed drifts.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.experiment.files import write_text
from rl_training.experiment.logs.metadata import machine, versions

ROOT = Path(__file__).resolve().parents[1]
SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
BATCH, ROUNDS, REPEATS = 256, 15, 100


def filled(capacity: int, *, prioritized: bool) -> ReplayBuffer:
    """Return a full buffer with random contents and priorities."""
    buffer = ReplayBuffer(
        capacity=capacity, num_envs=1, obs_shape=(17,), action_shape=(6,), prioritized=prioritized
    )
    rng = np.random.default_rng(0)
    for start in range(0, capacity, 10_000):
        rows = np.zeros(min(10_000, capacity - start), buffer.dtype)
        for name in ("obs", "next_obs", "actions", "rewards"):
            rows[name] = rng.random(rows[name].shape)
        buffer.add(rows)
    if prioritized:
        buffer.update_priorities(torch.arange(capacity), torch.from_numpy(rng.random(capacity)))
    return buffer


def operations(uniform: ReplayBuffer, prioritized: ReplayBuffer) -> dict[str, Callable[[], object]]:
    """Return what is timed, by name."""
    rng = np.random.default_rng(1)
    row = np.zeros(1, uniform.dtype)
    errors = torch.from_numpy(rng.random(BATCH))
    indices = [torch.from_numpy(rng.integers(0, uniform.capacity, BATCH)) for _ in range(64)]
    turn = iter(range(10**9))
    return {
        "add one": lambda: uniform.add(row),
        "add one, prioritised": lambda: prioritized.add(row),
        "sample 256, uniform": lambda: uniform.sample(BATCH, rng),
        "sample 256, prioritised": lambda: prioritized.sample(BATCH, rng, beta=0.4),
        "update 256 priorities": lambda: prioritized.update_priorities(indices[next(turn) % 64], errors),
    }


def microseconds(run: Callable[[], object]) -> float:
    """Return the mean time of one call."""
    started = time.perf_counter()
    for _ in range(REPEATS):
        run()
    return (time.perf_counter() - started) / REPEATS * 1e6


def main() -> None:
    """Measure and write the report."""
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    cases = {
        size: operations(filled(size, prioritized=False), filled(size, prioritized=True)) for size in SIZES
    }
    times: dict[str, dict[int, list[float]]] = {
        name: {size: [] for size in SIZES} for name in cases[SIZES[0]]
    }
    for _ in range(rounds):
        for size, todo in cases.items():
            for name, run in todo.items():
                times[name][size].append(microseconds(run))
    medians = {
        name: {size: statistics.median(found) for size, found in by_size.items()}
        for name, by_size in times.items()
    }
    text = report(medians)
    print(text)
    if rounds >= ROUNDS:
        write_text(ROOT / "results" / "bench_buffer.md", text)


def report(medians: dict[str, dict[int, float]]) -> str:
    """Return the Markdown report."""
    uniform, prioritised = medians["sample 256, uniform"], medians["sample 256, prioritised"]
    growth = uniform[SIZES[-1]] / uniform[SIZES[0]]
    cost = {size: prioritised[size] / uniform[size] for size in SIZES}
    hardware = machine()
    used = ", ".join(f"{name} {number}" for name, number in versions().items())
    lines = [
        "# Speed of the replay buffer",
        "",
        "Made by `make bench-ours`: transitions of HalfCheetah's sizes (168 bytes), one thread, microseconds per call, "
        f"median of {ROUNDS} rounds of {REPEATS} calls.",
        "",
        "| operation | " + " | ".join(f"{size:,}" for size in SIZES) + " |",
        "|---|" + "---|" * len(SIZES),
        *[
            f"| {name} | " + " | ".join(f"{by_size[size]:.1f}" for size in SIZES) + " |"
            for name, by_size in medians.items()
        ],
        "| prioritised / uniform sampling | " + " | ".join(f"{cost[size]:.2f}" for size in SIZES) + " |",
        "",
        f"Uniform sampling from {SIZES[-1]:,} takes {growth:.2f} times as long as from {SIZES[0]:,} (caches); "
        f"prioritised sampling {prioritised[SIZES[-1]] / prioritised[SIZES[0]]:.2f} times.",
        "",
        f"Machine: {hardware['processor']}, {hardware['cpu_count']} cores. {used}.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
