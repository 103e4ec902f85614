"""From errors to messages and exit codes: 0 done or paused, 1 fault during a run, 2 bad input, 128 + signal number."""

import contextlib
import errno
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from rl_training.core.errors import (
    NO_MEMORY,
    Interrupted,
    RunFault,
    UserError,
    is_out_of_memory,
    printable,
    text_of,
)

FAULT, BAD_INPUT, INTERRUPTED = 1, 2, 130
NO_ROOM = (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT)


def exit_code_of(command: Callable[[], int], *, debug: bool) -> int:
    """Run a command, print its error, if any, and return its exit code; `debug` prints the traceback."""
    try:
        code = command()
        sys.stdout.flush()
        return code
    except UserError as error:
        return _report(error, BAD_INPUT, debug)
    except RunFault as error:
        return _report(error, FAULT, debug)
    except Interrupted as interrupted:
        again = f"{command_name()} resume {interrupted.run_dir}{interrupted.flags}"
        print(printable(f"\n{interrupted}. Resume it with:\n  {again}"), file=sys.stderr)
        return interrupted.code
    except KeyboardInterrupt as stop:
        print(printable(stop) if str(stop) else "interrupted", file=sys.stderr)
        return int(getattr(stop, "code", INTERRUPTED))
    except BrokenPipeError:  # the reader of our output has exited, as in `| head`
        _discard_output()
        return FAULT
    except Exception as error:
        return _report_unexpected(error, debug)


def command_name() -> str:
    """Return how to call this command from here, whether or not it is on the path."""
    called = Path(sys.argv[0])
    if called.name != "rl-training":
        return "python -m rl_training.cli"
    return "rl-training" if shutil.which("rl-training") else os.path.relpath(called)


def _report_unexpected(error: Exception, debug: bool) -> int:
    """Report an unexpected exception; lack of memory and a full disk get their own messages."""
    if is_out_of_memory(error):
        refused = UserError(NO_MEMORY)
        refused.__cause__ = error
        return _report(refused, BAD_INPUT, debug)
    if isinstance(error, OSError) and error.filename is None and error.errno in NO_ROOM:
        # of the standard output, as errors of files have a file name
        _discard_output()
        error = OSError(f"the standard output cannot be written: {error.strerror}")
    elif not debug:
        error = RuntimeError(
            f"{type(error).__name__}: {text_of(error)} (run again with --debug for the traceback)"
        )
    return _report(error, FAULT, debug)


def _discard_output() -> None:
    """Let the last flush of the standard output succeed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(error: Exception, code: int, debug: bool) -> int:
    text = printable("".join(traceback.format_exception(error))) if debug else f"error: {printable(error)}\n"
    with contextlib.suppress(OSError):  # the error stream itself is broken
        print(text, end="", file=sys.stderr, flush=True)
    return code
