"""SIGINT and SIGTERM end a run at the next update boundary, with a checkpoint; a second SIGINT ends it at once."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from rl_training.core.types import Progress
from rl_training.runtime.callbacks import Callback, PauseTraining


class SignalPause(Callback):
    """While it is entered, the first signal asks the run to pause; does nothing outside the main thread."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def on_collect(self, progress: Progress) -> None:
        """Ask for the pause; the trainer finishes its update first."""
        if self.received is not None:
            raise PauseTraining(f"received {signal.Signals(self.received).name}")

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._before[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGINT and self.received is not None:
            raise KeyboardInterrupt
        self.received = self.received or signum
