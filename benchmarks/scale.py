"""One process beside several on the same cores: `make scale`, or `python benchmarks/scale.py`.

Every side of a row (`scale_rows.py`) trains in a fresh process, in turns whose order changes from round to round;
ratios are taken within each round. Steps per second are those of training alone: from the end of one
update to the end of a later one, by the clock of the process that learns, without start-up, the first seconds,
evaluations and checkpoints. All processes of a side share the same two cores, and a side whose engine started no
process although its settings ask for it has no figure.

Writes `results/scale.json` after every measurement, and `results/scale.md`. Rounds that were measured with the same
settings count; `--again` measures them anew. Run it on a machine with two cores that does nothing else.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from scale_rows import ROWS, Row
from summary import figure, ratio

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
FIGURES, TABLE = ROOT / "results" / "scale.json", ROOT / "results" / "scale.md"
WARM_UP, MEASURED = 3.0, 8.0
"""Seconds of training before the measurement, and its least length: whole iterations are measured."""
CORES = 2
LIMIT = 300
"""Seconds after which a side is given up."""
QUIET: dict[str, Any] = {
    "log_every_timesteps": 10**9,
    "eval_every_timesteps": 0,
    "checkpoint_every_timesteps": 0,
    "num_eval_episodes": 1,
    "max_eval_episode_steps": 10,
    "total_timesteps": 10**8,
}


def descendants(parent: int) -> int:
    """Return the number of processes that a process has started, and those that they have started."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            if fields[0] != "Z":
                parents[int(folder.name)] = int(fields[1])

    def below(process: int) -> int:
        return sum(1 + below(each) for each, above in parents.items() if above == process)

    return below(parent)


def check_engine(settings: dict[str, Any], others: int) -> None:
    """Refuse a side whose engine did not do what its settings say: its figure would be of another program."""
    wanted, local = settings.get("engine", "local"), settings.get("env_backend") != "async"
    if wanted != "local" and others == 0:
        raise SystemExit(f"engine {wanted} is set, but the run has started no other process")
    if wanted == "local" and local and others:
        raise SystemExit(f"engine local is set, but the run has started {others} other processes")


def config_of(row: Row, side: str) -> Any:
    """Return the config of one side of a row."""
    from rl_training.config import TrainConfig

    base = TrainConfig(algo=row.algo, env_id=row.env_id, seed=1, num_envs=row.num_envs)
    return base.with_overrides(**row.settings | QUIET | row.sides[side])


def measure(name: str, side: str, warm_up: float, measured: float) -> dict[str, float]:
    """Train one side of a row in this process; return its speed and the number of processes."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    from rl_training.experiment.start import train
    from rl_training.runtime.callbacks import Callback, StopTraining

    class Stopwatch(Callback):
        def __init__(self) -> None:
            self.begun = self.first = None
            self.others = 0
            self.found: dict[str, float] = {}

        def on_update(self, progress: Any, result: Any) -> None:
            now = time.perf_counter()
            self.begun = self.begun or now
            if self.first is None:
                if now - self.begun >= warm_up:
                    self.others = descendants(os.getpid())
                    self.first = (progress.timesteps, time.perf_counter())
                return
            steps, seconds = progress.timesteps - self.first[0], now - self.first[1]
            if steps > 0 and seconds >= measured:
                self.found = {"steps_per_second": steps / seconds, "steps": steps, "seconds": seconds}
                raise StopTraining("measured")

    row, watch = ROWS[name], Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        train(config_of(row, side).with_overrides(output_dir=folder), callbacks=[watch])
    check_engine(row.sides[side], watch.others)
    return watch.found | {"processes": 1 + watch.others}


def measured_apart(name: str, side: str, flags: argparse.Namespace) -> dict[str, Any]:
    """Measure in a fresh process; return its speed, or why there is none."""
    child = [sys.executable, __file__, "--child", name, side]
    child += ["--warm-up", str(flags.warm_up), "--seconds", str(flags.seconds)]
    paths = [str(HERE), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    try:
        done = subprocess.run(
            child, capture_output=True, text=True, check=False, env=environment, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no result within {LIMIT} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["failed"])[-1][:300]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_row(name: str, kept: dict[str, Any], flags: argparse.Namespace) -> None:
    """Measure what is missing of a row's rounds, and write down every measurement."""
    row = ROWS[name]
    key = json.loads(json.dumps(row.key() | {"warm_up": flags.warm_up, "seconds": flags.seconds}))
    entry = kept.get(name)
    if entry is None or entry["key"] != key or flags.again:
        entry = kept[name] = {"key": key, "rounds": []}
    sides = list(row.sides)
    for number in range(flags.rounds):
        if number == len(entry["rounds"]):
            entry["rounds"].append({})
        found = entry["rounds"][number]
        turn = number % len(sides)
        for side in [*sides[turn:], *sides[:turn]]:
            if "steps_per_second" in found.get(side, {}):
                continue
            found[side] = measured_apart(name, side, flags)
            told = found[side].get("error") or f"{found[side]['steps_per_second']:,.0f} steps/s"
            print(f"{name}, round {number + 1}, {side}: {told}", flush=True)
            if flags.write:
                FIGURES.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def settings_text(settings: dict[str, Any]) -> str:
    """Return settings for a table."""
    return ", ".join(f"`{name}: {value}`" for name, value in settings.items())


