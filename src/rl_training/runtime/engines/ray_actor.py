"""The actors of a run on the nodes of a Ray cluster.

They are sent to the nodes by value and import only the standard library, so that they can report what a node lacks.
"""

import importlib
import os
import platform
import sys
from collections.abc import Sequence
from typing import Any

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class NodeActor:
    """Prepares its process, and imports what does the work. `alive` is answered by another thread than the rest."""

    def __init__(self, path: Sequence[str], folder: str) -> None:
        """`path` is the module path of the run and `folder` its working folder; what this node lacks is left out."""
        os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
        there = [entry for entry in path if os.path.exists(entry)]
        sys.path[:] = [*there, *(entry for entry in sys.path if entry not in there)]
        if os.path.isdir(folder):
            os.chdir(folder)
        self._host: Any = None
        self._asked = 0

    def _problem(self, module: str, name: str) -> str | None:
        """Create what does the work; return the text of a problem of this node, None if there is none."""
        try:
            self._host = getattr(importlib.import_module(module), name)()
        except ImportError as error:
            return f"node '{platform.node()}' cannot import {module} in {sys.executable} ({error})"
        return None

    def alive(self) -> int:
        """Return a number that changes while the process lives."""
        self._asked += 1
        return self._asked


class HostActor(NodeActor):
    """Hosts groups. `alive` and `offer` are answered by another thread than the rest, so that they never wait."""

    def build(self, module: str, parcel: bytes, groups: Sequence[int]) -> Any:
        """Build the host; return its answer, or the text of a problem of this node."""
        return self._problem(module, "RayHost") or self._host.build(parcel, groups)

    def begin(self, message: bytes) -> Any:
        return self._host.begin(message)

    def collect(self, message: bytes, version: int, packed: Any) -> Any:
        return self._host.collect(message, version, packed)

    def close(self) -> None:
        """Close the environments."""
        if self._host is not None:
            self._host.close()

    def offer(self, version: int, packed: Any) -> None:
        """Take parameters for tickets that ask for the newest ones."""
        if self._host is not None:
            self._host.offer(version, packed)

    def alive(self) -> int:
        """Return a number that changes while the host makes progress."""
        return super().alive() if self._host is None else int(self._host.heart.beats())


class LearnerActor(NodeActor):
    """Computes shards of updates."""

    def build(self, module: str, parcel: bytes) -> Any:
        """Build the learner; return its answer, or the text of a problem of this node."""
        return self._problem(module, "RayRank") or self._host.build(parcel)

    def join(self, message: bytes) -> Any:
        return self._host.join(message)

    def update(self, message: bytes, arrays: Any, state: bytes | None) -> Any:
        return self._host.update(message, arrays, state)
