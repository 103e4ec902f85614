"""What `rl-training plan` predicts for the rows of `make scale`, and how far the measurements are from it.

`make scale-plan` measures the costs of every row for a few seconds and writes the predictions for two cores, and for 8,
64 and 512, to `results/scale_plan.json`. With `--compare`, nothing is measured: `results/scale_plan.md` gets the
predictions beside those of `results/scale.json`. Commit the predictions before you run `make scale`. Run it on a
machine that does nothing else.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from scale import CORES, FIGURES, HERE, ROOT, config_of
from scale_rows import DEFAULT, ROWS
from summary import ratio

PREDICTED, TABLE = ROOT / "results" / "scale_plan.json", ROOT / "results" / "scale_plan.md"
MORE_CORES = (8, 64, 512)
REPEATS = 3
"""Measurements of the costs of a row, each in a fresh process; the median prediction counts."""
CLOSE = 0.15
"""Largest relative error of a prediction that counts as close."""


def layout_of(settings: dict[str, Any]) -> Any:
    """Return the layout of a side, with the numbers of processes that `auto` stands for on two cores."""
    from rl_training.experiment.throughput import Layout

    names = ("engine", "env_groups", "lag", "learner_shards", "num_threads")
    found = {name: settings[name] for name in names if name in settings}
    if found.get("lag") == "free":  # about as fast as 1
        found["lag"] = 1
    if found["engine"] == "process":
        found["num_samplers"] = settings.get("num_samplers", min(found["env_groups"], CORES))
        found["num_learners"] = min(found["learner_shards"], CORES)
    return Layout(**found)


def predicted(name: str) -> dict[str, Any]:
    """Measure the costs of a row in this process; return the predictions of its sides, and of more cores."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    from rl_training.experiment.cost_measurement import measure_costs
    from rl_training.experiment.planning import plan_from
    from rl_training.experiment.throughput import predict

    row = ROWS[name]
    costs = measure_costs(config_of(row, DEFAULT))
    sides = {
        side: asdict(predict(costs, layout_of(settings), CORES))
        for side, settings in row.sides.items()
        if settings.get("env_backend") != "async"
    }
    more = {str(cores): plan_from(costs, cores).to_dict() for cores in MORE_CORES}
    for each in more.values():
        each["predictions"] = each["predictions"][:1]
        del each["costs"], each["assumptions"]
    return {"costs": asdict(costs), "sides": sides, "more_cores": more}


def measured_apart(name: str) -> dict[str, Any]:
    """Predict in a fresh process."""
    paths = [str(HERE), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, __file__, "--child", name],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def median_of(repeats: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sitting whose predictions are in the middle, with the median prediction of every side."""
    middle = sorted(repeats, key=lambda each: each["sides"][DEFAULT]["steps_per_second"])[len(repeats) // 2]
    for side, found in middle["sides"].items():
        for number in ("steps_per_second", "speedup"):
            found[number] = statistics.median(each["sides"][side][number] for each in repeats)
    return middle


def errors(kept: dict[str, Any], measured: dict[str, Any]) -> list[float]:
    """Return the relative errors of all predictions that were measured."""
    found = []
    for name, row in kept.items():
        rounds = measured.get(name, {}).get("rounds", [])
        for side, guess in row["sides"].items():
            sides = (side, DEFAULT)
            whole = [each for each in rounds if all("steps_per_second" in each.get(one, {}) for one in sides)]
            if side != DEFAULT and whole:
                found.append(guess["speedup"] / ratio(whole, "steps_per_second", side, DEFAULT).median - 1)
    return found


def compared(kept: dict[str, Any], measured: dict[str, Any]) -> list[str]:
    """Return the lines of the table of predictions beside measurements."""
    lines = []
    for name, found in kept.items():
        rounds = measured.get(name, {}).get("rounds", [])
        for side, guess in found["sides"].items():
            if side == DEFAULT:
                continue
            whole = [
                each
                for each in rounds
                if all("steps_per_second" in each.get(one, {}) for one in (side, DEFAULT))
            ]
            told = ["not measured", ""]
            if whole:
                real = ratio(whole, "steps_per_second", side, DEFAULT)
                told = [real.text(".2f"), f"{100 * (guess['speedup'] / real.median - 1):+.0f}%"]
            lines.append(f"| {ROWS[name].title} | {side} | {guess['speedup']:.2f} | {told[0]} | {told[1]} |")
    return lines


def growth(kept: dict[str, Any]) -> list[str]:
    """Return the lines of the table for more cores than were measured."""
    from rl_training.experiment.throughput import Layout

    lines = []
    for name, found in kept.items():
        for cores, plan in found["more_cores"].items():
            same, grown = plan["predictions"][0], plan["with_more_environments"]
            for environments, each in ((ROWS[name].num_envs, same), (grown["num_envs"], grown)):
                shown = Layout(**each["layout"]).text()
                lines.append(
                    f"| {ROWS[name].title} | {cores} | {environments:,} | {shown} | {each['steps_per_second']:,.0f} | "
                    f"{each['speedup']:.1f} | {each['limit']} |"
                )
    return lines


def report(kept: dict[str, Any], measured: dict[str, Any]) -> str:
    """Return the page."""
    from rl_training.experiment.logs.metadata import machine
    from rl_training.experiment.planning import ASSUMPTIONS

    found = errors(kept, measured)
    close = sum(abs(error) <= CLOSE for error in found)
    told = f"{close} of {len(found)} are within {CLOSE:.0%}." if found else "Nothing was measured yet."
    return "\n".join(
        [
            "# Predicted and measured speed\n",
            f"The speed-up over the default that `rl-training plan --cores {CORES}` predicts from a few seconds of "
            f"measurement, beside the one that `make scale` measured afterwards on {CORES} cores of "
            f"{machine()['processor']}. Predictions are medians of {REPEATS} measurements. {told} Settings are those "
            "of [the measurement](scale.md). Renewed by `make scale-plan`, then `make scale`, then `make scale-plan "
            "COMPARE=1`.\n",
            "| task | settings | predicted | measured | predicted / measured |\n|---|---|---|---|---|",
            *compared(kept, measured),
            "\n## More cores than were measured\n",
            "The fastest settings for 8, 64 and 512 cores: with the same number of environments, and with as many "
            "times more environments and larger minibatches as there are cores. Steps per second and the speed-up over "
            f"one process are extrapolated. Assumptions: {'; '.join(ASSUMPTIONS)}; and all cores share one memory.\n",
            "| task | cores | environments | settings | steps/s | speed-up | limited by |",
            "|---|---|---|---|---|---|---|",
            *growth(kept),
            "",
        ]
    )


def main() -> None:
    """Predict, or compare, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default=",".join(ROWS), help=f"which, by commas: {', '.join(ROWS)}")
    parser.add_argument("--compare", action="store_true", help="only write the page")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.child:
        print(json.dumps(predicted(flags.child)))
        return
    kept = json.loads(PREDICTED.read_text(encoding="utf-8")) if PREDICTED.exists() else {}
    for name in [] if flags.compare else flags.rows.split(","):
        kept[name] = median_of([measured_apart(name) for _ in range(REPEATS)])
        told = {side: round(each["speedup"], 2) for side, each in kept[name]["sides"].items()}
        print(f"{name}: {told}", flush=True)
        PREDICTED.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    measured = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    TABLE.write_text(report(kept, measured), encoding="utf-8")


if __name__ == "__main__":
    main()