def lines_of(row: Row, rounds: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a row's table; a side that failed in a round has no figures."""
    lines = []
    for side, settings in row.sides.items():
        shown = settings_text(settings)
        errors = [found[side]["error"] for found in rounds if "error" in found.get(side, {})]
        whole = [found for found in rounds if "steps_per_second" in found.get(side, {})]
        if errors or not whole:
            told = (errors or ["not measured"])[0].replace("|", "/")
            lines.append(f"| {side} | {shown} | {told} |{' |' * len(row.compared)}")
            continue
        speed = figure(found[side]["steps_per_second"] for found in whole).text()
        cells = [
            ratio(both, "steps_per_second", side, other).text(".2f") if both and side != other else ""
            for other in row.compared
            for both in [[found for found in whole if "steps_per_second" in found.get(other, {})]]
        ]
        lines.append(f"| {side} | {shown} | {speed} | {' | '.join(cells)} |")
    return lines


def report(kept: dict[str, Any]) -> str:
    """Return the page with the table of every row."""
    from rl_training.experiment.logs.metadata import machine

    text = [
        "# Several processes compared with one\n",
        f"Steps per second of training on {CORES} cores of {machine()['processor']}: medians over rounds "
        "(least to greatest). All sides of a row take turns in fresh processes on the same cores, and ratios are taken "
        "within a round. Time counts from the end of an update to the end of a later one, by the clock of the process "
        "that learns: start-up, the first seconds, evaluations and checkpoints are excluded. `default` is one process "
        "with `num_threads: auto`, whose updates borrow an idle core where that changes no bit. Renewed by `make "
        "scale`.",
    ]
    for name, row in ROWS.items():
        if name not in kept:
            continue
        rounds = kept[name]["rounds"]
        environments = "1 environment" if row.num_envs == 1 else f"{row.num_envs} environments"
        text.append(
            f"\n## {row.title}\n\n{environments}, {settings_text(row.settings)}; {len(rounds)} rounds.\n"
        )
        columns = ["side", "settings", "steps/s", *(f"/ {other}" for other in row.compared)]
        text.append(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
        text += lines_of(row, rounds)
    return "\n".join(text) + "\n"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default=",".join(ROWS), help=f"which, by commas: {', '.join(ROWS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--again", action="store_true", help="measure rounds again that are there")
    parser.add_argument("--warm-up", type=float, default=WARM_UP, help="seconds before a measurement")
    parser.add_argument("--seconds", type=float, default=MEASURED, help="seconds of a measurement")
    parser.add_argument("--short", action="store_true", help="a second each; writes no results")
    parser.add_argument("--child", nargs=2, metavar=("ROW", "SIDE"), help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.short:
        flags.warm_up, flags.seconds = 0.5, 1.0
    flags.write = not flags.short
    unknown = [name for name in flags.rows.split(",") if name not in ROWS]
    if unknown:
        parser.error(f"there is no row {unknown[0]}; rows are {', '.join(ROWS)}")
    return flags


def main() -> None:
    """Measure the rows and write the page."""
    flags = arguments()
    if flags.child:
        warnings.filterwarnings("ignore")
        print(json.dumps(measure(*flags.child, flags.warm_up, flags.seconds)))
        return
    kept: dict[str, Any] = {}
    if FIGURES.exists() and flags.write:
        kept = json.loads(FIGURES.read_text(encoding="utf-8"))
    for name in flags.rows.split(","):
        measure_row(name, kept, flags)
    page = report(kept)
    if flags.write:
        TABLE.write_text(page, encoding="utf-8")
    else:
        print(page)


if __name__ == "__main__":
    main()
