"""Progress display of a run: a live display in a terminal, plain lines elsewhere."""

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, Literal, TextIO

from rl_training.core.errors import UserError, readable
from rl_training.core.types import Progress, UpdateResult
from rl_training.runtime.callbacks import Callback

TABLE_ROWS = (
    ("rollout/ep_rew_mean", "return, last 100 episodes", ".1f"),
    ("rollout/ep_len_mean", "episode length", ".1f"),
    ("eval/mean_reward", "evaluation return", ".1f"),
    ("rollout/success_rate", "success, last 100 episodes", ".0%"),
    ("eval/success_rate", "evaluation success", ".0%"),
    ("eval/win_rate", "evaluation games won", ".0%"),
    ("eval/draw_rate", "evaluation games drawn", ".0%"),
    ("time/fps", "steps per second", ",.0f"),
    ("train/loss", "loss", ".3g"),
    ("train/critic_loss", "critic loss", ".3g"),
    ("train/actor_loss", "actor loss", ".3g"),
    ("train/ent_coef", "entropy weight", ".3g"),
    ("rollout/exploration_rate", "random actions", ".2f"),
    ("train/entropy_loss", "entropy loss", ".3g"),
    ("train/approx_kl", "approximate KL", ".2g"),
    ("train/explained_variance", "explained variance", ".2f"),
    ("train/learning_rate", "learning rate", ".2g"),
)


class Console(Callback):
    """Base class, both a logger (rows of metrics) and a callback (progress); shows nothing.

    Rows may be minutes apart. Between them, subclasses show steps, speed and recent episodes.
    """

    _begun, _begun_at = 0.0, 0

    def start(self, progress: Progress, recent: Callable[[], dict[str, float]] = dict) -> None:
        """Called before the first step; `recent` returns means over the last episodes under their metric names."""
        self._recent, self._begun, self._begun_at = recent, time.monotonic(), progress.clock

    def _between_rows(self, progress: Progress) -> dict[str, float]:
        """Return the metrics that are known without a row."""
        seconds = max(time.monotonic() - self._begun, 1e-9)
        return self._recent() | {"time/fps": (progress.clock - self._begun_at) / seconds}

    def on_update(self, progress: Progress, result: UpdateResult) -> None:
        """Show the progress of a run that collects nothing."""
        if progress.counts_updates:
            self.on_collect(progress)

    @property
    def shows_notices(self) -> bool:
        """Whether it is worth finding out what to note."""
        return type(self).notice is not Console.notice

    def notice(self, text: str) -> None:
        """Show a note before the run."""

    def log(self, metrics: dict[str, float], clock: int) -> None:
        """Show a new row."""

    def close(self) -> None:
        """Called after the last row."""


