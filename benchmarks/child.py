"""One measurement in a process of its own: `python benchmarks/child.py ROW SIDE ROUND [--short]` prints it as JSON.

The process imports what its side needs and nothing else, so that the most memory it ever had is that side's.
"""

import json
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from rows import LIMIT, OURS, ROWS, Growth, Race, Row, Speed, Startup

LIMIT_SECONDS = 4.0


def measured(row: Row, side: str, number: int, *, short: bool) -> dict[str, Any]:
    """Return what this side of the row says in round `number`."""
    if isinstance(row, Startup):
        started = time.perf_counter()
        subprocess.run([sys.executable, *row.commands[side]], check=True, stdout=subprocess.DEVNULL)
        return {"seconds": time.perf_counter() - started}
    if isinstance(row, Growth):
        import ours

        return ours.growth(row, _speed(row.base), side)
    if isinstance(row, Race):
        if side == OURS:
            import ours

            return ours.race(row, number + 1)
        import peers

        return peers.race(row, _speed(row.peer_row), number + 1)
    if side == LIMIT:
        import products

        return products.limit(row, 0.2 if short else LIMIT_SECONDS)
    if side == OURS or side in row.variants:
        import ours

        return ours.speed(row, side)
    import peers

    return peers.SIDES[side](row, side)


def _speed(name: str) -> Speed:
    row = ROWS[name]
    assert isinstance(row, Speed)
    return row


def peak_mib() -> float:
    """Return the most memory this process has had; of the kernel, so Linux only."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the kernel does not tell VmHWM")


def main() -> None:
    """Measure and print."""
    warnings.filterwarnings("ignore")
    name, side, number = sys.argv[1:4]
    short = "--short" in sys.argv[4:]
    row = ROWS[name].shortened() if short else ROWS[name]
    found = measured(row, side, int(number), short=short)
    print(json.dumps(found | {"peak_mib": peak_mib()}))


if __name__ == "__main__":
    main()
