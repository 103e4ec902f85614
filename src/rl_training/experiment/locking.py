"""One process per run folder: a lock that dies with its owner."""

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from rl_training.core.errors import UserError

_HELD: set[Path] = set()
"""Folders locked by this process: the kernel's lock keeps out other processes only."""


class RunLock:
    """Holds `RUN/.lock` while it is entered.

    A POSIX record lock: the kernel drops it when the process ends, however it ends; forked workers do not inherit it.
    """

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / ".lock"

    def __enter__(self) -> Self:
        if self.path.resolve() in _HELD:
            raise UserError(f"{self.path.parent} is in use by this very process; wait for that run to end")
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise UserError(f"{self.path} cannot be opened: {error.strerror}") from error
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(self._file, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._file)
            raise UserError(
                f"{self.path.parent} is in use by process {owner}; wait for it to end, or stop it first"
            ) from None
        with contextlib.suppress(
            OSError
        ):  # only a courtesy to whoever is refused; a full disk is found out elsewhere
            os.truncate(self._file, 0)
            os.write(self._file, f"{os.getpid()}\n".encode())
        _HELD.add(self.path.resolve())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _HELD.discard(self.path.resolve())
        os.close(self._file)
