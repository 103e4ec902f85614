"""A process that has imported its modules, and forks processes that need not import them again.

A new interpreter takes seconds to import torch, a fork a few milliseconds. Only a process without threads may fork, so
the run itself cannot. All processes end with the one that started them: the kernel kills the fork server with the run,
and its forks with the fork server. Processes that a fork has started, such as simulators, are killed if it dies, but
not if the fork server is killed.
"""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from rl_training.core.errors import RunFault
from rl_training.core.messages import decode, encode
from rl_training.core.processes import (
    adopt_orphans,
    children,
    end_with_parent,
    new_interpreter,
    signals_blocked,
)

SECONDS_TO_START = 120.0
SECONDS_TO_ANSWER = 20.0
SECONDS_TO_END = 3.0
"""Seconds that processes may take to end by themselves."""
ATTEMPTS, ATTEMPTS_IF_KILLED = 2, 6
"""How often a fork is tried; more often if a signal killed the fork server every time."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class ForkServer:
    """Forks processes that call `module:function(connection)`. It starts at once and imports meanwhile.

    The processes ignore SIGINT and SIGTERM, and have the working folder, the environment variables and the module path
    that this process has when they are forked.
    """

    def __init__(self, module: str, function: str) -> None:
        self._target = module, function
        self._start()

    def _start(self) -> None:
        ours, theirs = Pipe()
        command = new_interpreter(__name__, theirs.fileno(), *self._target)
        try:
            with theirs, signals_blocked():
                self.process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=os.environ | ONE_THREAD
                )
        except OSError as error:
            ours.close()
            raise RunFault(f"no process can be started: {error}") from error
        self._connection: Connection = ours
        self._ready = False

    def fork(self) -> "ForkedProcess":
        """Return a new process; if the fork server has died or hangs, another one is started."""
        for attempt in range(1, ATTEMPTS_IF_KILLED + 1):
            ours, theirs = Pipe()
            try:
                process_id = self._ask("fork", theirs.fileno())
                assert process_id is not None
                if process_id < 0:
                    ours.close()
                    raise RunFault(
                        f"no process can be started: {os.strerror(-process_id)}; use fewer num_samplers, or raise the "
                        "limits on processes and memory"
                    )
                return ForkedProcess(self, process_id, ours)
            except (EOFError, OSError) as error:
                ours.close()
                hangs = isinstance(error, TimeoutError)
                code = None if hangs else self._exit_code()
                killed = code is not None and code < 0
                if attempt >= (ATTEMPTS_IF_KILLED if killed else ATTEMPTS):
                    told = error if hangs else _ending(code)
                    raise RunFault(f"no process can be started: {told}") from error
                self.close()
                self._start()
            finally:
                theirs.close()
        raise AssertionError("unreachable")

    def _exit_code(self) -> int | None:
        """Return the exit code of the fork server; None if it has not ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(timeout=1.0)
        return None

    def kill(self, process_id: int) -> int | None:
        """Kill a process; return its exit code, None if it is not known."""
        try:
            return self._ask("kill", process_id)
        except (EOFError, OSError):  # it ended together with the fork server
            return None

    def end(self, processes: Sequence["ForkedProcess"]) -> None:
        """Wait until processes have ended, which know that they shall; kill those that take too long."""
        numbers = [each.pid for each in processes if each.parent is self.process]
        with contextlib.suppress(EOFError, OSError):
            self._ask("end", numbers)

    def _ask(self, request: str, number: Any) -> int | None:
        surroundings = (os.getcwd(), dict(os.environ) | ONE_THREAD, sys.path) if request == "fork" else ()
        self._connection.send_bytes(encode((request, number, surroundings)))
        if request == "fork":
            send_handle(self._connection, number, self.process.pid)
        if not self._connection.poll(SECONDS_TO_ANSWER if self._ready else SECONDS_TO_START):
            self.close()
            raise TimeoutError("the fork server does not answer")
        answer: int | None = decode(self._connection.recv_bytes())
        self._ready = True
        return answer

    def close(self) -> None:
        """End the fork server and all processes that it forked."""
        with contextlib.suppress(OSError):
            self._connection.close()
        self.process.kill()
        self.process.wait()


def _ending(code: int | None) -> str:
    if code is None:
        return "the fork server closed its connection"
    return f"the fork server ended with exit code {code}"


class ForkedProcess:
    """A process of a fork server, and the connection to it."""

    def __init__(self, server: ForkServer, process_id: int, connection: Connection) -> None:
        self._server, self.pid, self.connection = server, process_id, connection
        self.parent = server.process

    def kill(self) -> int | None:
        """Kill the process; return its exit code, None if it is not known."""
        with contextlib.suppress(OSError):
            self.connection.close()
        if (
            self._server.process is not self.parent
        ):  # it ended with it, and its number may be that of another one
            return None
        return self._server.kill(self.pid)


def main(arguments: Sequence[str]) -> None:
    """Fork and kill processes as asked, until the connection closes: `parent descriptor module function`."""
    _, own_end, module, function = arguments
    adopt_orphans()
    forks: set[int] = set()
    connection = Connection(int(own_end))
    with contextlib.suppress(EOFError, OSError):  # the run has ended
        run = getattr(importlib.import_module(module), function)
        while True:
            request, number, surroundings = decode(connection.recv_bytes())
            answer: int | None = None
            if request == "fork":
                descriptor = recv_handle(connection)
                try:
                    answer = _fork(connection, descriptor, run, surroundings)
                    forks.add(answer)
                except OSError as error:  # a limit: the other forks go on
                    os.close(descriptor)
                    answer = -(error.errno or 1)
            else:
                ending = [number] if request == "kill" else number
                if request == "kill":
                    answer = _kill(number)
                else:
                    _end(number)
                forks.difference_update(ending)
                _kill_orphans(forks)
            connection.send_bytes(encode(answer))
    os._exit(0)


def _fork(server: Connection, descriptor: int, run: Callable[[Connection], None], surroundings: Any) -> int:
    parent = os.getpid()
    process_id = os.fork()
    if process_id:
        os.close(descriptor)
        return process_id
    try:
        end_with_parent(parent)
        adopt_orphans()  # they stay below this process until it ends, and only then go to the fork server
        _leave_signals_to_the_run()
        server.close()
        folder, variables, path = surroundings
        with contextlib.suppress(OSError):  # the folder may be gone
            os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        sys.path[:] = path
        run(Connection(descriptor))
        sys.stdout.flush()  # what environments printed
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _leave_signals_to_the_run() -> None:
    """Do nothing on SIGINT and SIGTERM. Programs that this process starts end by them, as they usually do."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def _end(process_ids: Sequence[int]) -> None:
    """Wait until children have ended, and kill those that take too long."""
    deadline = time.monotonic() + SECONDS_TO_END
    for process_id in process_ids:
        with contextlib.suppress(ChildProcessError):
            while os.waitid(os.P_PID, process_id, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.01)
        _kill(process_id)


def _kill_orphans(forks: set[int]) -> None:
    """Kill what processes that have ended had started, and what that had started."""
    while orphans := [child for child in children() if child not in forks]:
        for orphan in orphans:
            _kill(orphan)


def _kill(process_id: int) -> int | None:
    """Kill a child and return its exit code. It has not been waited for, so no other process has its number."""
    try:
        if (done := os.waitpid(process_id, os.WNOHANG))[0] == 0:
            os.kill(process_id, signal.SIGKILL)
            done = os.waitpid(process_id, 0)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(done[1])
