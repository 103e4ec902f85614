"""Launching many runs from the command line: progress, final messages and exit code."""

import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.cli.exit_codes import command_name
from rl_training.cli.job_board import make_board
from rl_training.config import load_config
from rl_training.config.presets import presets, read_presets, zoo_stem
from rl_training.core.errors import RunFault, UserError, printable
from rl_training.datasets.opening import refuse_missing
from rl_training.experiment.files import write_json
from rl_training.lab.jobs import Job, JobFolder, Launched, jobs_of
from rl_training.lab.launcher import launch
from rl_training.lab.preset_scores import compare_with_results, measured
from rl_training.version import __version__


def run_jobs(
    jobs: Sequence[Job],
    folder: Path,
    *,
    launching: Mapping[str, Any],
    again: str,
    retry: str | None = None,
) -> tuple[Launched, int]:
    """Train the runs that are missing and print a summary; the exit code is 0, 1 after failures, or the signal's.

    `launching` are arguments of `launch`. `again` is the command that continues, `retry` the one that retries failed
    runs: by default the same with a flag.
    """
    if launching.get("engine", "process") == "process":
        _refuse_missing_datasets(jobs, JobFolder(folder))
    launched = launch(jobs, folder, board=make_board(), **launching)
    finished, failed = launched.having("finished"), launched.having("failed")
    earlier = sum(state.earlier for state in finished)
    of_them = f", {earlier} of them earlier" if earlier else ""
    print(f"{len(finished)} of {len(launched.states)} runs are finished{of_them}")
    if moved := sum(state.losses for state in launched.states):
        print(f"workers were lost {moved} times; their runs continued from their last checkpoints")
    before = [state.record for state in finished if state.earlier and state.record]
    others = {str(record["versions"].get("rl_training")) for record in before} - {__version__}
    if others:
        print(f"note: some were trained by rl_training {', '.join(sorted(others))}")
    for state in failed:
        print(printable(f"failed: {state.job}: {state.error}"))
    if failed:
        print(printable(f"Retry failed runs with:\n  {retry or f'{again} --retry-failed'}"))
    stopped_by = launched.stopped_by
    if stopped_by is not None or launched.having("paused", "waiting"):
        by = "" if stopped_by is None else f"Stopped by {signal.Signals(stopped_by).name}. "
        print(printable(f"{by}Resume every run from its checkpoint with:\n  {again}"), flush=True)
    if stopped_by is not None:
        return launched, 128 + stopped_by
    return launched, 1 if failed else 0


def _refuse_missing_datasets(jobs: Sequence[Job], home: JobFolder) -> None:
    """Raise if a job that is not done needs a dataset that is not on this machine, before any other job is trained."""
    there = set[str]()
    for job in jobs:
        dataset = job.config.dataset
        if dataset is None or dataset in there or home.record(job) is not None:
            continue
        try:
            refuse_missing(dataset)
        except UserError as error:
            needs = next((preset.about.needs for preset in read_presets() if preset.name == job.name), "")
            raise UserError(f"{job.name} needs {needs or 'its dataset'}: {error}") from None
        there.add(dataset)


def typed(*words: str) -> str:
    """Return the command as it was typed, without --retry-failed."""
    return f"{command_name()} {shlex.join(word for word in words if word != '--retry-failed')}"


def run_presets(
    names: Sequence[str],
    *,
    seeds: Sequence[int],
    folder: Path,
    launching: Mapping[str, Any],
    overrides: Mapping[str, Any],
    again: str,
    retry: str | None = None,
) -> int:
    """Train presets and return the exit code; the scores of each are written to `results/` in the folder."""
    names = list(dict.fromkeys(names))
    configs = [(name, load_config(name).with_overrides(**overrides)) for name in names]
    launched, code = run_jobs(
        jobs_of(configs, seeds),
        folder,
        launching=launching,
        again=again,
        retry=retry,
    )
    for name in names:
        records = [record for record in launched.records if record["name"] == name]
        if len(records) == len(seeds):
            result = measured(name, records)
            own = f"{Path(name).stem}_{result['fingerprint']}"
            path = folder / "results" / f"{zoo_stem(name) if name in presets() else own}.json"
            _write(path, result)
            print(f"\n{compare_with_results(result)}\n  {path}")
    return code


def _write(path: Path, result: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        write_json(path, result)
    except OSError as error:
        raise RunFault(
            f"{path} could not be written: {error.strerror}; the runs are kept; the same command writes it again"
        ) from error
