"""Differences between runs: settings, versions, commit, machine and scores. Needs no torch."""

from collections.abc import Sequence
from typing import Any

from rl_training.experiment.records.read import RunRecord

MISSING = object()


def differences_of(runs: Sequence[RunRecord]) -> dict[str, dict[str, list[Any]]]:
    """Return the entries that differ, by group and name: one value per run, None where a run has none."""
    groups: dict[str, list[dict[str, Any]]] = {
        "settings": [run.config for run in runs],
        "versions": [_as_dict(run.metadata_entry("versions")) for run in runs],
        "origin": [_origin(run) for run in runs],
        "results": [_results(run) for run in runs],
    }
    found = {name: _differing(maps) for name, maps in groups.items()}
    return {name: values for name, values in found.items() if values}


def _differing(maps: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(str(name) for values in maps for name in values)
    table = {name: [values.get(name, MISSING) for values in maps] for name in names}
    return {
        name: [None if value is MISSING else value for value in values]
        for name, values in table.items()
        if any(
            value != values[0] or isinstance(value, bool) != isinstance(values[0], bool)
            for value in values[1:]
        )
    }


def _as_dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _origin(run: RunRecord) -> dict[str, Any]:
    machine = _as_dict(run.metadata_entry("machine"))
    return {
        "git_commit": run.metadata_entry("git_commit"),
        "processor": machine.get("processor"),
        "update_path": run.metadata_entry("update_path"),
        "losses": run.metadata_entry("losses"),
    }


def _results(run: RunRecord) -> dict[str, Any]:
    return {
        "status": run.status,
        "timesteps": run.timesteps,
        "evaluations": run.num_evaluations,
        "score": run.score,
        "best": run.best,
    }
