"""`error.txt`: the whole of what was raised, for whoever has to find out why a run ended."""

import contextlib
import traceback
from pathlib import Path

from rl_training.core.errors import printable
from rl_training.experiment.files import write_text

NAME = "error.txt"


def write_traceback(run_dir: Path, error: BaseException) -> None:
    """Write the exception with everything that led to it; a full disk is ignored, as the error itself is worth more."""
    text = "".join(traceback.format_exception(error))
    for worker in _worker_tracebacks(error):
        text += f"\nIn the worker process:\n\n{worker.rstrip()}\n"
    with contextlib.suppress(OSError):
        write_text(run_dir / NAME, printable(text))


def forget_traceback(run_dir: Path) -> None:
    """Remove the file of an earlier end: what is there tells of the latest start."""
    with contextlib.suppress(OSError):
        (run_dir / NAME).unlink(missing_ok=True)


def _worker_tracebacks(error: BaseException) -> list[str]:
    """Return what exceptions brought along from other processes, in the order of the causes."""
    found: list[str] = []
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        text = getattr(link, "worker_traceback", None)
        if isinstance(text, str) and text not in found:
            found.append(text)
        link = link.__cause__ or link.__context__
    return found
