"""Cells of CSV files: text that a spreadsheet would execute is written so that it is only shown."""

import csv
import io
import re
from collections.abc import Iterable, Mapping
from typing import Any

FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""How text begins that a spreadsheet reads as a formula."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def csv_cell(value: Any) -> Any:
    """Return a cell, with an apostrophe before text that a spreadsheet would execute.

    >>> csv_cell("=1+1"), csv_cell("-2.5"), csv_cell("ppo")
    ("'=1+1", '-2.5', 'ppo')
    """
    if not isinstance(value, str):
        return value
    if value.startswith(FORMULAS) and NUMBER.fullmatch(value) is None:
        value = f"'{value}"
    return value.replace("\r", " ")  # csv does not quote it, so it would begin a new row


def csv_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV; the keys of the first one are the columns. Missing values are empty."""
    rows, table = list(rows), io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    if rows:
        writer.writerow(map(csv_cell, rows[0]))
        writer.writerows([csv_cell(row.get(name)) for name in rows[0]] for row in rows)
    return table.getvalue()
