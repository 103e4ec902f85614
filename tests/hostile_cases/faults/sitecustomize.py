"""A disk that fails on order: `STRANGE_DISK=call:error:part of a path:number` lets that call fail from its nth time on.

Python imports it by itself in every process that has this folder in its PYTHONPATH. `call` is `open` (to write),
`write` or `fsync`; `error` is the name of an errno.
"""

import builtins
import errno
import io
import os
from typing import Any

CALL, ERROR, PART, NUMBER = (os.environ.get("STRANGE_DISK", "::::") + ":::").split(":")[:4]
count = 0


def fail(path: object) -> None:
    """Raise the error if this path is meant, and it is time."""
    global count
    if PART in str(path):
        count += 1
        if count >= int(NUMBER or 1):
            number = getattr(errno, ERROR)
            raise OSError(number, os.strerror(number), *([str(path)] if CALL == "open" else []))


def opening(real: Any) -> Any:
    """Return an `open` whose files fail when they are opened for writing, or written to."""

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        writes = set(mode) & set("wax+")
        if CALL == "open" and writes:
            fail(file)
        made = real(file, mode, *args, **kwargs)
        if CALL == "write" and writes:
            write = made.write

            def failing(content: Any) -> Any:
                fail(file)
                return write(content)

            made.write = failing
        return made

    return opened


def synced(real: Any) -> Any:
    """Return an `fsync` that fails for the files that are meant."""

    def sync(descriptor: int) -> None:
        fail(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    return sync


if CALL in ("open", "write"):
    builtins.open = io.open = opening(io.open)  # type: ignore[assignment]
if CALL == "fsync":
    os.fsync = synced(os.fsync)
