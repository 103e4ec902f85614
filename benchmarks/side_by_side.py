"""What the comparisons with stable-baselines3 share: whole runs alternate, and the figure is the median of ratios.

A machine's speed drifts by more than the difference one wants to see, so ours and theirs take turns.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from rl_training.config import TrainConfig
from rl_training.experiment.metadata import machine, versions
from rl_training.experiment.runs import train

QUIET: dict[str, Any] = {"eval_every_timesteps": 0, "checkpoint_every_timesteps": 0, "num_eval_episodes": 1}
Case: TypeAlias = tuple[Callable[[], float], Callable[[], float]]
"""Ours and theirs, each returning steps per second."""
Rounds: TypeAlias = list[tuple[float, float]]


def our_speed(config: TrainConfig) -> float:
    """Return environment steps per second of a whole run, metric files included, evaluation left out."""
    with tempfile.TemporaryDirectory() as folder:
        result = train(config.with_overrides(output_dir=folder, **QUIET))
        last = (result.run_dir / "metrics.jsonl").read_text().splitlines()[-1]
    return float(json.loads(last)["time/fps"])


def timed(run: Callable[[], object], steps: int) -> float:
    """Return steps per second."""
    started = time.perf_counter()
    run()
    return steps / (time.perf_counter() - started)


def alternated(cases: Mapping[str, Case], rounds: int) -> dict[str, Rounds]:
    """Measure all cases on one core of the machine, ours and theirs in turn, after one round to warm up."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    measured: dict[str, Rounds] = {}
    for name, (our, peer) in cases.items():
        our(), peer()
        measured[name] = []
        for _ in range(rounds):
            pair = (our(), peer())
            measured[name].append(pair)
            print(f"{name}: ours {pair[0]:,.0f}  the peer {pair[1]:,.0f} steps/s", flush=True)
        print(f"{name}: median ratio {median_ratio(measured[name]):.2f}", flush=True)
    return measured


def median_ratio(rounds: Rounds) -> float:
    """Return the median of ours over theirs."""
    return statistics.median(a / b for a, b in rounds)


def table_rows(measured: Mapping[str, Rounds]) -> list[str]:
    """Return a row of a Markdown table per case: ours, theirs, the ratio of every round and their median."""
    rows = []
    for name, rounds in measured.items():
        ours, theirs = (statistics.median(side) for side in zip(*rounds, strict=True))
        listed = ", ".join(f"{a / b:.2f}" for a, b in rounds)
        rows.append(f"| {name} | {ours:,.0f} | {theirs:,.0f} | {listed} | **{median_ratio(rounds):.2f}** |")
    return rows


def surroundings_line() -> str:
    """Return the machine and the versions as text."""
    hardware = machine()
    used = ", ".join(f"{name} {number}" for name, number in versions().items())
    return f"Machine: {hardware['processor']}, {hardware['cpu_count']} cores. {used}."
