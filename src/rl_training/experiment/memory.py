"""How much memory there is, and a refusal before it runs out."""

import os
from pathlib import Path

from rl_training.core.errors import UserError

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
CGROUP_STATISTICS = ("/sys/fs/cgroup/memory.stat", "/sys/fs/cgroup/memory/memory.stat")
CGROUP_USAGES = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")


def available_memory() -> int | None:
    """Return the bytes this process may still take, None if the system does not tell."""
    found = [_meminfo(), _cgroup()]
    known = [number for number in found if number is not None]
    return min(known) if known else None


def refuse_too_large(needed: int, what: str, remedy: str) -> None:
    """Raise if `needed` bytes are not there; `what` and `remedy` complete the sentence."""
    available = available_memory()
    if available is not None and needed > available:
        raise UserError(
            f"{what} needs {size_text(needed)} of memory, but {size_text(available)} are available; {remedy}"
        )


def size_text(size: int) -> str:
    """Return a number of bytes for people.

    >>> size_text(168_000_000)
    '168 MB'
    """
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB")):
        if size >= unit:
            number = size / unit
            return f"{number:.1f} {name}" if number < 10 else f"{number:.0f} {name}"
    return f"{size / 1000:.0f} kB"


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


def _cgroup() -> int | None:
    limit, usage = _first_number(CGROUP_LIMITS), _first_number(CGROUP_USAGES)
    return None if limit is None or usage is None else max(limit - usage + _reclaimable(), 0)


def _reclaimable() -> int:
    """Return the bytes of file cache that a container counts as used, but gives back when asked."""
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
        except (OSError, ValueError):  # not there, or "max": no limit
            continue
    return None
