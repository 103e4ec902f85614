"""`rl-training benchmark`: presets against each other on many seeds, as tables and pictures."""

from pathlib import Path

from rl_training.cli.plain_flags import Flags, add_launch_flags
from rl_training.core.errors import RunFault
from rl_training.lab.manifests import manifests, read_manifest


def run(argv: list[str]) -> int:
    """Train what is missing and write the report."""
    flags = Flags(
        "rl-training benchmark", "Train the presets of a manifest on many seeds and write a report."
    )
    families = ", ".join(manifests())
    flags.add_argument("manifest", help=f"a YAML file, or a family of the zoo: {families}")
    add_launch_flags(flags, num_seeds=None, output_dir="runs/benchmark")
    flags.add_argument(
        "--baseline", metavar="DIR", help="an earlier report, or its records.json, to compare with"
    )
    wanted = flags.parse(argv)
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

    budget = {} if wanted.total_timesteps is None else {"total_timesteps": wanted.total_timesteps}
    found = contenders(manifest, budget)
    folder = Path(wanted.output_dir)
    baseline = None if wanted.baseline is None else read_baseline(Path(wanted.baseline), found, folder)
    launched, code = run_jobs(
        benchmark_jobs(found, wanted.seeds or manifest.seeds),
        folder,
        processes=wanted.jobs,
        retry_failed=wanted.retry_failed,
        again=typed("benchmark", *argv),
    )
    if launched.stopped_by is None and launched.records:
        records = scored_jobs(found, launched.records)
        try:
            files = report(records, folder, baseline, manifest.references, published_figures(found))
        except ReportNotWritten as error:
            reason = str(error).removesuffix("; choose another")
            raise RunFault(f"{reason}; the runs are kept, and the same command writes it again") from error
        print("\n" + "\n".join(str(file) for file in files), flush=True)
    return code
