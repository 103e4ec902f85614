"""Memory and CPU threads of a run: what is available, what a run needs, and how much it gets."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from gymnasium import spaces
from threadpoolctl import threadpool_limits

from rl_training.algorithms.components import image_reading
from rl_training.config import TrainConfig
from rl_training.core.cpu import usable_cores
from rl_training.core.errors import UserError
from rl_training.core.spaces.layout import float_dtype, num_features, observation_leaves
from rl_training.core.types import EnvSpec
from rl_training.experiment.building import choose_device
from rl_training.models.images import image_leaves

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
WORK_PER_THREAD = 2**27
"""Multiply-adds of the largest layer of one gradient step that justify another thread: a few milliseconds.

Measured on two virtual cores. On an idle machine, two threads halve the time of a matrix product from 256 x 256 x 256
on. On a busy one they wait for each other: an update of SAC took 30 times as long (256 wide) or 6 times (1024), one of
a Nature CNN 3 times.
"""
WORK_PER_VALUE = 128
"""Multiply-adds of a CNN's largest convolution per value of an image: 116 for Nature's, 144 for the others here."""
MAX_AUTO_THREADS = 4
"""Most threads for `num_threads: auto`; more have not been measured."""


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
    leaves = observation_leaves(spec.observation_space).values()
    if not any(isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) for leaf in leaves):
        return
    numbers, settings = num_features(spec.observation_space), config.algorithm
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


def settle_threads(config: TrainConfig, spec: EnvSpec) -> TrainConfig:
    """Return the config with `num_threads: auto` replaced by a number that suits its networks and the cores."""
    if config.num_threads != "auto":
        return config
    wanted = min(largest_layer(config, spec) // WORK_PER_THREAD, MAX_AUTO_THREADS, available_cores())
    return config.with_overrides(num_threads=max(wanted, 1))


def largest_layer(config: TrainConfig, spec: EnvSpec) -> int:
    """Return the multiply-adds of the largest layer in the forward pass of one gradient step; 0 for another device.

    Recurrent cores do not count: they process one time step after the other, a few rows each.
    """
    if choose_device(config.device).type != "cpu":
        return 0
    settings, pixels, inputs = config.algorithm, 0, num_features(spec.observation_space)
    if settings.encoder != "flat":
        reading = image_reading(settings, channels_first=config.makes_frames)
        pixels = sum(
            prod(leaf.space.shape) for leaf in image_leaves(spec.observation_space, reading).values()
        )
    if pixels or settings.encoder not in ("auto", "flat"):
        inputs = settings.features_dim
    networks = [getattr(settings, name, None) or () for name in ("hidden_sizes", "critic_hidden_sizes")]
    layers: list[int] = [a * b for widths in networks for a, b in pairwise((inputs, *widths))]
    return settings.rows_per_step(config.num_envs) * max([pixels * WORK_PER_VALUE, *layers])


@contextlib.contextmanager
def using_threads(wanted: int | Literal["auto"]) -> Iterator[None]:
    """Set the number of threads of torch and BLAS for a while; `auto` is one, until `settle_threads` replaces it."""
    before, number = torch.get_num_threads(), 1 if wanted == "auto" else wanted
    torch.set_num_threads(number)
    try:
        with threadpool_limits(number, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


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


def available_cores() -> int:
    """Return the number of cores that the machine, the container and OpenMP allow."""
    cores = usable_cores()
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return min(cores, int(first)) if first.isdecimal() and int(first) else cores


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
