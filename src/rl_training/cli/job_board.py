"""Progress of many runs: a live table in a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Sequence
from typing import Any

from rl_training.core.errors import printable
from rl_training.experiment.console import duration
from rl_training.lab.jobs import MAX_LOSSES, Board, JobState

SECONDS_BETWEEN_LINES = 30.0
WAITING = "waits for another process that trains this run"
WORDS = {"waiting": WAITING, "training": "started", "failed": "FAILED"}
"""How a line calls a status, if not by its name."""
SHOWN = 30
"""Rows of a live table; further jobs are counted."""


def make_board() -> Board:
    """Return a live table for a terminal, plain lines otherwise."""
    return LiveBoard() if sys.stdout.isatty() else PlainBoard()


class PlainBoard(Board):
    """A line for every event, and one per running job every half minute."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def event(self, state: JobState) -> None:
        if state.earlier and state.status == "finished":
            return  # there may be many; they are counted at the end
        details = [state.error] if state.error else _details(state)
        if state.status in ("waiting", "training"):
            details = [f"resumed after {state.steps:,} {state.job.config.unit}"] if state.steps else []
        words = WORDS.get(state.status, state.status) + (" earlier" if state.earlier else "")
        if loss := _loss(state):
            words, details = loss, []
        print(printable(f"{state.job}: {', '.join([words, *details])}"), flush=True)

    def show(self, states: Sequence[JobState]) -> None:
        """Print the running jobs, if half a minute has passed."""
        if time.monotonic() < self._last + SECONDS_BETWEEN_LINES:
            return
        self._last = time.monotonic()
        for state in states:
            if state.status == "training":
                print(printable(f"{state.job}: {', '.join(_details(state))}"), flush=True)


class LiveBoard(Board):
    """A row per job, updated once per second."""

    def __init__(self) -> None:
        from rich.live import Live

        self._live = Live(refresh_per_second=1)
        self._shown = 0.0

    def event(self, state: JobState) -> None:
        """Update the table at the next call."""
        self._shown = 0.0

    def show(self, states: Sequence[JobState]) -> None:
        if time.monotonic() >= self._shown + 1.0:
            self._shown = time.monotonic()
            self._live.start()
            self._live.update(table_of(states))

    def close(self) -> None:
        """Leave the last state on the screen."""
        self._live.stop()


def table_of(states: Sequence[JobState]) -> Any:
    """Return the table: running jobs first, then failed, paused, waiting and finished ones."""
    from rich.markup import escape
    from rich.table import Table

    order = ("training", "failed", "paused", "waiting", "finished")
    done = sum(state.status == "finished" for state in states)
    table = Table(title=f"{done} of {len(states)} jobs finished", title_justify="left")
    units = " or ".join(sorted({state.job.config.unit for state in states}))
    for name in ("job", "status", units, "left", "evaluation"):
        table.add_column(name, justify="left" if name in ("job", "status") else "right")
    ranked = sorted(states, key=lambda state: order.index(state.status))
    for state in ranked[:SHOWN]:
        steps = f"{state.steps:,} / {state.job.config.budget:,}"
        left = "" if state.seconds_left is None else duration(state.seconds_left)
        status = f"{state.status}: {state.error}" if state.error else state.status
        if state.held and state.status == "waiting":
            status = WAITING
        status = _loss(state) or status
        evaluation = "" if state.evaluation is None else f"{state.evaluation:.1f}"
        table.add_row(escape(printable(state.job)), escape(printable(status)), steps, left, evaluation)
    if len(ranked) > SHOWN:
        table.add_row(f"and {len(ranked) - SHOWN} more", "", "", "", "")
    return table


def _loss(state: JobState) -> str:
    """Return what happened to a job that waits because its worker was lost."""
    if state.status != "waiting" or state.held or not state.losses:
        return ""
    return f"its worker was lost ({state.lost}), time {state.losses} of {MAX_LOSSES}; it continues elsewhere"


def _details(state: JobState) -> list[str]:
    found = [f"{state.steps:,} of {state.job.config.budget:,} {state.job.config.unit}"]
    if state.seconds_left is not None:
        found.append(f"{duration(state.seconds_left)} left")
    if state.evaluation is not None:
        found.append(f"evaluation {state.evaluation:.1f}")
    return found
