"""`rl-training export-results`: write the results of many runs as one table."""

import json
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rl_training.cli.arguments import Option, parse
from rl_training.cli.tables import json_text
from rl_training.core.csv_cells import csv_table
from rl_training.core.errors import UserError, printable
from rl_training.experiment.files import write_text
from rl_training.experiment.records.search import load_runs


@dataclass(frozen=True, kw_only=True)
class ExportResults:
    """Write a table of the runs in a folder: one row per run, with score, best and every setting.

    score is the mean return of the last tenth of a run's evaluations; best is the highest mean return of an evaluation.
    """

    folders: Annotated[tuple[str, ...], Option(positional=True, metavar="FOLDER")] = ("runs",)
    """Run folders, folders that contain runs at most four levels down, or patterns such as 'runs/ppo__*'."""
    csv: Annotated[str | None, Option(metavar="FILE")] = None
    """File to write as CSV, or - for the standard output."""
    json: Annotated[str | None, Option(metavar="FILE")] = None
    """File to write as a JSON list, or - for the standard output."""
    evaluations: bool = False
    """One row per evaluation instead of one per run, without the settings."""


def run(argv: list[str]) -> int:
    """Read the runs and write the tables."""
    flags = parse(ExportResults, argv, "rl-training export-results")
    if flags.csv is None and flags.json is None:
        raise UserError("export-results needs --csv FILE or --json FILE; - is the standard output")
    if _same(flags.csv, flags.json):
        raise UserError(f"--csv and --json both name {flags.csv}; give them different files")
    runs = load_runs(*flags.folders or ("runs",))
    rows = runs.rows(evaluations=flags.evaluations)
    for path, text in ((flags.csv, csv_text(rows)), (flags.json, json_text(rows) + "\n")):
        if path == "-":
            sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
        elif path is not None:
            _write(Path(path), text)
            print(printable(f"{path}: {len(rows)} row(s) of {len(runs)} run(s)"))
    return 0


def _same(one: str | None, other: str | None) -> bool:
    """Return whether two names are of the same file, so that the second would overwrite the first."""
    if one is None or other is None:
        return False
    return one == other or ("-" not in (one, other) and os.path.realpath(one) == os.path.realpath(other))


def csv_text(rows: list[dict[str, Any]]) -> str:
    """Return rows as CSV; lists and maps are JSON in their cell, and missing values are empty."""
    return csv_table({key: _cell(value) for key, value in row.items()} for row in rows)


def _cell(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return json.dumps(value, default=str) if isinstance(value, list | dict) else value


def _write(path: Path, text: str) -> None:
    """Replace a file atomically."""
    try:
        target = path.resolve()  # a link is kept, and its target is replaced
        if target.exists() and not target.is_file():
            raise UserError(f"{path} is not a regular file; give a file name, or - for the standard output")
        if not target.parent.is_dir():
            raise UserError(f"{path} cannot be written: there is no folder {path.parent}; create it first")
        write_text(target, text)
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path} cannot be written: {problem}") from error