class PlainConsole(Console):
    """Prints one line per evaluation, and one every few seconds in between."""

    def __init__(self, stream: TextIO | None = None, seconds_between_lines: float = 5.0) -> None:
        self.stream = stream or sys.stdout
        self.seconds_between_lines = seconds_between_lines
        self._last_line = 0.0
        self._total, self._unit = 0, "steps"
        self._no_room = False

    def start(self, progress: Progress, recent: Callable[[], dict[str, float]] = dict) -> None:
        super().start(progress, recent)
        self._total, self._unit = progress.total, progress.unit
        self._last_line = time.monotonic()

    def notice(self, text: str) -> None:
        self._print(f"note: {readable(text)}")

    def on_collect(self, progress: Progress) -> None:
        """Print a line if there has been none for some seconds."""
        if self._is_due() and not progress.done:  # the end has its own row
            self._line(self._between_rows(progress), progress.clock)

    def log(self, metrics: dict[str, float], clock: int) -> None:
        if "eval/mean_reward" in metrics or self._is_due():
            self._line(metrics, clock)

    def _is_due(self) -> bool:
        return time.monotonic() >= self._last_line + self.seconds_between_lines

    def _line(self, metrics: dict[str, float], clock: int) -> None:
        self._last_line = time.monotonic()
        rate = metrics.get("time/fps", 0.0)
        parts = [f"{clock:>9,} / {self._total:,} {self._unit}", f"{rate:,.0f}/s"]
        if rate > 0:
            parts.append(f"{duration(max(self._total - clock, 0) / rate)} left")
        if "rollout/ep_rew_mean" in metrics:
            parts.append(f"return {metrics['rollout/ep_rew_mean']:.1f}")
        if "eval/mean_reward" in metrics:
            parts.append(f"evaluation {metrics['eval/mean_reward']:.1f} ± {metrics['eval/std_reward']:.1f}")
        if "eval/win_rate" in metrics:
            parts.append(f"won {metrics['eval/win_rate']:.0%}, drawn {metrics['eval/draw_rate']:.0%}")
        self._print("  ".join(parts))

    def _print(self, line: str) -> None:
        """Print a line; a full disk ends the output, not the run."""
        if self._no_room:
            return
        try:
            print(line, file=self.stream, flush=True)
        except BrokenPipeError:
            raise
        except OSError as error:
            self._no_room = True
            warnings.warn(f"progress is no longer printed: {error.strerror}", stacklevel=3)


class RichConsole(Console):
    """Shows a progress bar with the time left and a small table."""

    def __init__(self) -> None:
        from rich.live import Live
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("training"), BarColumn(bar_width=30), MofNCompleteColumn(), TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        )  # fmt: skip
        self._live = Live(self._render({}), refresh_per_second=8)
        self._metrics: dict[str, float] = {}
        self._task: Any = None
        self._shown = 0.0

    def start(self, progress: Progress, recent: Callable[[], dict[str, float]] = dict) -> None:
        super().start(progress, recent)
        if self._task is None:  # a restart keeps the bar
            self._task = self._bar.add_task("training", total=progress.total, unit=progress.unit)
        self._bar.update(self._task, completed=progress.clock)
        self._live.start()

    def notice(self, text: str) -> None:
        self._live.console.print(f"note: {readable(text)}", markup=False)

    def on_collect(self, progress: Progress) -> None:
        """Update the bar, and the table once per second."""
        self._bar.update(self._task, completed=min(progress.clock, progress.total))
        if time.monotonic() >= self._shown + 1.0:
            self.log(self._between_rows(progress), progress.clock)

    def log(self, metrics: dict[str, float], clock: int) -> None:
        """Update the table; values of earlier rows stay until they are replaced."""
        self._shown = time.monotonic()
        self._metrics |= metrics
        self._live.update(self._render(self._metrics))

    def close(self) -> None:
        """Stop the display; its last state stays on the screen."""
        self._live.stop()

    def _render(self, metrics: dict[str, float]) -> Any:
        from rich.console import Group
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        for name, label, form in TABLE_ROWS:
            if name in metrics:
                table.add_row(label, f"[bold]{metrics[name]:{form}}[/]")
        return Group(self._bar, table)


def make_console(quiet: bool) -> Console:
    """Return the console that suits standard output."""
    if quiet:
        return Console()
    return RichConsole() if _draws() else PlainConsole()


def python_console(progress: bool | Literal["auto"]) -> Console:
    """Return the console for `learn(progress=...)`; `auto` shows a bar in terminals and notebooks, else nothing."""
    if progress not in (True, False, "auto"):
        raise UserError(f"progress is {progress!r}; use True, False or 'auto'")
    if progress == "auto":
        return RichConsole() if _draws() else Console()
    return make_console(quiet=not progress)


def _draws() -> bool:
    """Return whether a bar can be drawn: in a terminal or a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return sys.stdout.isatty() or type(shell).__name__ == "ZMQInteractiveShell"


def duration(seconds: float) -> str:
    """Format seconds as 1:05 or 2:00:00."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
