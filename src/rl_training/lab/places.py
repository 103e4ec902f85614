"""Places where a launch runs its jobs. This module has the processes of this machine; `ray_place` has a Ray cluster."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

CHILD = ("-P", "-m", "rl_training.cli.child")
"""Command of a job, in a new process: a fork would copy the locks of torch's threads."""
OUTPUT, ERRORS = "output.txt", "errors.txt"
"""Files in a job's folder with the output of its process."""


@dataclass(frozen=True)
class Lost:
    """A worker disappeared: its process or its machine died, and the job can continue from its last checkpoint."""

    reason: str


@dataclass(frozen=True)
class Refused:
    """A worker could not start its command, and would not elsewhere."""

    reason: str


class Worker(Protocol):
    """Runs the command of one job."""

    def poll(self) -> int | Lost | Refused | None:
        """Return the exit code of the command, or what became of the worker; None while it runs."""
        ...

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the command."""
        ...

    def wait(self) -> None:
        """Wait until the command has ended."""
        ...


class Place(Protocol):
    """Starts workers."""

    def slots(self) -> int:
        """Return how many jobs can run at a time now."""
        ...

    def start(self, command: Sequence[str], home: Path, slot: int) -> Worker:
        """Run a command of `rl-training`, with its output in files of the job's folder `home`."""
        ...

    def close(self) -> None:
        """Release what the place holds; all workers have ended."""
        ...


class LocalWorker:
    """A process of this machine."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def poll(self) -> int | Lost | Refused | None:
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> None:
        self._process.wait()


class LocalPlace:
    """Runs each job in its own process, pinned to its share of the cores."""

    def __init__(self, processes: int) -> None:
        self._processes = processes

    def slots(self) -> int:
        return self._processes

    def start(self, command: Sequence[str], home: Path, slot: int) -> Worker:
        cores = ",".join(str(core) for core in share_of_cores(slot, self._processes))
        with (home / OUTPUT).open("wb") as out, (home / ERRORS).open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, *CHILD, str(os.getpid()), cores, *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                process_group=0,  # Ctrl-C reaches only the launcher, which sends SIGTERM
            )
        return LocalWorker(process)

    def close(self) -> None:
        """There is nothing to release."""


def share_of_cores(slot: int, processes: int) -> list[int]:
    """Return the cores of one process: equal shares, or one core each in turn if there are too few."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))
    return cores[slot::processes] or [cores[slot % len(cores)]]
