"""Reads the JSON-lines files of a run; damaged rows are skipped. Needs no torch."""

import json
import os
import stat
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

CLOCKS = ("time/total_timesteps", "timesteps", "time/iterations", "updates")
"""Where a row has its clock, first to last: a run that collects nothing has no timesteps and counts updates."""
ELAPSED = "time/time_elapsed"
TAIL = 1 << 16
"""Bytes at the end of a file that are searched for its last row; longer than any row."""

RowCheck = Callable[[dict[str, Any]], bool]


def read_rows(path: Path, fits: RowCheck = bool) -> list[dict[str, Any]]:
    """Return the rows that `fits` accepts; others cause a warning, except an incomplete last line."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        rows, damaged = parse_rows(file, fits)
    for number in damaged:
        warnings.warn(f"{path}: skipping damaged row {number}", stacklevel=1)
    return rows


def last_row(path: Path, fits: RowCheck = bool) -> dict[str, Any]:
    """Return the last complete row that `fits` accepts, or an empty dict; reads only the end of the file."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return {}
        with open(path, "rb") as file:
            file.seek(max(status.st_size - TAIL, 0))
            lines = file.readlines()
    except OSError:
        return {}
    for line in reversed(lines):
        rows, _ = parse_rows([line], fits)
        if rows:
            return rows[0]
    return {}


def parse_rows(lines: Iterable[bytes], fits: RowCheck) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the rows that `fits` accepts and the numbers of the others; an incomplete last line is ignored."""
    rows: list[dict[str, Any]] = []
    damaged: list[int] = []
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            break
        row = _row(line)
        if row is not None and fits(row):
            rows.append(row)
        else:
            damaged.append(number)
    return rows, damaged


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line.decode("utf-8"))  # given bytes, json would guess the encoding
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def is_number(value: object) -> bool:
    """Return whether a value is a number and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_count(value: Any) -> int | None:
    """Return the value as an int if it is a valid count, else None."""
    return int(value) if is_number(value) and 0 <= value < 2**64 else None


def clock_of(row: dict[str, Any]) -> Any:
    """Return the timesteps or updates of a row of `metrics.jsonl` or `evaluations.jsonl`, None if it has neither."""
    return next((row[name] for name in CLOCKS if name in row), None)


def counts_updates(row: dict[str, Any]) -> bool:
    """Return whether a row counts updates, because nothing was collected."""
    return not any(name in row for name in CLOCKS[:2])


def is_metrics_row(row: dict[str, Any]) -> bool:
    """Return whether a row of `metrics.jsonl` is valid."""
    return is_number(clock_of(row)) and all(
        name.isprintable() and (value is None or is_number(value)) for name, value in row.items()
    )


def is_evaluation(row: dict[str, Any]) -> bool:
    """Return whether a row of `evaluations.jsonl` is valid."""
    returns = row.get("returns")
    return (
        is_number(clock_of(row))
        and is_number(row.get("mean_reward"))
        and isinstance(returns, list)
        and set(map(type, returns)) <= {int, float}  # faster than is_number of each
    )
