"""This tree beside an earlier commit: `make bench BASE=<commit>`, or `python benchmarks/against_base.py COMMIT`.

Both sides train the same rows in fresh processes pinned to one core, in turns; the ratio is taken within each round.
Each side runs its own `benchmarks/ours.py`, so a module may have moved between them. Writes `results/bench_base.md`
and exits with 1 if a row's median ratio is below the target. Run it on a machine that does nothing else.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench import ONE_THREAD, ROOT
from rows import OURS, ROWS
from summary import Figure, figure, ratio

from rl_training.experiment.logs.metadata import machine

DEFAULT_ROWS = "ppo_cartpole,ppo_half_cheetah,dqn_cartpole,sac_half_cheetah"
TARGET = 0.98
THIS, BASE = "this tree", "base"


def checked_out(commit: str) -> tuple[Path, str]:
    """Return a work tree of the commit below `runs/`, made if need be, and the commit's full name."""
    name = _git("rev-parse", "--verify", f"{commit}^{{commit}}")
    folder = ROOT / "runs" / f"base-{name[:12]}"
    if not folder.exists():
        _git("worktree", "prune")
        _git("worktree", "add", "--detach", str(folder), name)
    return folder, name


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout.strip()


def measure(tree: Path, row: str, number: int, *, short: bool) -> dict[str, Any]:
    """Train one row with the package and the program of a tree, in a process of its own on the last core."""
    core = str(max(os.sched_getaffinity(0)))
    child = [sys.executable, str(tree / "benchmarks" / "child.py"), row, OURS, str(number)]
    done = subprocess.run(
        ["taskset", "-c", core, *child, *(["--short"] if short else [])],
        env=os.environ | ONE_THREAD | {"PYTHONPATH": str(tree / "src")},
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{row} in {tree}: failed\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(base: Path, row: str, rounds: int, *, short: bool) -> tuple[Figure, Figure, Figure]:
    """Return the steps per second of this tree and of the base, and the ratio within rounds."""
    trees, kept = {THIS: ROOT, BASE: base}, []
    for number in range(rounds):
        order = [THIS, BASE] if number % 2 == 0 else [BASE, THIS]
        found = {side: measure(trees[side], row, number, short=short) for side in order}
        kept.append(found)
        speeds = "; ".join(f"{side} {found[side]['steps_per_second']:,.0f} steps/s" for side in trees)
        print(f"{row}, round {number + 1}: {speeds}", flush=True)
    this, other = (figure(entry[side]["steps_per_second"] for entry in kept) for side in trees)
    return this, other, ratio(kept, "steps_per_second", THIS, BASE)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="the earlier commit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", default=DEFAULT_ROWS, help=f"which, by commas: {', '.join(ROWS)}")
    parser.add_argument("--short", action="store_true", help="few steps; writes no results")
    return parser.parse_args()


def main() -> None:
    """Measure, write the table, and exit with 1 if a row is slower than the target allows."""
    flags = arguments()
    folder, name = checked_out(flags.commit)
    lines, slower = [], []
    for row in flags.rows.split(","):
        this, other, found = compare(folder, row, flags.rounds, short=flags.short)
        lines.append(f"| {row} | {this.text()} | {other.text()} | {found.text('.3f')} |")
        slower += [row] if found.median < TARGET else []
    table = "\n".join(["| row | this tree | base | ratio |", "|---|---|---|---|", *lines])
    print(table)
    if not flags.short:
        text = (
            f"# Speed beside an earlier commit\n\nSteps per second of training, median (least to greatest) of "
            f"{flags.rounds} rounds on one core of {machine()['processor']}; the sides take turns, and the ratio is "
            f"taken within each round. Base: `{name[:12]}`. Renewed by `make bench BASE=<commit>`.\n\n{table}\n"
        )
        (ROOT / "results" / "bench_base.md").write_text(text, encoding="utf-8")
    if slower:
        raise SystemExit(f"below {TARGET}: {', '.join(slower)}")


if __name__ == "__main__":
    main()
