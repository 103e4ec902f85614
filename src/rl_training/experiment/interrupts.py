"""Signals and the clock: both pause a run at the next update boundary, or at once where nothing can be lost."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from rl_training.core.types import Progress, UpdateResult
from rl_training.runtime.callbacks import Callback, PauseTraining

T = TypeVar("T")
MAX_ALARM = 1e8
"""Three years: more seconds than that some systems do not count."""


class _StopNow(KeyboardInterrupt):
    """Raised out of a signal handler into whatever runs; not an Exception, so that no environment swallows it."""


class Interrupts(Callback):
    """While it is entered, the first SIGINT or SIGTERM asks the run to pause; a second SIGINT ends it at once.

    The wish is acknowledged on the error stream when it comes, and granted after the current update; inside of
    `interruptible`, immediately. `max_time` counts from when it is entered. Outside of the main thread there are no
    signals, and the clock is looked at between updates only.
    """

    def __init__(self, max_time: float | None = None) -> None:
        self.max_time = max_time
        self.received: int | None = None
        self.reason: str | None = None
        self._at_once = False
        self._before: dict[int, Any] = {}

    def on_collect(self, progress: Progress) -> None:
        """Ask for the pause; the trainer finishes its update first."""
        if self.reason is not None:
            raise PauseTraining(self.reason)

    def on_update(self, progress: Progress, result: UpdateResult) -> None:
        """Ask for it if the wish came during the update."""
        self.on_collect(progress)

    def interruptible(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, or raise PauseTraining as soon as a pause is asked for.

        For evaluations, resets and replays: they may take for ever, and can be begun again.
        """
        try:
            self._at_once = True
            if self.reason is not None:
                raise _StopNow
            result = work()
            self._at_once = False  # inside of the try: a signal between two lines is caught as well
            return result
        except _StopNow:
            raise PauseTraining(str(self.reason)) from None
        finally:
            self._at_once = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._before[signum] = signal.signal(signum, self._signalled)
            if self.max_time is not None and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
                self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._rung)
                signal.setitimer(signal.ITIMER_REAL, min(self.max_time, MAX_ALARM))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if signal.SIGALRM in self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _signalled(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGINT and self.received is not None:
            raise KeyboardInterrupt
        if self.received is None:
            self.received = signum
            then = (
                "stopping" if self._at_once else "a checkpoint follows the update; Ctrl-C again stops at once"
            )
            with contextlib.suppress(OSError):  # not by print, which the handler may have interrupted
                os.write(2, f"\n{signal.Signals(signum).name}: {then}\n".encode())
        self._ask(f"received {signal.Signals(signum).name}")

    def _rung(self, signum: int, frame: FrameType | None) -> None:
        self._ask(f"time limit of {self.max_time:g} s reached")

    def _ask(self, reason: str) -> None:
        self.reason = self.reason or reason
        if self._at_once:
            self._at_once = False
            raise _StopNow
