"""Fixtures for tests that start Ray clusters."""

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.clusters import MARK, TWO_NODES, Launcher, TwoNodes, end_marked


@pytest.fixture
def launcher() -> Iterator[Callable[..., Launcher]]:
    started: list[Launcher] = []

    def start(*words: Any) -> Launcher:
        started.append(Launcher(*words))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.fixture
def two_nodes() -> Iterator[TwoNodes]:
    mark = uuid.uuid4().hex
    holder = subprocess.Popen(
        [sys.executable, "-c", TWO_NODES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {MARK: mark},
    )
    try:
        assert holder.stdout is not None
        words = next(
            (line for line in holder.stdout if line.startswith("ready ")), "it did not start"
        ).split()
        yield TwoNodes(words[1], int(words[2]))
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            holder.communicate(timeout=60)
        end_marked(mark)
        holder.communicate()
