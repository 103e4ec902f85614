"""A crew of processes on this machine. Steps and parameters are in shared memory; only short messages are sent."""

import contextlib
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.reduction import send_handle
from typing import Any

import numpy as np

from rl_training.core.errors import UserError, reason
from rl_training.core.messages import decode, encode, encode_code
from rl_training.core.processes import has_ended, wait_at_most
from rl_training.core.shares import shares
from rl_training.core.types import Array
from rl_training.runtime.crews import HostLost
from rl_training.runtime.engines.fork_server import ForkedProcess, ForkServer
from rl_training.runtime.engines.local import Layout
from rl_training.runtime.groups import MakeHost, Rollout, Start, Started, Ticket
from rl_training.runtime.shared_memory import SharedArrays

SHORT = 2**15
"""Bytes of messages that a process surely has room for before it reads: a ticket has a few hundred, a state more."""
LOOK_EVERY = 0.25
"""Seconds between looks at the heartbeats while waiting."""


class ProcessCrew:
    """Hosts in processes of their own, each with a share of the groups.

    A process that dies, or whose heartbeat stops for `seconds_to_answer` (it beats with every step), is reported as
    lost. Processes ignore SIGINT and SIGTERM, so that the run can finish its update and write a checkpoint, and end
    with the run's own process, however that ends.
    """

    def __init__(
        self,
        make_host: MakeHost,
        num_groups: int,
        num_hosts: int,
        layout: Callable[[int], Layout],
        *,
        packed_bytes: int,
        slots: int,
        seconds_to_answer: float,
        block_of: Callable[[Mapping[str, Array], Rollout], Any],
        server: ForkServer,
    ) -> None:
        """`layout` is that of the blocks of a group; a group has `slots` blocks.

        `block_of` returns the block in the columns that a rollout was recorded in. `server` forks the processes.
        """
        self.groups = [list(part) for part in shares(num_groups, num_hosts)]
        self._host_of = {group: host for host, groups in enumerate(self.groups) for group in groups}
        self._slots, self._seconds, self._block_of = slots, seconds_to_answer, block_of
        self._layout = memory_layout(
            [layout(group) for group in range(num_groups)], num_hosts, packed_bytes, slots
        )
        self._setup = encoded_setup(make_host)
        self._memory = SharedArrays(self._layout)
        self._server = server
        self._hosts: list[HostProcess | None] = [None] * num_hosts
        self._beats = self._memory["beats"]
        try:
            for host in range(num_hosts):
                self._start(host)
        except BaseException:
            self.close()
            raise

    def _start(self, host: int) -> None:
        self._beats[host] = time.monotonic()
        new = self._hosts[host] = HostProcess(self._server.fork(), self._memory.descriptor, self._seconds)
        new.send((self._setup, self.groups[host], host, self._layout, self._slots))

    def publish(self, version: int, packed: Array) -> None:
        """Write parameters into the slot of their version, then announce the version."""
        self._memory[packed_slot(version, self._slots)][:] = packed
        self._memory["newest"][0] = version

    def begin(self, group: int, start: Start) -> None:
        self._send(group, ("begin", group, start))

    def submit(self, group: int, ticket: Ticket) -> None:
        self._send(group, ("collect", group, ticket))

    def _send(self, group: int, message: tuple[Any, ...]) -> None:
        host = self._host_of[group]
        process = self._hosts[host]
        assert process is not None
        if not process.waiting:  # it had nothing to do, so its last beat is old
            self._beats[host] = max(self._beats[host], time.monotonic())
        process.send(message)

    def receive(self, timeout: float) -> Rollout | Started | HostLost | None:
        """Return the next answer; a lost host is reported at most `LOOK_EVERY` seconds late."""
        deadline = time.monotonic() + timeout
        while True:
            by_connection = {
                each.connection: host for host, each in enumerate(self._hosts) if each is not None
            }
            left = deadline - time.monotonic()
            for connection in wait(list(by_connection), max(min(left, LOOK_EVERY), 0.0)):
                answer = self._answer(by_connection[connection])  # type: ignore[index]  # one of the keys
                if answer is not None:
                    return answer
            if (lost := self._lost_host()) is not None:
                return lost
            if time.monotonic() >= deadline:
                return None

    def _answer(self, host: int) -> Rollout | Started | HostLost | None:
        process = self._hosts[host]
        assert process is not None
        try:
            answer = decode(process.connection.recv_bytes())
        except (EOFError, OSError) as error:
            if process.stopped or isinstance(error, BlockingIOError):  # in the middle of a message
                return self._silent(host)
            return self._dead(host)
        self._beats[host] = max(self._beats[host], time.monotonic())  # perhaps nobody has looked for long
        process.has_answered()
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, Rollout):
            slot = answer.number % self._slots
            columns = self._memory.under(f"block/{answer.group}/{slot}")
            return replace(answer, block=self._block_of(columns, answer))
        if isinstance(answer, Started):
            return answer
        return None  # it is built

    def _lost_host(self) -> HostLost | None:
        now = time.monotonic()
        for host, process in enumerate(self._hosts):
            if process is None:
                continue
            if has_ended(process.pid):  # something that an environment started may hold its connection
                return self._dead(host)
            if process.waiting and now - self._beats[host] > self._seconds:
                return self._silent(host)
        return None

    def _dead(self, host: int) -> HostLost:
        process, self._hosts[host] = self._hosts[host], None
        assert process is not None
        return HostLost(host, f"died ({_ending(process.kill())})")

    def _silent(self, host: int) -> HostLost:
        process, self._hosts[host] = self._hosts[host], None
        assert process is not None
        process.kill()
        return HostLost(host, f"did not answer for {self._seconds:g} s")

    def restart(self, host: int) -> None:
        self._start(host)

    def close(self) -> None:
        """End all processes, which close their environments; nothing that matters is lost with them."""
        self._memory["closing"][0] = 1
        hosts = [process for process in self._hosts if process is not None]
        for process in hosts:
            shutdown(process.connection.fileno())
        self._server.end([process.forked for process in hosts])
        for process in hosts:
            process.connection.close()
        self._hosts = []
        self._memory.close()


