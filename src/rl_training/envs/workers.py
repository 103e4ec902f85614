"""Environments in processes of their own, with faults that name the worker."""

import contextlib
import multiprocessing
import signal
import warnings
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from rl_training.core.errors import EnvironmentFault


class WorkerVectorEnv(AsyncVectorEnv[Any, Any]):
    """Gymnasium's async vector environment, for runs that must end well.

    A fault is one sentence instead of a page per worker; a worker that dies or does not answer within
    `seconds_to_answer` is named; and workers let SIGINT and SIGTERM pass, which reach the whole process group, so that
    the main process can finish its update with them and write a checkpoint.
    """

    def __init__(self, *args: Any, seconds_to_answer: float | None = None, **kwargs: Any) -> None:
        # inherited by the workers; what arrives meanwhile is delivered to us afterwards
        with _signals_blocked():
            super().__init__(*args, **kwargs)
        self.seconds_to_answer = seconds_to_answer
        self._lost_a_worker = False
        # interpreter exit would ask daemons by SIGTERM, which they no longer hear
        self._killer = weakref.finalize(self, _kill, self.processes)

    def step_async(self, actions: Any) -> None:
        """Send the actions."""
        with self._naming_workers():
            super().step_async(actions)

    def step_wait(self, timeout: float | None = None) -> Any:
        """Receive what came of them."""
        with self._naming_workers():
            return super().step_wait(self.seconds_to_answer if timeout is None else timeout)

    def reset_wait(self, timeout: float | None = None) -> Any:
        """Receive the first observations."""
        with self._naming_workers():
            return super().reset_wait(self.seconds_to_answer if timeout is None else timeout)

    def reset_async(self, *args: Any, **kwargs: Any) -> None:
        """Ask for a reset."""
        with self._naming_workers():
            super().reset_async(*args, **kwargs)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every environment."""
        with self._naming_workers():
            super().set_attr(name, values)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every environment."""
        with self._naming_workers():
            self.call_async(name, *args, **kwargs)
            results: tuple[Any, ...] = self.call_wait(self.seconds_to_answer)
            return results

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close the workers; if one is dead or a call is pending, nobody is asked: all are terminated."""
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
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # every worker's traceback; the exception itself says what is needed
            super()._raise_if_errors(successes)

    @contextlib.contextmanager
    def _naming_workers(self) -> Iterator[None]:
        """Turn a lost connection or a silence into a fault that names the worker."""
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
                return EnvironmentFault(
                    f"the worker of environment {index} died (exit code {process.exitcode})"
                )
        return EnvironmentFault("the connection to an environment's worker was lost")

    def _silent_worker(self) -> EnvironmentFault:
        silent = [i for i, pipe in enumerate(self.parent_pipes) if pipe is None or not pipe.poll(0)]
        names = ", ".join(map(str, silent)) or "?"
        return EnvironmentFault(
            f"the worker of environment {names} did not answer for {self.seconds_to_answer:g} s"
        )


def _kill(processes: list[Any]) -> None:
    for process in processes:
        with contextlib.suppress(ValueError, AttributeError):  # closed already
            process.kill()


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
