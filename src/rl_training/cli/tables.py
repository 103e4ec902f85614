"""Tables: rendered on a terminal, plain aligned lines elsewhere."""

import json
import math
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rl_training.core.errors import printable

MAX_DRAWN = 500
"""Maximum number of rendered rows, as each takes a millisecond; longer tables are printed as plain lines."""
STYLES = {"running": "cyan", "finished": "green", "stopped": "green", "failed": "red", "damaged": "red"}
STYLES |= {"abandoned": "yellow", "not a run": "dim"}


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print rows of text under their header; the columns named in `right` are numbers."""
    shown = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    if sys.stdout.isatty() and len(shown) <= MAX_DRAWN:
        _draw(header, shown, right)
        return
    widths = [max(map(len, column)) for column in zip(header, *shown, strict=True)]
    for row in [header, *shown]:
        cells = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(header, row, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())


def _draw(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in header:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*[Text(cell, style=STYLES.get(cell, "")) for cell in row])
    Console(highlight=False).print(table)


def json_text(data: Any) -> str:
    """Return data as strict JSON: NaN and infinities become null, dates become text."""
    return json.dumps(_strict(data), indent=1, default=str, allow_nan=False)


def _strict(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _strict(part) for key, part in value.items()}
    return [_strict(part) for part in value] if isinstance(value, list | tuple) else value


def number(value: float | None, form: str = ",.1f") -> str:
    """Return a number for a table, or a dash."""
    return "-" if value is None else f"{value:{form}}"


def either(value: object) -> str:
    """Return a text for a table, or a dash."""
    return "-" if value is None else str(value)


def age(moment: datetime | None) -> str:
    """Return how long ago something was, in its largest unit."""
    if moment is None:
        return "-"
    seconds = max((datetime.now(UTC) - moment).total_seconds(), 0)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"


def size(count: int) -> str:
    """Return a number of bytes in a readable unit.

    >>> size(999), size(33_000), size(7_300_000_000)
    ('999 B', '33.0 kB', '7.3 GB')
    """
    amount, units = float(count), iter(("B", "kB", "MB", "GB"))
    unit = next(units)
    for larger in units:
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
