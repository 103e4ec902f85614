"""Environments in processes of their own, with faults that name the worker."""

import warnings
from collections.abc import Iterable
from typing import Any

from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from rl_training.core.errors import EnvironmentFault

LOST_CONNECTION = (EOFError, ConnectionResetError, BrokenPipeError)


class WorkerVectorEnv(AsyncVectorEnv[Any, Any]):
    """Gymnasium's async vector environment, except that a fault is one sentence instead of a page per worker."""

    def step_async(self, actions: Any) -> None:
        """Send the actions."""
        try:
            super().step_async(actions)
        except LOST_CONNECTION as error:
            raise self._dead_worker() from error

    def step_wait(self, timeout: float | None = None) -> Any:
        """Receive what came of them."""
        try:
            return super().step_wait(timeout)
        except LOST_CONNECTION as error:
            raise self._dead_worker() from error

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close the workers; if one is dead or a call is pending, nobody is asked: all are terminated."""
        if self._state is AsyncState.DEFAULT and all(process.is_alive() for process in self.processes):
            super().close_extras(timeout, terminate)
            return
        for process in self.processes:
            process.terminate()
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

    def _dead_worker(self) -> EnvironmentFault:
        for index, process in enumerate(self.processes):
            process.join(timeout=1.0)
            if not process.is_alive():
                return EnvironmentFault(
                    f"the worker of environment {index} died (exit code {process.exitcode})"
                )
        return EnvironmentFault("the connection to an environment's worker was lost")
