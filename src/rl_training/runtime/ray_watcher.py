"""A process that ends the processes of a Ray cluster with the run that started it, even if the run was killed.

Most of them end by themselves, some processes of a lost raylet do not. It is run as a file, without the package:
`python ray_watcher.py MARK RUN`. A variable named as `VARIABLE` with the value MARK marks the processes. RUN is the
process of the run, which writes the cluster's folder to the standard input and closes it at the end.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

VARIABLE = "RL_TRAINING_RAY_CLUSTER"
GRACE = 5.0
"""Seconds to end by itself."""


def members(mark: str, folder: str, run: int) -> list[int]:
    """Return the processes of a cluster; only on Linux.

    Those that give themselves a title overwrite the mark, but keep their logs in the folder open. The run and what it
    has forked may have files open there, too.
    """
    wanted, found = f"{VARIABLE}={mark}".encode(), list[int]()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((place / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            own = int(place.name) == run or parent == run
            if wanted in (place / "environ").read_bytes().split(b"\0") or (not own and _uses(place, folder)):
                found.append(int(place.name))
    return found


def _uses(place: Path, folder: str) -> bool:
    return bool(folder) and any(
        os.readlink(file).startswith(f"{folder}/") for file in (place / "fd").iterdir()
    )


def main(mark: str, run: int) -> None:
    """Wait for the end of the run, then for that of its cluster, and kill what is left."""
    folder = sys.stdin.buffer.read().decode()
    deadline = time.monotonic() + GRACE
    while (left := members(mark, folder, run)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
