"""Presets on many seeds: launched, told in words beside what is known of them, and kept as results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.cli.launching import run_jobs
from rl_training.config import load_config
from rl_training.core.errors import RunFault
from rl_training.core.presets import presets, zoo_stem
from rl_training.experiment.files import write_json
from rl_training.experiment.jobs import jobs_of
from rl_training.experiment.measured import beside_what_is_known, measured


def run_presets(
    names: Sequence[str],
    *,
    seeds: Sequence[int],
    folder: Path,
    processes: int,
    retry_failed: bool,
    overrides: Mapping[str, Any],
    again: str,
    retry: str | None = None,
) -> int:
    """Train presets and return the exit code; what each reached lies in `results/` of the folder."""
    names = list(dict.fromkeys(names))
    configs = [(name, load_config(name).with_overrides(**overrides)) for name in names]
    launched, code = run_jobs(
        jobs_of(configs, seeds),
        folder,
        processes=processes,
        retry_failed=retry_failed,
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
            print(f"\n{beside_what_is_known(result)}\n  {path}")
    return code


def _write(path: Path, result: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        write_json(path, result)
    except OSError as error:
        raise RunFault(
            f"{path} could not be written: {error.strerror}; the runs are kept, and the same command writes it again"
        ) from error
