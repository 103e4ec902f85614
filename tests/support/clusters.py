"""Commands and Ray clusters in processes of their own, which leave nothing behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "RL_TRAINING_TEST"
"""An environment variable by which a test knows the processes that it started, and those that these started."""


def wait_until(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)
    return found


def marked(mark: str) -> dict[int, str]:
    """Return the processes that carry a mark: process id -> command."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def end_marked(mark: str) -> None:
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Launcher:
    """A command in a process of its own."""

    def __init__(self, *words: Any) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rl_training", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {MARK: self.mark, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            process_group=0,
        )

    def end(self, seconds: float = 300.0) -> tuple[int, str, str]:
        """Wait for its end, and for that of all that it started; return exit code, output and errors."""
        out, err = self.process.communicate(timeout=seconds)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not marked(self.mark), 30)
        assert (left := marked(self.mark)) == {}, left
        return self.process.returncode, out, err

    def kill(self) -> None:
        end_marked(self.mark)
        self.process.communicate()


TWO_NODES = """
import sys
from ray.cluster_utils import Cluster
size = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args=size)
other = cluster.add_node(**size)
print("ready", cluster.address, other.all_processes["raylet"][0].process.pid, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@dataclass(frozen=True)
class TwoNodes:
    """A cluster of two nodes with one CPU each."""

    address: str
    raylet: int
    """The process of the node that is not the head."""
