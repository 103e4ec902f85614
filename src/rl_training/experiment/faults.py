"""Errors that end a run: their messages, and `error.txt` with the full traceback."""

import contextlib
import traceback
from pathlib import Path

from rl_training.core.errors import NO_MEMORY, RunFault, is_out_of_memory, printable
from rl_training.experiment.files import write_text

NAME = "error.txt"


def disk_fault(error: OSError, what: str, run_dir: Path) -> RunFault:
    """Return the error for a file `what` that could not be written: it, or the whole run, may have been deleted."""
    if not run_dir.is_dir():
        return RunFault(
            f"{run_dir} was moved or deleted during training; if it was moved, resume it at its new path"
        )
    if isinstance(error, FileNotFoundError) and (missing := _missing(error, run_dir)) is not None:
        lost = missing.is_relative_to(run_dir / "checkpoints")
        remedy = "restore it, or start a new run" if lost else "resume the run to create it again"
        return RunFault(f"{missing} was deleted during training; {remedy}")
    return RunFault(f"{what} could not be written: {error.strerror or error}")


def _missing(error: OSError, run_dir: Path) -> Path | None:
    """Return what is missing in the run folder: the file of the error, or the folder that it was in."""
    if not is_inside(error, run_dir):
        return None
    missing = Path(error.filename)
    while not missing.parent.exists():
        missing = missing.parent
    return missing


def is_inside(error: OSError, run_dir: Path) -> bool:
    """Return whether an error is about a file in the run folder."""
    return isinstance(error.filename, str) and Path(error.filename).absolute().is_relative_to(
        run_dir.absolute()
    )


def readable_error(error: BaseException, run_dir: Path, checkpoint_text: str) -> BaseException:
    """Return the error to report when a run ends, with `checkpoint_text` added to its message.

    A `RunFault` is changed in place: a copy would have itself as its cause.
    """
    if isinstance(error, OSError) and is_inside(error, run_dir):
        error = disk_fault(error, str(error.filename), run_dir)
    elif is_out_of_memory(error):
        error = RunFault(NO_MEMORY)
    if isinstance(error, RunFault | KeyboardInterrupt):
        error.args = (f"{str(error) or 'interrupted'} ({checkpoint_text})",)
    else:
        error.add_note(checkpoint_text)
    return error


def last_checkpoint_text(last: Path | None) -> str:
    """Return a text that names the last checkpoint, which may have been moved or deleted."""
    if last is None:
        return "no checkpoint was written"
    if not last.is_dir() and last.parents[1].is_dir():
        return "no checkpoint is left"
    return f"last good checkpoint: {last if last.is_dir() else last.name}"


def write_traceback(run_dir: Path, error: BaseException) -> None:
    """Write the exception with its causes to `error.txt`; a full disk is ignored in favour of the error itself."""
    text = "".join(traceback.format_exception(error))
    for worker in _worker_tracebacks(error):
        text += f"\nIn the worker process:\n\n{worker.rstrip()}\n"
    with contextlib.suppress(OSError):
        write_text(run_dir / NAME, printable(text))


def forget_traceback(run_dir: Path) -> None:
    """Delete the `error.txt` of an earlier attempt."""
    with contextlib.suppress(OSError):
        (run_dir / NAME).unlink(missing_ok=True)


def _worker_tracebacks(error: BaseException) -> list[str]:
    """Return the tracebacks of worker processes in a chain of exceptions."""
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
