"""`zoo/results/<preset>.json`: the scores of a preset per seed, and comparisons of new scores with them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from rl_training.config import TrainConfig
from rl_training.config.presets import shipped, zoo_stem
from rl_training.core.errors import UserError
from rl_training.experiment.files import read_json
from rl_training.experiment.records.scores import SCORE_RULE
from rl_training.lab import statistics
from rl_training.lab.jobs import Job, ended_record
from rl_training.lab.statistics import Estimate

FORMAT = 1
RUN = ("seed", "score", "seconds", "versions", "evaluations")


def estimate(scores: Sequence[float]) -> Estimate:
    """Return the interquartile mean of a preset's scores, with its 95% interval if there are two or more."""
    return statistics.estimate(statistics.iqm, [np.array(scores)], statistics.draw([len(scores)]))


def measured(name: str, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the content of a preset's results file from the records of its finished jobs."""
    found = estimate([record["score"] for record in records])
    first = records[0]
    return {
        "format": FORMAT,
        "preset": name,
        "fingerprint": first["fingerprint"],
        "algo": first["algo"],
        "env_id": first["env_id"],
        "total_timesteps": first["total_timesteps"],
        "rule": SCORE_RULE,
        "iqm": found.value,
        "interval_95": None if found.low is None else [found.low, found.high],
        "runs": [
            {key: record[key] for key in RUN} for record in sorted(records, key=lambda item: item["seed"])
        ],
    }


def results_path(name: str) -> Path | None:
    """Return the results file of a preset, if it exists."""
    paths = [folder / "results" / f"{zoo_stem(name)}.json" for folder in shipped("zoo")]
    return next((path for path in paths if path.is_file()), None)


def read_measured(name: str) -> dict[str, Any] | None:
    """Return the results of a preset, or None if there are none."""
    path = results_path(name)
    if path is None:
        return None
    data = read_json(path)
    if not _is_result(data):
        raise UserError(f"{path} is not a result of format {FORMAT}; measure the preset again")
    return data


def _is_result(data: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether a value is a valid result."""
    try:
        figures = [data["iqm"], *(data["interval_95"] or (0, 0)), *(run["score"] for run in data["runs"])]
        seeds = [run["seed"] for run in data["runs"]]
        known = data["format"] == FORMAT and isinstance(data["fingerprint"], str) and len(figures) > 3
    except (KeyError, TypeError):
        return False
    return known and all(isinstance(figure, int | float) for figure in [*figures, *seeds])


def expected(result: dict[str, Any]) -> str:
    """Return the scores of a preset as text, such as `98 to 500 (seeds 1 to 3)`."""
    scores, seeds = [run["score"] for run in result["runs"]], [run["seed"] for run in result["runs"]]
    low, high = f"{min(scores):.4g}", f"{max(scores):.4g}"
    listed = ", ".join(map(str, seeds))
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        listed = f"{seeds[0]} to {seeds[-1]}"
    return f"{low if low == high else f'{low} to {high}'} (seed{'s' if len(seeds) > 1 else ''} {listed})"


def compared(new: dict[str, Any], old: dict[str, Any] | None) -> str:
    """Return a text that compares new scores with earlier ones."""
    text = f"{new['preset']}: {score_text(new)}"
    if old is None:
        return f"{text}; there are no earlier results"
    if new["fingerprint"] != old["fingerprint"]:
        return f"{text}; the earlier results have other settings and cannot be compared"
    before = {run["seed"]: run["score"] for run in old["runs"]}
    now = {run["seed"]: run["score"] for run in new["runs"]}
    equal = [before[seed] == now[seed] for seed in before.keys() & now.keys()]
    seeds = f"; {sum(equal)} of {len(equal)} common seeds have exactly the same score" if equal else ""
    return f"{text}; earlier: {score_text(old)}: {_verdict(new, old)}{seeds}"


def compare_with_results(result: dict[str, Any]) -> str:
    """Return a text that compares new scores with the preset's results, or says why these cannot be read."""
    try:
        return compared(result, read_measured(result["preset"]))
    except UserError as error:
        return f"{result['preset']}: {score_text(result)}; {error}"


def compare_run_with_results(name: str, config: TrainConfig, run_dir: Path) -> str | None:
    """Compare a finished run of a preset with the preset's results; None if those have other settings."""
    try:
        known = read_measured(name)
    except UserError as error:  # not an error of the run
        return str(error)
    if known is None or known["fingerprint"] != config.fingerprint():
        return None
    record = ended_record(Job(name, config), run_dir)
    return compared(measured(name, [record]), known) if record["status"] == "finished" else None


def score_text(result: dict[str, Any]) -> str:
    """Return a score with its interval and number of seeds as text."""
    count = len(result["runs"])
    if result["interval_95"] is None:
        return f"{result['iqm']:.4g} on one seed"
    low, high = result["interval_95"]
    return f"{result['iqm']:.4g} on {count} seeds (95% interval {low:.4g} to {high:.4g})"


def _verdict(new: dict[str, Any], old: dict[str, Any]) -> str:
    """Compare intervals; a single seed is compared with the range of the other scores."""
    low, high = _range(new, old)
    low_before, high_before = _range(old, new)
    if len(new["runs"]) > 1 or len(old["runs"]) > 1:
        if low > high_before:
            return "better than before"
        if high < low_before:
            return "worse than before"
    return "not statistically distinguishable"


def _range(result: dict[str, Any], other: dict[str, Any]) -> tuple[float, float]:
    if len(other["runs"]) > 1 and result["interval_95"] is not None:
        return result["interval_95"][0], result["interval_95"][1]
    scores = [run["score"] for run in result["runs"]]
    return min(scores), max(scores)
