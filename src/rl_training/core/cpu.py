"""The number of processor cores that this process may use."""

import os
from pathlib import Path

CGROUP_CPU = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int:
    """Return the number of cores that the process's affinity and its container's quota allow."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    try:
        quota, period = CGROUP_CPU.read_text(encoding="utf-8").split()
        return min(cores, max(int(quota) // int(period), 1))
    except (OSError, ValueError, ZeroDivisionError):  # no quota
        return cores
