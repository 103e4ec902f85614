"""Exchanges between ranks on several machines, by gloo.

The group is our own: the default group of torch.distributed stays free for the user's code.
"""

import importlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import numpy as np
import torch

from rl_training.algorithms.shards import Fill
from rl_training.core.types import Array
from rl_training.experiment.learner_ranks.exchanges import LOOK_EVERY, PAUSE, SPINS, shards_of

SECONDS_TO_MEET = 10.0
"""How long ranks that are running wait for each other when they form a group."""
LATE = 120.0
"""Seconds that a rank may take longer than the others for one gradient."""


class Meeting:
    """A place where ranks find each other: a port of this machine, open as long as this object lives."""

    def __init__(self, address: str) -> None:
        """`address` is that of this machine, as other ranks reach it."""
        self.address = address
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.create_server((address, 0), family=family) as listener:
            self.port = listener.getsockname()[1]
            self._store = _gloo().TCPStore(
                address,
                self.port,
                None,
                True,
                timedelta(seconds=SECONDS_TO_MEET),
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )

    def has_all(self, ranks: int) -> bool:
        """Return whether all other ranks are there, so that `join` does not wait for them."""
        return bool(self._store.check([_arrival(rank) for rank in range(1, ranks)]))

    def join(self, ranks: int) -> Any:
        """Return the group of rank 0, when all others have come."""
        return _group(self._store, self.address, 0, ranks)


def join(meeting: tuple[str, int], address: str, rank: int, ranks: int) -> Any:
    """Return the group of a rank, when all others have come; `address` is that of its own machine."""
    seconds = timedelta(seconds=SECONDS_TO_MEET)
    store = _gloo().TCPStore(*meeting, None, False, seconds, wait_for_workers=False)
    store.set(_arrival(rank), "")
    return _group(store, address, rank, ranks)


def _arrival(rank: int) -> str:
    return f"arrival/{rank}"


def _gloo() -> Any:
    """Return torch.distributed, which not every build of torch has; its classes are not all declared as exported."""
    return importlib.import_module("torch.distributed")


def _group(store: Any, address: str, rank: int, ranks: int) -> Any:
    gloo = _gloo().ProcessGroupGloo
    options = gloo._Options()
    # by default gloo listens where the host name leads, on many machines the loopback device
    options._devices = [gloo.create_device(hostname=address)]
    options._threads = 1
    options._timeout = timedelta(seconds=SECONDS_TO_MEET)
    group = gloo(store, rank, ranks, options)
    group._set_default_timeout(timedelta(seconds=LATE))
    return group


class Abandoned:
    """A group with an exchange that has not ended.

    Its destructor would wait for the exchange, up to `LATE` seconds, if its peers are neither there nor gone. So
    `sweep` drops it later, or nobody does: a thread that sleeps keeps it from the destructors of a program that ends.
    """

    all: ClassVar[list["Abandoned"]] = []

    def __init__(self, group: Any, work: Any) -> None:
        self._held, self._work, self._over = [group, work], work, threading.Event()
        threading.Thread(target=_keep, args=(self._held, self._over), daemon=True).start()
        self.all.append(self)

    @classmethod
    def sweep(cls) -> None:
        """Drop the groups whose exchanges have ended."""
        for each in list(cls.all):
            if each._work.is_completed():
                cls.all.remove(each)
                each._held.clear()
                each._over.set()


def _keep(held: list[Any], over: threading.Event) -> None:
    over.wait()
    assert not held, "whoever ends the wait has emptied the list, as the destructor must not run here"


class GlooExchange:
    """Exchanges rows with the other ranks of a group. The shards of a rank are fixed: see `shards_of`.

    If the group is lost, a rank raises an error; but one that was given `problem` computes all shards itself from then
    on, and says why in `failure`.
    """

    def __init__(self, count: int, group: Any, problem: Callable[[float], str | None] | None = None) -> None:
        """`problem(seconds)` says why the others should not be waited for any longer, None to go on."""
        self.count, self._problem = count, problem
        self.failure: str | None = None
        self._group, self._rank, self._ranks = group, group.rank(), group.size()
        self._work: Any = None
        """The exchange that is going on."""
        self._rows = dict[tuple[int, np.dtype[Any]], tuple[Array, Array]]()

    def begin(self, sequence: int, shards: Sequence[int]) -> None:
        """Do nothing: shards are fixed."""

    def leave(self) -> None:
        """Give the group up."""
        Abandoned.sweep()
        if self._work is not None and not self._work.is_completed():
            Abandoned(self._group, self._work)
        self._group = self._work = None
        self._rows = {}  # a late message may still be written there

    def complete(self, width: int, dtype: np.dtype[Any], fill: Fill) -> Array:
        own = shards_of(self._rank, self._ranks, self.count)
        sent, received = self._buffers(width, dtype)
        for place, shard in enumerate(own):
            fill(shard, sent[place])
        if self._group is not None and self._gathered(sent, received):
            return self._in_order(received)
        rows = np.empty((self.count, width), dtype)
        for shard in range(self.count):
            if shard in own:
                rows[shard] = sent[shard - own.start]
            else:
                fill(shard, rows[shard])
        return rows

    def _buffers(self, width: int, dtype: np.dtype[Any]) -> tuple[Array, Array]:
        """Return an array for own rows and one for those of every rank; all ranks send as many as the largest."""
        found = self._rows.get((width, dtype))
        if found is None:
            most = len(shards_of(0, self._ranks, self.count))
            found = np.zeros((most, width), dtype), np.zeros((self._ranks, most, width), dtype)
            self._rows = {(width, dtype): found}
        return found

    def _gathered(self, sent: Array, received: Array) -> bool:
        """Exchange rows; return whether all have arrived."""
        try:
            self._work = self._group.allgather([list(torch.from_numpy(received))], [torch.from_numpy(sent)])
            self.failure = self._waited_for(self._work)
            if self.failure is None:
                self._work.wait()
                return True
        except RuntimeError as error:
            if self._problem is None:
                raise
            self.failure = f"lost its connection ({_first_line(error)})"
        self.leave()
        return False

    def _waited_for(self, work: Any) -> str | None:
        """Wait for an exchange; return why that should end. Looks at it in turn, so that signals are handled."""
        for _ in range(SPINS):
            if work.is_completed():
                return None
        started = looked = time.monotonic()
        while not work.is_completed():
            time.sleep(PAUSE)
            now = time.monotonic()
            if self._problem is not None and now - looked > LOOK_EVERY:
                looked = now
                if (reason := self._problem(now - started)) is not None:
                    return reason
        return None

    def _in_order(self, received: Array) -> Array:
        if self.count % self._ranks == 0:
            return received.reshape(self.count, -1)
        sizes = [len(shards_of(rank, self._ranks, self.count)) for rank in range(self._ranks)]
        return np.concatenate([rows[:size] for rows, size in zip(received, sizes, strict=True)])


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    # without the line of gloo's source, and its guesses at the cause
    return text[0].partition("] ")[2].partition(". This is")[0] or text[0] if text else type(error).__name__
