"""Speed compared with other libraries: `make bench`.

Or `.venv-bench/bin/python benchmarks/bench.py --rows sac_half_cheetah --rounds 3`.

Sides take turns in fresh processes on one core; every round is stored in `bench.json` at once, so a stopped benchmark
can be continued. Writes `bench.md` and `bench.png` beside it. Run it on a machine that does nothing else.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from report import write
from rows import CONTRIB, RLOX, ROWS, SB3, TIANSHOU, Row
from store import Round, Store, digest

from rl_training.experiment.logs.metadata import machine, versions

ROOT = Path(__file__).resolve().parents[1]
PEERS = (SB3, CONTRIB, "sbx-rl", "jax", TIANSHOU, RLOX)
MEASURING = ("child", "fair", "ours", "peers", "products")
"""Modules that affect the measurements; the others can change without measuring again."""
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
}


def measure(row: Row, side: str, number: int, *, short: bool) -> dict[str, Any]:
    """Return the measurement of one side, in a separate process on the last core; exit if it fails."""
    core = max(os.sched_getaffinity(0))
    command = ["taskset", "-c", str(core), sys.executable, str(ROOT / "benchmarks" / "child.py")]
    command += [row.name, side, str(number), *(["--short"] if short else [])]
    started = time.perf_counter()
    done = subprocess.run(command, env=os.environ | ONE_THREAD, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{row.name}, {side}: failed, rounds before are kept\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | {"process_seconds": time.perf_counter() - started}


def one_round(row: Row, number: int, *, short: bool) -> Round:
    """Measure all sides; each round starts with another one."""
    sides = row.sides[number % len(row.sides) :] + row.sides[: number % len(row.sides)]
    found = {side: measure(row, side, number, short=short) for side in sides}
    return {side: found[side] for side in row.sides}


def told(entry: dict[str, Any]) -> str:
    """Return a side's main number."""
    if "steps_per_second" in entry:
        return f"{entry['steps_per_second']:,.0f} steps/s, {entry['peak_mib']:,.0f} MiB"
    if "seconds_per_step" in entry:
        return f"{1e6 * entry['seconds_per_step']:,.1f} µs per step"
    return f"{entry['seconds']:.2f} s"


def surroundings() -> dict[str, Any]:
    """Return what must be equal for rounds to be comparable, in addition to the row's settings."""
    found = dict(versions())
    for name in PEERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "versions": found,
        "processor": machine()["processor"],
        "source": digest(ROOT / "src", "**/*.py"),
        "measuring": digest(ROOT / "benchmarks", *(f"{name}.py" for name in MEASURING)),
    }


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds per row, those of before included")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"which, by commas: {', '.join(ROWS)}")
    parser.add_argument(
        "--short", action="store_true", help="few steps, into runs/bench: does everything run?"
    )
    parser.add_argument(
        "--report", action="store_true", help="measure nothing; only write the tables and the plot"
    )
    flags = parser.parse_args()
    if unknown := [name for name in flags.rows.split(",") if name not in ROWS]:
        parser.error(f"no row is called {', '.join(unknown)}; there are {', '.join(ROWS)}")
    return flags


def main() -> None:
    """Measure what is missing and write the report."""
    flags, around = arguments(), surroundings()
    folder = ROOT / "runs" / "bench" if flags.short else ROOT / "results"
    store = Store(folder / "bench.json", around)
    for name in [] if flags.report else flags.rows.split(","):
        row = ROWS[name].shortened() if flags.short else ROWS[name]
        if (stale := store.begin(name, row.key())) is not None:
            print(f"{name}: {stale}; measured again", flush=True)
        for number in range(len(store.rounds(name)), flags.rounds):
            found = one_round(row, number, short=flags.short)
            store.add(name, found)
            print(
                f"{name}, round {number + 1}: " + "; ".join(f"{s} {told(e)}" for s, e in found.items()),
                flush=True,
            )
    write(store, folder)
    print(f"written: {folder}/bench.md, bench.json and bench.png")


if __name__ == "__main__":
    main()
