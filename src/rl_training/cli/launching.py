"""Launching many runs from the command line: the board, what is said at the end, and the exit code."""

import shlex
import signal
from collections.abc import Sequence
from pathlib import Path

from rl_training.cli.commands import command_name
from rl_training.cli.job_board import make_board
from rl_training.core.errors import printable
from rl_training.lab.jobs import Job, Launched
from rl_training.lab.launcher import launch
from rl_training.version import __version__


def run_jobs(
    jobs: Sequence[Job],
    folder: Path,
    *,
    processes: int,
    retry_failed: bool,
    again: str,
    retry: str | None = None,
) -> tuple[Launched, int]:
    """Train what is missing and say how it went; the code is 0 if all is done, 1 after failures, else the signal's.

    `again` is the command that goes on with what is left, `retry` the one that tries failures again: by default the
    same with a flag.
    """
    launched = launch(jobs, folder, processes=processes, retry_failed=retry_failed, board=make_board())
    finished, failed = launched.having("finished"), launched.having("failed")
    earlier = sum(state.earlier for state in finished)
    print(
        f"{len(finished)} of {len(launched.states)} runs are finished"
        + (f", {earlier} of them earlier" if earlier else "")
    )
    others = {
        state.record["versions"].get("rl_training") for state in finished if state.earlier and state.record
    }
    if others - {__version__}:
        print(f"note: some were made by rl_training {', '.join(sorted(map(str, others - {__version__})))}")
    for state in failed:
        print(printable(f"failed: {state.job}: {state.error}"))
    if failed:
        print(printable(f"Try what failed again with:\n  {retry or f'{again} --retry-failed'}"))
    if launched.stopped_by is not None or launched.having("paused", "waiting"):
        by = (
            f"Stopped by {signal.Signals(launched.stopped_by).name}. "
            if launched.stopped_by is not None
            else ""
        )
        print(printable(f"{by}Every run goes on from its checkpoint with:\n  {again}"), flush=True)
    if launched.stopped_by is not None:
        return launched, 128 + launched.stopped_by
    return launched, 1 if failed else 0


def typed(*words: str) -> str:
    """Return the command that was typed, as it can be typed again."""
    return f"{command_name()} {shlex.join(word for word in words if word != '--retry-failed')}"
