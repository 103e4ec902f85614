"""Functions for processes that a run starts: they leave signals to the run, and end with it."""

import contextlib
import ctypes
import json
import math
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path


def end_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent ends; only on Linux.

    End it now if the id of the parent is given and that process has ended already.
    """
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from rl_training.core.processes import end_with_parent; end_with_parent(int(sys.argv[2])); "
    "from {module} import main; main(sys.argv[2:])"
)
"""What a new process runs: it ends with this one, and imports from the same folders."""


def new_interpreter(module: str, *arguments: object) -> list[str]:
    """Return the command of a new process that calls `main` of a module with the id of this one and the arguments."""
    path = json.dumps(
        [folder for folder in sys.path if isinstance(folder, str)]
    )  # imports skip all other entries
    return [
        sys.executable,
        "-P",
        "-c",
        BOOT.format(module=module),
        path,
        str(os.getpid()),
        *map(str, arguments),
    ]


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Block SIGINT and SIGTERM; processes started meanwhile inherit that, and this one receives them afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def adopt_orphans() -> None:
    """Become the parent of processes below this one whose own parents die; only on Linux."""
    if sys.platform == "linux":
        set_child_subreaper = 36  # PR_SET_CHILD_SUBREAPER
        ctypes.CDLL(None).prctl(set_child_subreaper, 1)


def children() -> list[int]:
    """Return the processes that the main thread of this one is the parent of; only on Linux."""
    with contextlib.suppress(OSError):
        path = Path(f"/proc/self/task/{os.getpid()}/children")
        return [int(word) for word in path.read_text(encoding="ascii").split()]
    return []


def has_ended(process_id: int) -> bool:
    """Return whether a process has ended, although its parent has not waited for it yet; only on Linux."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return sys.platform == "linux"
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in "ZX"


def wait_at_most(seconds: float, descriptor: int) -> None:
    """Let reading and writing a socket raise `BlockingIOError` after some seconds without progress."""
    fraction, whole = math.modf(seconds)
    limit = struct.pack("@ll", int(whole), max(int(fraction * 1e6), 1))
    with socket.socket(fileno=os.dup(descriptor)) as options:
        for name in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            options.setsockopt(socket.SOL_SOCKET, name, limit)
