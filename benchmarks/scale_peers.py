"""Ours beside Sample Factory's APPO and RLlib's PPO with two workers: `make peers-scale`.

Every side trains in fresh processes on the same two cores, in turns whose order changes from round to round. Each peer
runs in a virtual environment of its own, by a script in `peer_runners/` that calls its public API. Steps per second
count after the first seconds, from the end of one update to the end of a later one. Writes `results/scale_peers.json`
after every measurement and `results/scale_peers.md`. Run it on a machine that does nothing else.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

from scale import CORES, HERE, LIMIT, ROOT, settings_text
from scale_rows import ONE_THREAD, ROWS
from summary import figure, ratio

sys.path.insert(0, str(HERE / "peer_runners"))
from tasks import TASKS, WORKERS, Task

FIGURES, TABLE = ROOT / "results" / "scale_peers.json", ROOT / "results" / "scale_peers.md"
OURS = "ours"
PEERS = {"Sample Factory 2.1.1, APPO": "sample_factory_appo.py", "RLlib 2.60.0, PPO": "rllib_ppo.py"}
ROW_OF = {"cartpole": "ppo_cartpole", "breakout": "ppo_breakout"}
"""Task -> the row of `scale_rows.py` with the same settings."""
OURS_TOO = {
    "cartpole": ("1 group, lag 1", "2 groups, lag 1"),
    "breakout": ("2 groups, lag 0, 2 shards", "1 group, lag 1, 2 shards"),
}
"""Task -> candidates of that row that are measured besides one process with one thread."""
DIFFERENCES = (
    "What differs: Sample Factory collects while it learns, with a policy that may be several updates old. RLlib "
    "collects and learns in turns, and its images are 32-bit floats. Both peers use Gymnasium's `AtariPreprocessing` "
    "(84x84, grey, 4 frames skipped, up to 30 no-ops, an episode ends with a life) with 4 stacked frames and the sign "
    "of rewards; ours presses FIRE, and continues the game after a lost life. Learning rates are constant for the "
    "peers and decrease linearly for ours. Sample Factory needs Gymnasium below 1.0 and runs with 0.29."
)


def sides_of(task: str) -> dict[str, list[str]]:
    """Return the command of every side but for its interpreter; the first word is whose interpreter it is."""
    found = {OURS: [OURS, str(HERE / "scale.py"), "--child", ROW_OF[task], ONE_THREAD]}
    for candidate in OURS_TOO[task]:
        found[f"{OURS}, {candidate}"] = [OURS, str(HERE / "scale.py"), "--child", ROW_OF[task], candidate]
    for peer, script in PEERS.items():
        for threads in (1, 2) if TASKS[task].images else (1,):
            side = peer if threads == 1 else f"{peer}, {threads} threads"
            found[side] = [peer, str(HERE / "peer_runners" / script), task, "--threads", str(threads)]
    return found


def measured(command: list[str], flags: argparse.Namespace) -> dict[str, Any]:
    """Run one side; return its speed, or why there is none. Its processes end with it."""
    interpreters = dict(zip([OURS, *PEERS], [sys.executable, flags.sample_factory, flags.rllib], strict=True))
    whose, *rest = command
    paths = [str(HERE), str(ROOT / "src")] if whose == OURS else []
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYTHONPATH": os.pathsep.join(paths)} if paths else {}
    times = ["--warm-up", str(flags.warm_up), "--seconds", str(flags.seconds)]
    process = subprocess.Popen(
        [interpreters[whose], *rest, *times],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        out, error = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        return {"error": f"no result within {LIMIT} s"}
    finally:
        with contextlib.suppress(ProcessLookupError):  # workers of a process that failed
            os.killpg(process.pid, signal.SIGKILL)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        return {"error": (error.strip().splitlines() or ["no result"])[-1][:300]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def measure_task(task: str, kept: dict[str, Any], flags: argparse.Namespace) -> None:
    """Measure what is missing of a task's rounds, and write down every measurement."""
    sides = sides_of(task)
    key = {
        "task": vars(TASKS[task]),
        "row": ROWS[ROW_OF[task]].key(),
        "times": [flags.warm_up, flags.seconds],
    }
    key = json.loads(json.dumps(key))
    entry = kept.get(task)
    if entry is None or entry["key"] != key:
        entry = kept[task] = {"key": key, "rounds": []}
    for number in range(flags.rounds):
        if number == len(entry["rounds"]):
            entry["rounds"].append({})
        found, turn = entry["rounds"][number], number % len(sides)
        for side in [*list(sides)[turn:], *list(sides)[:turn]]:
            if "steps_per_second" in found.get(side, {}):
                continue
            found[side] = measured(sides[side], flags)
            told = found[side].get("error") or f"{found[side]['steps_per_second']:,.0f} steps/s"
            print(f"{task}, round {number + 1}, {side}: {told}", flush=True)
            if flags.write:
                FIGURES.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def settings_of(task: Task, name: str, side: str) -> str:
    """Return the settings of a side for its table."""
    if side.startswith(OURS):
        return settings_text(
            ROWS[ROW_OF[name]].sides[side.removeprefix(f"{OURS}, ") if side != OURS else ONE_THREAD]
        )
    threads = 2 if side.endswith("2 threads") else 1
    return (
        f"{WORKERS} workers with {task.envs_per_worker} environments each, {threads} thread(s) for learning"
    )


