"""`metrics.csv`: the rows of `metrics.jsonl` as a table."""

import csv
import io
import json
import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from rl_training.core.csv_cells import csv_cell
from rl_training.experiment.files import open_regular, replacing, unshare
from rl_training.experiment.logs.rows import (
    MAX_LINE_BYTES,
    MAX_LOG_BYTES,
    MAX_WHOLE_BYTES,
    is_metrics_row,
    last_row,
    read_rows,
)

CHUNK = 1 << 20
NUMERIC = b"0123456789.eE+-,\n"
"""What a table contains below its header."""


class CsvTable:
    """`metrics.csv`; a new column, such as the first evaluation's, is added to all rows.

    A table of few rows is created again from `log`, which is `metrics.jsonl`. Of a large one, the rows that `log` has
    are kept without parsing them.
    """

    def __init__(self, path: Path, log: Path) -> None:
        self.path = path
        self._columns: list[str] = []
        self._header = b""
        size = log.stat().st_size if log.exists() else 0
        if size <= MAX_WHOLE_BYTES:
            self._write(read_rows(log, is_metrics_row))
        elif (kept := kept_part(path, log)) is not None:
            self._columns, size = kept
            self._header = _line(self._columns)
            unshare(path)
            os.truncate(path, size)
        else:
            differs = "has other rows than" if size <= MAX_LOG_BYTES else "is not compared with"
            warnings.warn(
                f"{path} {differs} {log.name}, which is too large to create it again; it continues with new rows only, "
                f"and {log.name} has all of them",
                stacklevel=2,
            )
            self._write([])
        self._file = path.open("ab")

    def log(self, metrics: dict[str, float], timesteps: int) -> None:
        """Append a row."""
        new = [name for name in metrics if name not in self._columns]
        if new:
            self._add_columns(new)
        self._file.write(_line(metrics.get(name) for name in self._columns))
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._columns = list(dict.fromkeys(name for row in rows for name in row))
        self._header = _line(self._columns) if rows else b""
        with replacing(self.path) as file:
            file.write(self._header)
            for row in rows:
                file.write(_line(row.get(name) for name in self._columns))

    def _add_columns(self, names: Sequence[str]) -> None:
        """Rewrite the table with empty cells for the new columns; one row is in memory at a time."""
        self.close()
        with self.path.open("rb") as old, replacing(self.path) as new:
            old.seek(len(self._header))
            self._columns += names
            self._header = _line(self._columns)
            new.write(self._header)
            for line in old:
                new.write(line.rstrip(b"\n") + b"," * len(names) + b"\n")
        self._file = self.path.open("ab")


def kept_part(path: Path, log: Path) -> tuple[list[str], int] | None:
    """Return the columns of a table, and the size of the part that has the rows of `log`; None if they differ.

    The number of rows, the first and the last row and the names of the columns are compared, and all cells must be
    numbers. Both files are read once, in chunks. A log of more than `MAX_LOG_BYTES` is not read.
    """
    try:
        with open_regular(log) as rows, open_regular(path) as table:
            if os.fstat(rows.fileno()).st_size > MAX_LOG_BYTES:
                return None
            header, first_row = table.readline(MAX_LINE_BYTES), table.readline(MAX_LINE_BYTES)
            columns = next(csv.reader([header.decode("utf-8")]), [])
            first = json.loads(rows.readline(MAX_LINE_BYTES))
            count = _count_rows(rows, columns)
            size = None if count is None else _size_of(table, count, len(header))
            if size is None or _line(columns) != header or _line(map(first.get, columns)) != first_row:
                return None
            table.seek(max(size - MAX_LINE_BYTES, 0))
            last = table.read(min(size, MAX_LINE_BYTES)).splitlines(keepends=True)[-1]
    except (OSError, ValueError, AttributeError, RecursionError):  # missing or damaged
        return None
    newest = last_row(log, is_metrics_row)
    return (columns, size) if newest and _line(map(newest.get, columns)) == last else None


def _count_rows(log: BinaryIO, columns: Sequence[str]) -> int | None:
    """Return the number of rows; None if one of the columns is in none of them."""
    log.seek(0)
    missing, count, before = {json.dumps(name).encode() + b":" for name in columns}, 0, b""
    while chunk := log.read(CHUNK):
        count += chunk.count(b"\n")
        if missing:
            missing = {name for name in missing if name not in before + chunk}
            before = chunk[-MAX_NAME:]
    return None if missing else count


MAX_NAME = 1 << 12
"""Bytes of a column's name in a large table."""


def _size_of(table: BinaryIO, count: int, header: int) -> int | None:
    """Return the size of a header and `count` rows of numbers; None if there are fewer, or other cells."""
    table.seek(header)
    size, left = header, count
    while chunk := table.read(CHUNK):
        lines = chunk.count(b"\n")
        if lines >= left:
            place = -1
            for _ in range(left):
                place = chunk.index(b"\n", place + 1)
            chunk = chunk[: place + 1]
        if chunk.translate(None, NUMERIC):
            return None
        size, left = size + len(chunk), left - min(lines, left)
        if left == 0:
            return size
    return None


def _line(cells: Iterable[Any]) -> bytes:
    """Return one line of the table; numbers that are not finite become empty."""
    text = io.StringIO()
    finite = (None if isinstance(cell, float) and not math.isfinite(cell) else cell for cell in cells)
    csv.writer(text, lineterminator="\n").writerow(map(csv_cell, finite))
    return text.getvalue().encode("utf-8")
