"""Signals and time limits: both pause a run after the current update, or at once during an evaluation or a reset."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Self, TypeVar

from rl_training.core.types import Progress, UpdateResult
from rl_training.runtime.callbacks import Callback, PauseTraining, TrainingContext

T = TypeVar("T")
MAX_ALARM = 1e8
"""Seconds (three years): some systems do not accept longer timers."""
LONG = 2.0
"""Seconds between a signal and its checkpoint above which the message says how long it takes."""


class _StopNow(KeyboardInterrupt):
    """Raised by a signal handler; not an Exception, so that no environment catches it."""


class Terminated(KeyboardInterrupt):
    """A command was ended by SIGTERM; `code` is the exit code that shells expect."""

    code = 128 + signal.SIGTERM


@contextlib.contextmanager
def closing_on_sigterm() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM, so that environments are closed with the processes that they have started."""

    def stop(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends the process at once
        raise Terminated("stopped by SIGTERM")

    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Interrupts(Callback):
    """Context manager: the first SIGINT or SIGTERM pauses the run, a second SIGINT stops it at once.

    A message on stderr confirms the signal. The run pauses after the current update, or immediately inside
    `interruptible`. `max_time` counts from entering the context. In other threads than the main one there are no
    signals, and the time limit is checked between updates only.
    """

    def __init__(self, max_time: float | None = None) -> None:
        self.max_time = max_time
        self.received: int | None = None
        self.reason: str | None = None
        self._at_once = False
        self._before: dict[int, Any] = {}
        self._longest, self._idle_since = 0.0, time.monotonic()
        self._began: float | None = None
        """When the current iteration began; None without collecting, where each update is one."""

    def on_start(self, context: TrainingContext) -> None:
        self._idle_since = time.monotonic()

    def on_collect(self, progress: Progress) -> None:
        """Pause if requested; the trainer finishes its update first."""
        self._began = self._idle_since
        self._measure()
        if self.reason is not None:
            raise PauseTraining(self.reason)

    def on_update(self, progress: Progress, result: UpdateResult) -> None:
        """Pause if it was requested during the update."""
        self._measure()
        if self.reason is not None:
            raise PauseTraining(self.reason)

    def on_evaluate(self, progress: Progress, summary: dict[str, Any]) -> None:
        self._idle_since = time.monotonic()

    def _measure(self) -> None:
        """Keep the longest time of collecting and updating, without evaluations."""
        now = time.monotonic()
        self._longest = max(self._longest, now - (self._idle_since if self._began is None else self._began))
        self._idle_since = now

    def interruptible(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which can be repeated; raise PauseTraining as soon as a pause is requested."""
        try:
            self._at_once = True
            if self.reason is not None:
                raise _StopNow
            result = work()
            self._at_once = False  # inside the try, so that a signal between two lines is caught
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

    def __exit__(self, *error: object) -> None:
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
                "stopping"
                if self._at_once
                else f"saving a checkpoint after this update{self._usual_time()}; Ctrl-C again stops at once"
            )
            with contextlib.suppress(OSError):  # not print, which the handler may have interrupted
                os.write(2, f"\n{signal.Signals(signum).name}: {then}\n".encode())
        self._ask(f"received {signal.Signals(signum).name}")

    def _usual_time(self) -> str:
        """Return how long collecting and updating took at most, if that is long and known."""
        seconds = self._longest
        return f", which takes up to about {seconds:.0f} s" if seconds >= LONG else ""

    def _rung(self, signum: int, frame: FrameType | None) -> None:
        self._ask(f"time limit of {self.max_time:g} s reached")

    def _ask(self, reason: str) -> None:
        self.reason = self.reason or reason
        if self._at_once:
            self._at_once = False
            raise _StopNow
