"""Reads the JSON-lines files of a run; damaged rows are skipped. Needs no torch."""

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rl_training.core.errors import UserError
from rl_training.experiment.files import open_regular

CLOCKS = ("time/total_timesteps", "timesteps", "time/iterations", "updates")
"""Where a row has its clock, first to last: a run that collects nothing has no timesteps and counts updates."""
ELAPSED = "time/time_elapsed"
TAIL = 1 << 16
"""Bytes at the end of a file that are searched for its last row; longer than usual rows."""
MAX_LOG_BYTES = 1 << 30
"""Size of a log."""
MAX_LINE_BYTES = 4 << 20
"""Size of one row: enough for 100,000 evaluation episodes."""
MAX_WHOLE_BYTES = 32 << 20
"""Size up to which all rows of a log are read: about 100,000."""
SAMPLE = 20_000
"""Rows that are read of a larger log."""
MAX_ROWS = 200_000
"""Evaluations of a run that are read."""
MAX_WARNINGS = 10
"""Damaged rows of a file that are reported one by one."""

RowCheck = Callable[[dict[str, Any]], bool]


def read_rows(path: Path, fits: RowCheck = bool) -> list[dict[str, Any]]:
    """Return the rows that `fits` accepts; others cause a warning, except an incomplete last line.

    Of a large file, `SAMPLE` rows at equal distances are read, and the last one.
    """
    if not path.exists():
        return []
    with open_regular(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > MAX_LOG_BYTES:
            raise UserError(f"{path} has {size:,} bytes; a log has at most {MAX_LOG_BYTES >> 20} MiB")
        lines = lines_of(file) if size <= MAX_WHOLE_BYTES else _some_lines(file, size)
        rows, damaged = parse_rows(lines, fits)
    if damaged and size > MAX_WHOLE_BYTES:  # their numbers are those of the sample
        warnings.warn(f"{path}: skipping damaged rows, {len(damaged):,} in a sample of the log", stacklevel=1)
        return rows
    for number in damaged[:MAX_WARNINGS]:
        warnings.warn(f"{path}: skipping damaged row {number}", stacklevel=1)
    if len(damaged) > MAX_WARNINGS:
        warnings.warn(f"{path}: skipping {len(damaged) - MAX_WARNINGS:,} more damaged rows", stacklevel=1)
    return rows


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a log; of a line that is too long for a row, only its end."""
    while line := file.readline(MAX_LINE_BYTES):
        while len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES)
        yield line


def _some_lines(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the first line, and the next whole line after each of `SAMPLE` equally spaced places."""
    end = -1
    for place in range(0, size, -(-size // SAMPLE)):
        if place <= end:  # within a line that was read already
            continue
        if place:
            file.seek(place - 1)
            file.readline(MAX_LINE_BYTES)
        yield file.readline(MAX_LINE_BYTES)
        end = file.tell()
    file.seek(max(size - TAIL, 0))
    tail = file.read(TAIL)
    last = tail[: tail.rfind(b"\n") + 1]
    if size - len(tail) + len(last) > end:
        yield last[last.rfind(b"\n", 0, -1) + 1 :]


def last_row(path: Path, fits: RowCheck = bool) -> dict[str, Any]:
    """Return the last complete row that `fits` accepts, or an empty dict; reads only the end of the file."""
    try:
        with open_regular(path) as file:
            file.seek(max(os.fstat(file.fileno()).st_size - TAIL, 0))
            lines = file.read(TAIL).splitlines(keepends=True)
    except (OSError, UserError):
        return {}
    for line in reversed(lines):
        rows, _ = parse_rows([line], fits)
        if rows:
            return rows[0]
    return {}


def end_of_last_row(path: Path) -> int:
    """Return the size of a log without an incomplete last row."""
    with open_regular(path) as file:
        place = os.fstat(file.fileno()).st_size
        while place:
            start = max(place - TAIL, 0)
            file.seek(start)
            end = file.read(place - start).rfind(b"\n")
            if end >= 0:
                return start + end + 1
            place = start
    return 0


def parse_rows(lines: Iterable[bytes], fits: RowCheck) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the rows that `fits` accepts and the numbers of the others; an incomplete last line is ignored."""
    damaged: list[int] = []
    return list(valid_rows(lines, fits, damaged)), damaged


def valid_rows(lines: Iterable[bytes], fits: RowCheck, damaged: list[int]) -> Iterator[dict[str, Any]]:
    """Yield the rows that `fits` accepts, and add the numbers of the others to `damaged`."""
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            return
        row = _row(line)
        if row is not None and fits(row):
            yield row
        else:
            damaged.append(number)


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
