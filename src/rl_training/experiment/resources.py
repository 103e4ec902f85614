"""Memory of a run: what is available, what the run needs, and what the process keeps."""

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from gymnasium import spaces

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.spaces.layout import float_dtype, num_features, observation_leaves
from rl_training.core.types import EnvSpec

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
CGROUP_STATISTICS = ("/sys/fs/cgroup/memory.stat", "/sys/fs/cgroup/memory/memory.stat")
CGROUP_USAGES = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")
MIB = 2**20
MMAP_THRESHOLD, TRIM_THRESHOLD, TOP_PAD = -3, -1, -2
"""Parameters of glibc's `mallopt`."""
LARGE_ONE_HOTS = 10**9
"""Bytes from which the memory of one-hot encodings is reported."""
COPIES_OF_WEIGHTS = 8
"""Weights, gradients and two moments, for an actor and a critic; some algorithms have more networks."""


def available_memory() -> int | None:
    """Return the bytes that this process can still allocate, or None if unknown."""
    known = [number for number in (_meminfo(), _cgroup_memory()) if number is not None]
    return min(known, default=None)


def check_memory(needed: int, what: str, remedy: str) -> None:
    """Raise if `needed` bytes are not available; the message names `what` and the `remedy`."""
    available = available_memory()
    if available is not None and needed > available:
        raise UserError(
            f"{what} needs {size_text(needed)} of memory, but {size_text(available)} are available; {remedy}"
        )


def size_text(size: int) -> str:
    """Format a number of bytes.

    >>> size_text(168_000_000)
    '168 MB'
    """
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB")):
        if size >= unit:
            number = size / unit
            return f"{number:.1f} {name}" if number < 10 else f"{number:.0f} {name}"
    return f"{size / 1000:.0f} kB"


def report_one_hot_memory(config: TrainConfig, spec: EnvSpec, notice: Callable[[str], None]) -> None:
    """Report the memory of one-hot encoded observations if it is large; raise if it is not available.

    Buffers store categories as integers. An update one-hot encodes its rows, and the first layer has weights for every
    entry. That layer is counted only if the observation goes into it directly.
    """
    read = [space for space in (spec.observation_space, spec.critic_space) if space is not None]
    leaves = [leaf for space in read for leaf in observation_leaves(space).values()]
    if not any(isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) for leaf in leaves):
        return
    numbers, settings = sum(num_features(space) for space in read), config.algorithm
    per_row = numbers * np.dtype(float_dtype()).itemsize
    rows, remedy = settings.rows_at_once(config.num_envs)
    update, layers = rows * per_row, 0
    if settings.encoder in ("auto", "flat"):
        width = next(iter(getattr(settings, "hidden_sizes", ())), 0)
        layers = COPIES_OF_WEIGHTS * width * per_row
    if update + layers < LARGE_ONE_HOTS:
        return
    check_memory(
        update + layers,
        f"one-hot encoding observations of {numbers:,} numbers",
        f"{remedy}, or use a wrapper that shows other numbers, such as coordinates",
    )
    weights = f", and the first layers of the networks about {size_text(layers)}" if layers else ""
    notice(
        f"observations become {numbers:,} numbers, because categories are one-hot encoded: an update needs about "
        f"{size_text(update)} of memory for them{weights}"
    )


def keep_freed_memory() -> bool:
    """Let the process keep up to 512 MiB of freed memory; return whether this is supported.

    By default glibc returns large blocks to the system, depending on what was freed before. An update of a CNN then
    causes up to 3,000 page faults. Results do not change.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    wanted = {MMAP_THRESHOLD: 32 * MIB, TRIM_THRESHOLD: 512 * MIB, TOP_PAD: 64 * MIB}
    return all(bool(mallopt(name, value)) for name, value in wanted.items())


def _meminfo() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return None


def _cgroup_memory() -> int | None:
    limit, usage = _first_number(CGROUP_LIMITS), _first_number(CGROUP_USAGES)
    return None if limit is None or usage is None else max(limit - usage + _reclaimable(), 0)


def _reclaimable() -> int:
    """Return the bytes of file cache that a container counts as used but can free."""
    for path in CGROUP_STATISTICS:
        try:
            words = Path(path).read_text().split()
            numbers = dict(zip(words[::2], words[1::2], strict=True))
            return int(numbers.get("total_inactive_file", numbers["inactive_file"]))
        except (OSError, ValueError, KeyError):
            continue
    return 0


def _first_number(paths: tuple[str, ...]) -> int | None:
    for path in paths:
        try:
            return int(Path(path).read_text())
        except (OSError, ValueError):  # missing, or "max": no limit
            continue
    return None
