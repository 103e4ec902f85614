"""`rl-training benchmark`: compare presets on many seeds, in tables and plots."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rl_training.cli.arguments import Option, parse
from rl_training.cli.launch_flags import LaunchFlags
from rl_training.core.errors import RunFault
from rl_training.lab.manifests import read_manifest


@dataclass(frozen=True, kw_only=True)
class Benchmark(LaunchFlags):
    """Train the presets of a manifest on many seeds and write a report.

    The same command continues after an interruption.
    """

    manifest: Annotated[str, Option(positional=True, metavar="MANIFEST")]
    """A YAML file, or a family of the zoo, such as classic."""
    output_dir: Annotated[str, Option(metavar="DIR")] = "runs/benchmark"
    """Folder for all runs and the report."""
    baseline: Annotated[str | None, Option(metavar="DIR")] = None
    """An earlier report, or its records.json, to compare with."""


def run(argv: list[str]) -> int:
    """Train what is missing and write the report."""
    wanted = parse(Benchmark, argv, "rl-training benchmark")
    manifest = read_manifest(wanted.manifest)
    from rl_training.cli.launching import run_jobs, typed
    from rl_training.lab.benchmark_jobs import (
        benchmark_jobs,
        contenders,
        published_figures,
        read_baseline,
        scored_jobs,
    )
    from rl_training.lab.benchmark_report import ReportNotWritten, report

    found = contenders(manifest, wanted.overrides)
    folder = Path(wanted.output_dir)
    baseline = None if wanted.baseline is None else read_baseline(Path(wanted.baseline), found, folder)
    launched, code = run_jobs(
        benchmark_jobs(found, wanted.seeds or manifest.seeds),
        folder,
        launching=wanted.launching,
        again=typed("benchmark", *argv),
    )
    if launched.stopped_by is None and launched.records:
        records = scored_jobs(found, launched.records)
        try:
            files = report(records, folder, baseline, manifest.references, published_figures(found))
        except ReportNotWritten as error:
            reason = str(error).removesuffix("; choose another")
            raise RunFault(f"{reason}; the runs are kept; the same command writes it again") from error
        print("\n" + "\n".join(str(file) for file in files), flush=True)
    return code