class HostProcess:
    """A process that hosts groups.

    It reads a message only after it has sent its last answer, and this process reads that answer only between its own
    messages. So messages wait while those that it has not answered are long: otherwise each could wait for the other.
    """

    def __init__(self, process: ForkedProcess, memory: int, seconds: float) -> None:
        """If it is stopped in the middle of a message, this process waits at most `seconds` for it."""
        self.forked, self.connection = process, process.connection
        self._outbox: deque[bytes] = deque()
        self._unanswered: deque[int] = deque()
        """Lengths of the messages that it has not answered."""
        self.stopped = False
        """Whether it stopped in the middle of a message to it."""
        wait_at_most(seconds, self.connection.fileno())
        with contextlib.suppress(OSError):
            send_handle(self.connection, memory, process.pid)

    @property
    def pid(self) -> int:
        return self.forked.pid

    @property
    def waiting(self) -> int:
        """Number of answers that it will send."""
        return len(self._unanswered) + len(self._outbox)

    def send(self, message: tuple[Any, ...]) -> None:
        """Send a message as soon as possible; if the process is dead, `receive` reports it."""
        self._outbox.append(encode(message))
        self._send_waiting()

    def has_answered(self) -> None:
        """Note an answer, and send what waited for it."""
        self._unanswered.popleft()
        self._send_waiting()

    def _send_waiting(self) -> None:
        while self._outbox and (
            not self._unanswered or sum(self._unanswered) + len(self._outbox[0]) <= SHORT
        ):
            self._unanswered.append(len(self._outbox[0]))
            try:
                self.connection.send_bytes(self._outbox.popleft())
            except BlockingIOError:  # the message is not complete, so no other one may follow
                self.stopped = True
                shutdown(self.connection.fileno())
            except OSError:
                pass

    def kill(self) -> int | None:
        """End the process; return its exit code, None if it is not known."""
        return self.forked.kill()


def memory_layout(blocks: Sequence[Layout], num_hosts: int, packed_bytes: int, slots: int) -> Layout:
    """Return all arrays in shared memory: heartbeats, whether the run ends, parameters, and the blocks of groups."""
    found: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
        "beats": ((num_hosts,), np.dtype(np.float64)),
        "newest": ((1,), np.dtype(np.int64)),
        "closing": ((1,), np.dtype(np.int64)),
    }
    for slot in range(slots + 1):
        found[f"packed/{slot}"] = ((packed_bytes,), np.dtype(np.uint8))
    for group, layout in enumerate(blocks):
        for slot in range(slots):
            found |= {f"block/{group}/{slot}/{name}": each for name, each in layout.items()}
    return found


def packed_slot(version: int, slots: int) -> str:
    """Return the name of the array with the parameters of a version; there is one more than a rollout may need."""
    return f"packed/{version % (slots + 1)}"


def shutdown(descriptor: int) -> None:
    """End a connection, so that nothing more is read or written."""
    with socket.socket(fileno=os.dup(descriptor)) as connection, contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def encoded_setup(make_host: MakeHost) -> bytes:
    """Return what builds a host as a message; raise an error if it cannot be sent to another process."""
    try:
        return encode_code(make_host)
    except Exception as error:
        raise UserError(
            "the environment, encoder or algorithm cannot be sent to other processes "
            f"({type(error).__name__}: {reason(error)}); use engine 'local'"
        ) from error


def _ending(code: int | None) -> str:
    if code is None:
        return "with the process that started it"
    if code < 0:
        hint = "; it may have run out of memory" if code == -signal.SIGKILL else ""
        return f"{signal.Signals(-code).name}{hint}"
    return f"exit code {code}"
