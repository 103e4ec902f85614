"""How many threads a run computes with: `num_threads`, and what `auto` makes of the sizes of its networks.

Last bits may depend on the number, so it is a function of config, spaces and cores, and is settled once: what was found
is in the run's config, and whoever resumes it, on whatever machine, uses the same.
"""

import contextlib
import os
from collections.abc import Iterator
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Literal

import torch
from threadpoolctl import threadpool_limits

from rl_training.algorithms.parts import image_reading
from rl_training.config import TrainConfig
from rl_training.core.spaces import num_features
from rl_training.core.types import EnvSpec
from rl_training.experiment.building import choose_device
from rl_training.models.images import image_leaves

WORK_PER_THREAD = 2**27
"""Multiply-adds of the largest layer of one gradient step that make it worth another thread: a few milliseconds.

Measured on two virtual cores. Alone, two threads halve the time of a product from 256 x 256 x 256 on. Beside other work
they wait for each other: an update of SAC took 30 times as long (256 wide) or 6 (1024), one of a Nature CNN 3 times.
"""
WORK_PER_VALUE = 128
"""Multiply-adds of a CNN's largest convolution per value of an image: 116 in Nature's, 144 in the others here."""
MOST = 4
"""Threads that `auto` takes at most; more of them have not been measured."""
QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Where a container is told how much time it may take: microseconds, or max, in a period of microseconds."""


def settle_threads(config: TrainConfig, spec: EnvSpec) -> TrainConfig:
    """Return the config with `num_threads: auto` replaced by what suits its networks and the cores that there are."""
    if config.num_threads != "auto":
        return config
    wanted = min(largest_layer(config, spec) // WORK_PER_THREAD, MOST, available_cores())
    return config.with_overrides(num_threads=max(wanted, 1))


def largest_layer(config: TrainConfig, spec: EnvSpec) -> int:
    """Return the multiply-adds, forwards, of the largest layer of one gradient step; 0 where the CPU has none to do.

    Memories do not count: they are computed one step of time after the other, a few rows each.
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


def available_cores() -> int:
    """Return how many cores this process may use: of the machine, of its container, and of OpenMP."""
    mask = getattr(os, "sched_getaffinity", None)
    cores = len(mask(0)) if mask is not None else os.cpu_count() or 1
    return min(cores, _container_limit() or cores, _openmp_limit() or cores)


def _container_limit() -> int | None:
    try:
        quota, period = QUOTA.read_text(encoding="utf-8").split()
        return max(int(quota) // int(period), 1)
    except (OSError, ValueError, ZeroDivisionError):  # there is none
        return None


def _openmp_limit() -> int | None:
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() else None


@contextlib.contextmanager
def using_threads(wanted: int | Literal["auto"]) -> Iterator[None]:
    """Let torch and NumPy's matrix products use so many threads for a while, whatever environment variables say.

    `auto` is one, as long as it is not settled.
    """
    before, number = torch.get_num_threads(), 1 if wanted == "auto" else wanted
    torch.set_num_threads(number)
    try:
        with threadpool_limits(number, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)
