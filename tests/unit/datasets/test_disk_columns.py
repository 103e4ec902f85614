"""Columns on disk: the same numbers, and a bounded part of them in memory."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.core.errors import UserError
from rl_training.datasets import disk_columns
from rl_training.datasets.builder import collected
from rl_training.datasets.disk_columns import ColumnStore, DiskColumn
from rl_training.datasets.recording import Episode, Recording

MIB = 2**20


def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def recording_of(episodes, width):
    def made():
        for number in range(episodes):
            rng = np.random.default_rng(number)
            last = np.arange(100) == 99
            obs = rng.standard_normal((101, width), np.float32)
            yield Episode({"": obs}, rng.integers(0, 2, 100), rng.standard_normal(100), last, ~last & last)

    space = spaces.Box(-np.inf, np.inf, (width,))
    return Recording("made", space, spaces.Discrete(2), 100 * episodes, episodes, made)


@pytest.mark.parametrize("limit", [0, 6_000])
def test_the_numbers_are_the_same(limit):
    inside, outside = (collected(recording_of(5, 7), limit) for limit in (None, limit))
    assert not isinstance(inside.obs, DiskColumn)
    assert isinstance(outside.obs, DiskColumn)
    assert outside.digest == inside.digest
    rows = np.array([3, 499, 3, 44, 45, -1])
    assert type(outside.observations(rows)) is np.ndarray
    assert np.array_equal(outside.observations(rows), inside.observations(rows))
    assert torch.equal(torch.from_numpy(outside.actions[rows]), torch.from_numpy(inside.actions[rows]))
    assert np.array_equal(outside.returns(), inside.returns())
    assert isinstance(outside.actions, DiskColumn) == (limit == 0)
    for index in (
        slice(3, 9),
        slice(None, None, 50),
        7,
        -1,
        np.array([[1, 2], [3, 0]]),
        inside.obs[:, 0] > 1,
    ):
        assert np.array_equal(outside.obs[index], inside.obs[index])
    assert np.array_equal(np.asarray(outside.obs), inside.obs)
    with pytest.raises(IndexError):
        outside.obs[np.array([505])]


def what_becomes_resident(limit):
    """Return how much memory grows at most while sampling from a dataset on disk, and once all of it is in memory."""
    dataset = collected(recording_of(400, 512), limit)  # 80 MiB
    assert dataset.nbytes >= 4 * limit
    before, most, rng = resident(), 0, np.random.default_rng(0)
    for _ in range(300):
        rows = rng.integers(0, len(dataset.obs), 256)
        dataset.observations(rows)
        most = max(most, resident() - before)
    whole = np.asarray(dataset.obs)
    return most, resident() - before, len(whole) == len(dataset.obs)


def test_what_is_resident_stays_bounded_while_sampling_at_random():
    limit = 16 * MIB
    # in a new process: this one may have memory that it has freed and would use again
    program = f"import test_disk_columns as own; print(*own.what_becomes_resident({limit}))"
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sampling, in_memory, complete = done.stdout.split()
    assert int(sampling) < limit // 4  # one batch, and what the allocator keeps
    assert int(in_memory) > 4 * limit  # the measure sees what is in memory
    assert complete == "True"


def test_a_full_disk_is_an_error(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk_columns.os, "posix_fallocate", full)
    with pytest.raises(UserError, match=r"needs 800 more bytes in .*: No space left on device; .*TMPDIR"):
        ColumnStore(10).allocate((100,), np.float64)
