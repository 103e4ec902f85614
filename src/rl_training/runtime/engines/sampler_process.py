"""A process that hosts groups: it answers the messages of a `ProcessCrew`."""

import contextlib
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

from rl_training.core.errors import EnvironmentFault, RunFault, UserError, reason
from rl_training.core.messages import decode, encode
from rl_training.runtime.engines.process import packed_slot
from rl_training.runtime.groups import Host
from rl_training.runtime.shared_memory import SharedArrays

BEAT_EVERY = 0.2
"""Seconds between heartbeats while environments are built or restored, which has no steps."""


def serve(connection: Connection) -> None:
    """Build a host and let it work until the connection closes; its errors are sent to the run."""
    with contextlib.suppress(EOFError, OSError, RunEnded), contextlib.ExitStack() as opened:
        _serve(connection, opened)


class RunEnded(BaseException):
    """The run has ended in the middle of a rollout."""


def _serve(connection: Connection, opened: contextlib.ExitStack) -> None:

    def answer(content: Any) -> None:
        connection.send_bytes(encoded(content))

    descriptor = recv_handle(connection)
    setup, groups, number, layout, slots = decode(connection.recv_bytes())
    memory = SharedArrays(layout, descriptor)
    heart = Heart(memory, number)
    try:
        with heart.beating():
            host = decode(setup)(groups, lambda group, slot: memory.under(f"block/{group}/{slot}"))
        opened.callback(host.close)
        for group in host.groups.values():
            group.sampler.stepper.step = heart.with_beat(group.sampler.stepper.step)
    except BaseException as error:
        answer(sendable(error))
        return
    answer("built")
    while True:
        kind, group, content = decode(connection.recv_bytes())
        try:
            if kind == "begin":
                with heart.beating():
                    found: Any = host.begin(group, content)
            else:
                heart.beat()
                load_parameters(host, memory, content.version, slots)
                found = replace(host.collect(group, content), block=None)  # it is in shared memory
        except RunEnded:
            raise
        except BaseException as error:
            found = sendable(error)
        heart.beat()
        answer(found)


class Heart:
    """The heartbeat of a process, in shared memory: a time that it was alive at."""

    def __init__(self, memory: SharedArrays, number: int) -> None:
        self._beats, self._number, self._closing = memory["beats"], number, memory["closing"].data

    def beat(self) -> None:
        self._beats[self._number] = time.monotonic()

    def with_beat(self, step: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return a step that beats before it is taken, and is not taken if the run has ended."""
        beats, number, closing, now = self._beats, self._number, self._closing, time.monotonic

        def beating_step(action: Any) -> None:
            if closing[0]:
                raise RunEnded
            beats[number] = now()
            step(action)

        return beating_step

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Beat from a thread while something takes long without a step."""
        done = threading.Event()

        def beat_on() -> None:
            while not done.wait(BEAT_EVERY):
                self.beat()

        self.beat()
        thread = threading.Thread(target=beat_on, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def load_parameters(host: Host, memory: SharedArrays, version: int | None, slots: int) -> None:
    """Load the parameters of a version, or the newest ones, which may be replaced while they are copied."""
    if version is not None:
        host.load(version, memory[packed_slot(version, slots)])
        return
    newest = memory["newest"]
    while True:
        wanted = int(newest[0])
        packed = memory[packed_slot(wanted, slots)].copy()
        if newest[0] - wanted < slots:
            host.load(wanted, packed)
            return


def encoded(content: Any) -> bytes:
    """Return a message; if the content cannot be sent, it is an error that says so."""
    try:
        return encode(content)
    except Exception as error:
        return encode(
            UserError(
                "callbacks with on_step want to see infos of the environments that cannot be sent to another process "
                f"({type(error).__name__}: {reason(error)}); use engine 'local'"
            )
        )


def sendable(error: BaseException) -> BaseException:
    """Return an error that another process can read; an environment's fault has its traceback as text."""
    if isinstance(error, EnvironmentFault) and error.worker_traceback is None:
        error.worker_traceback = traceback.format_exc()
    try:
        found: BaseException = decode(encode(error))
    except Exception:
        return RunFault(f"{type(error).__name__}: {reason(error)}")
    return found