def report(kept: dict[str, Any]) -> str:
    """Return the page with a table per task."""
    from rl_training.experiment.logs.metadata import machine

    text = [
        "# Several processes compared with other libraries\n",
        f"Steps per second of training on {CORES} cores of {machine()['processor']}: medians over rounds (least to "
        "greatest); all sides take turns, and ratios are taken within a round. Same number of environments, rollout, "
        "minibatch, epochs and network sizes. Start-up and the first seconds are excluded. Renewed by "
        f"`make peers-scale`.\n\n{DIFFERENCES}",
    ]
    for name, entry in kept.items():
        task, rounds = TASKS[name], entry["rounds"]
        own = [side for side in sides_of(name) if side.startswith(OURS)]
        text.append(
            f"\n## {task.env_id}\n\n{task.num_envs} environments, rollouts of {task.num_steps} steps, minibatches of "
            f"{task.batch_size}, {task.epochs} epochs; {len(rounds)} round(s).\n\n"
            f"| side | settings | steps/s |{''.join(f' {side} / side |' for side in own)}\n"
            f"|---|---|---|{'---|' * len(own)}"
        )
        for side in sides_of(name):
            shown = settings_of(task, name, side)
            errors = [found[side]["error"] for found in rounds if "error" in found.get(side, {})]
            whole = [found for found in rounds if "steps_per_second" in found.get(side, {})]
            if errors or not whole:
                text.append(
                    f"| {side} | {shown} | {(errors or ['not measured'])[0].replace('|', '/')} |{' |' * len(own)}"
                )
                continue
            speed = figure(found[side]["steps_per_second"] for found in whole).text()
            times = [
                ratio(both, "steps_per_second", mine, side).text(".2f") if both and side not in own else ""
                for mine in own
                for both in [[found for found in whole if "steps_per_second" in found.get(mine, {})]]
            ]
            text.append(f"| {side} | {shown} | {speed} | {' | '.join(times)} |")
    return "\n".join(text) + "\n"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sample-factory", default=".venv-sample-factory/bin/python", metavar="PYTHON")
    parser.add_argument("--rllib", default=".venv-rllib/bin/python", metavar="PYTHON")
    parser.add_argument("--tasks", default=",".join(TASKS), help=f"which, by commas: {', '.join(TASKS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds before a measurement")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of a measurement")
    parser.add_argument("--dry", action="store_true", help="print the page, write no results")
    flags = parser.parse_args()
    flags.write = not flags.dry
    return flags


def main() -> None:
    """Measure the tasks and write the page."""
    flags = arguments()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    kept: dict[str, Any] = {}
    if FIGURES.exists() and flags.write:
        kept = json.loads(FIGURES.read_text(encoding="utf-8"))
    for task in flags.tasks.split(","):
        measure_task(task, kept, flags)
    page = report(kept)
    if flags.write:
        TABLE.write_text(page, encoding="utf-8")
    else:
        print(page)


if __name__ == "__main__":
    main()
