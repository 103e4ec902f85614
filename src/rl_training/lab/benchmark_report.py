"""Writes the report of a benchmark: `report.md`, figures, and the data as CSV and JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.core.csv_cells import csv_table
from rl_training.core.errors import UserError
from rl_training.experiment.files import write_bytes, write_json, write_text
from rl_training.experiment.logs.drawing import silent_drawing, warn_not_drawn
from rl_training.experiment.records.scores import BEST_RULE, SCORE_RULE
from rl_training.lab.benchmark_pictures import pictures
from rl_training.lab.benchmark_summary import References, Settings, Summary, summarise
from rl_training.lab.benchmark_text import markdown, remarks
from rl_training.lab.scored_runs import ScoredRun, write_records
from rl_training.lab.statistics import LEVEL, RESAMPLES, VERDICT_RULE, Estimate, Published


class ReportNotWritten(UserError):
    """The report could not be written; the runs are not affected."""


def report(
    records: Sequence[ScoredRun],
    folder: Path | str,
    baseline: Sequence[ScoredRun] | None = None,
    references: References | None = None,
    published: Mapping[tuple[str, str], Published] | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[Path]:
    """Write a report of scored runs into a folder; return the files, `report.md` first.

    `baseline` are earlier records (`read_records`), compared by name, or all with its only name. `references` maps
    tasks to the scores that are normalised to 0 and 1; only these tasks are aggregated. `published` maps (name, task)
    to published scores; other names and tasks are ignored. `seed` is that of the bootstrap. The file `records.json` in
    the folder can be the baseline of later reports.
    """
    if resamples < 1:
        raise UserError(f"resamples is {resamples}; at least 1 is needed")
    summary = summarise(records, baseline, references, published, Settings(resamples, seed))
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _write(summary, records, folder)
    except OSError as error:
        culprit = f" ({error.filename})" if error.filename not in (None, str(folder)) else ""
        raise ReportNotWritten(
            f"the report cannot be written to {folder}: {error.strerror}{culprit}; choose another folder"
        ) from error


def _write(summary: Summary, records: Sequence[ScoredRun], folder: Path) -> list[Path]:
    """Write all files, `report.md` last, so that everything it refers to exists."""
    tables = {
        "scores.csv": _scores(summary),
        "summary.csv": _statistics(summary),
        "curves.csv": _curves(summary),
    }
    for name, rows in tables.items():
        write_text(folder / name, csv_table(rows))
    write_json(folder / "report.json", _data(summary))
    write_records(folder / "records.json", records)
    drawn = _draw(summary, folder)
    write_text(folder / "report.md", markdown(summary, remarks(summary), drawn))
    names = ["report.md", "report.json", *tables, "records.json", *drawn]
    return [folder / name for name in names]


def _draw(summary: Summary, folder: Path) -> list[str]:
    drawn = []
    for name, draw in pictures(summary).items():
        try:
            with silent_drawing():
                picture = draw()
        except Exception as error:  # the tables are written anyway
            warn_not_drawn(folder / name, error)
        else:
            write_bytes(folder / name, picture)
            drawn.append(name)
    return drawn


def _scores(summary: Summary) -> Iterator[dict[str, Any]]:
    """Yield one row per run."""
    for entry in summary.tasks:
        for number, run in enumerate(entry.runs):
            last = run.evaluations[-1]
            yield {
                "task": entry.task,
                "name": entry.name,
                "seed": run.seed,
                "score": run.score,
                "normalised_score": None if entry.normalised is None else float(entry.normalised[number]),
                "best": run.best,
                "evaluations": len(run.evaluations),
                "last_step": last.step,
                "unit": run.unit,
                "seconds": last.wall_time,
            }


def _statistics(summary: Summary) -> Iterator[dict[str, Any]]:
    """Yield one row per statistic; aggregates have no task and normalised scores."""

    def row(task: str, name: str, runs: int, statistic: str, found: Estimate) -> dict[str, Any]:
        return {"task": task, "name": name, "runs": runs, "statistic": statistic} | asdict(found)

    for entry in summary.tasks:
        for statistic in ("iqm", "mean", "median"):
            yield row(entry.task, entry.name, len(entry.runs), statistic, getattr(entry, statistic))
        yield row(entry.task, entry.name, len(entry.runs), "best", Estimate(entry.best))
    for total in summary.aggregates:
        for statistic in ("iqm", "mean", "median", "optimality_gap"):
            yield row("", total.name, total.num_runs, statistic, getattr(total, statistic))
    runs = {(entry.name, entry.task): len(entry.runs) for entry in summary.tasks}
    for duel in summary.improvements:
        for task, found in duel.per_task.items():
            yield row(task, duel.name, runs[duel.name, task], "probability_of_improvement", found)
        total_runs = sum(runs[duel.name, task] for task in duel.per_task)
        yield row("", duel.name, total_runs, "probability_of_improvement", duel.overall)


def _curves(summary: Summary) -> Iterator[dict[str, Any]]:
    """Yield one row per point of every curve and profile; aggregates have no task."""
    bands = [
        (entry.task, entry.name, axis, band)
        for entry in summary.tasks
        for axis, band in [(entry.unit, entry.over_steps), ("seconds", entry.over_time)]
    ]
    bands += [
        ("", entry.name, axis, band)
        for entry in summary.aggregates
        for axis, band in [("share_of_training", entry.over_training), ("threshold", entry.profile)]
    ]
    for task, name, axis, band in bands:
        if band is None:
            continue
        for k, x in enumerate(band.x):
            low, high = (None if edge is None else float(edge[k]) for edge in (band.low, band.high))
            yield {
                "task": task, "name": name, "axis": axis, "x": float(x), "value": float(band.value[k]), "low": low,
                "high": high,
            }  # fmt: skip


def _data(summary: Summary) -> dict[str, Any]:
    rules = {
        "score": SCORE_RULE,
        "best": BEST_RULE,
        "interval": f"{LEVEL}% percentile interval of a stratified bootstrap",
        "verdict": VERDICT_RULE,
    }
    data: dict[str, Any] = {"rules": rules, "remarks": remarks(summary)} | _plain(asdict(summary))
    for entry, task in zip(summary.tasks, data["tasks"], strict=True):
        del task["runs"]  # they are in records.json
        task["seeds"] = [run.seed for run in entry.runs]
        task["scores"] = [run.score for run in entry.runs]
        task["best"] = [run.best for run in entry.runs]
    return data


def _plain(value: Any) -> Any:
    """Return a value with arrays as lists, for JSON."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
