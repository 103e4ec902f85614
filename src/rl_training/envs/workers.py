"""Environments in worker processes, with errors that name the worker."""

import contextlib
import functools
import multiprocessing
import os
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState, _async_worker

from rl_training.core.errors import EnvironmentFault, UserError
from rl_training.core.processes import end_with_parent, signals_blocked


class WorkerVectorEnv(AsyncVectorEnv[Any, Any]):
    """Gymnasium's async vector environment with better error handling.

    An error is one message instead of a traceback per worker. A worker that dies, or does not answer within
    `seconds_to_answer`, is named. Workers ignore SIGINT and SIGTERM, so that the main process can finish its update and
    write a checkpoint. No worker outlives the main process.
    """

    def __init__(self, *args: Any, seconds_to_answer: float | None = None, **kwargs: Any) -> None:
        kwargs["worker"] = functools.partial(_mortal_worker, os.getpid())
        # workers inherit the blocked signals; the main process receives them afterwards
        with signals_blocked():
            try:
                super().__init__(*args, **kwargs)
            except OSError as error:
                _kill(getattr(self, "processes", []))  # before each of them reports a closed pipe
                raise UserError(
                    f"workers for {len(args[0])} environments cannot be started: {error.strerror}; use a smaller "
                    "num_envs, env_backend 'sync', or a higher limit (ulimit -n, ulimit -u)"
                ) from error
        self.seconds_to_answer = seconds_to_answer
        self._lost_a_worker = False
        # at interpreter exit daemons get SIGTERM, which the workers ignore
        self._killer = weakref.finalize(self, _kill, self.processes)

    def step_async(self, actions: Any) -> None:
        with self._naming_workers():
            super().step_async(actions)

    def step_wait(self, timeout: float | None = None) -> Any:
        with self._naming_workers():
            return super().step_wait(self.seconds_to_answer if timeout is None else timeout)

    def reset_wait(self, timeout: float | None = None) -> Any:
        with self._naming_workers():
            return super().reset_wait(self.seconds_to_answer if timeout is None else timeout)

    def reset_async(self, *args: Any, **kwargs: Any) -> None:
        with self._naming_workers():
            super().reset_async(*args, **kwargs)

    def set_attr(self, name: str, values: Any) -> None:
        with self._naming_workers():
            super().set_attr(name, values)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        with self._naming_workers():
            self.call_async(name, *args, **kwargs)
            results: tuple[Any, ...] = self.call_wait(self.seconds_to_answer)
            return results

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close the workers; if one is dead or a call is pending, all are killed."""
        alive = not self._lost_a_worker and all(process.is_alive() for process in self.processes)
        if self._state is AsyncState.DEFAULT and alive:
            super().close_extras(timeout, terminate=False)
            return
        _kill(self.processes)
        for pipe in self.parent_pipes:
            if pipe is not None:
                pipe.close()
        for process in self.processes:
            process.join()

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        if all(successes):
            return
        errors = [self.error_queue.get() for success in successes if not success]
        failed = sorted(errors, key=lambda entry: int(entry[0]))
        for index, *_ in failed:
            self.parent_pipes[index].close()
            self.parent_pipes[index] = None  # type: ignore[call-overload]  # as Gymnasium marks lost workers
        self._state = AsyncState.DEFAULT
        _, kind, value, text = failed[0]
        error = kind(value)
        if isinstance(error, EnvironmentFault):
            error.worker_traceback = text
        raise error

    @contextlib.contextmanager
    def _naming_workers(self) -> Iterator[None]:
        """Report a lost connection or a timeout with the number of the worker."""
        try:
            yield
        except (EOFError, ConnectionResetError, BrokenPipeError) as error:
            self._lost_a_worker = True
            raise self._dead_worker() from error
        except multiprocessing.TimeoutError as error:
            self._lost_a_worker = True
            raise self._silent_worker() from error

    def _dead_worker(self) -> EnvironmentFault:
        for index, process in enumerate(self.processes):
            process.join(timeout=1.0)
            if not process.is_alive():
                code = process.exitcode
                return EnvironmentFault(f"the worker of environment {index} died (exit code {code})")
        return EnvironmentFault("the connection to an environment's worker was lost")

    def _silent_worker(self) -> EnvironmentFault:
        silent = [i for i, pipe in enumerate(self.parent_pipes) if pipe is None or not pipe.poll(0)]
        names, seconds = ", ".join(map(str, silent)) or "?", self.seconds_to_answer
        return EnvironmentFault(f"the worker of environment {names} did not answer for {seconds:g} s")


def _mortal_worker(parent: int, *args: Any) -> None:
    """Gymnasium's worker, which the kernel kills when its parent ends.

    An ordinary worker ends when the pipe to its parent closes. But forked workers hold each other's pipes, so one that
    hangs would keep all others alive.
    """
    if sys.platform == "linux":
        forked = multiprocessing.get_start_method(allow_none=True) in (None, "fork")
        end_with_parent(parent if forked else None)
    try:
        _async_worker(*args)
    except (
        EOFError,
        BrokenPipeError,
        ConnectionResetError,
    ):  # the parent was killed: no traceback on its terminal
        os._exit(1)


def _kill(processes: list[Any]) -> None:
    for process in processes:
        with contextlib.suppress(ValueError, AttributeError):  # closed already
            process.kill()
