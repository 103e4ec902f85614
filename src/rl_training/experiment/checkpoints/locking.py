"""One process per run folder: a lock that dies with its owner."""

import contextlib
import errno
import os
import stat
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rl_training.core.errors import UserError

try:
    import fcntl
except ImportError:  # the first of several things that only POSIX has
    raise UserError(
        "rl_training trains and evaluates on POSIX systems (Linux, macOS): it needs their file locks, signals and "
        "forks; on Windows, use it inside of WSL"
    ) from None

_HELD: dict[Path, int] = {}
"""Descriptors by folder locked by this process; a forked worker closes them, as it would keep the lock alive."""


TRIES, PAUSE = 3, 0.02
"""How often, and after how many seconds, a lock is tried for: who looks whether it is held has it for an instant."""


def _forget_in_worker() -> None:
    for descriptor in _HELD.values():
        os.close(descriptor)
    _HELD.clear()


os.register_at_fork(after_in_child=_forget_in_worker)


class RunLock:
    """Holds `RUN/.lock` while it is entered.

    It belongs to the open file (flock), not to the process: no other opening and closing of the file, such as a copy of
    the folder, drops it, and the kernel does when the process ends, however it ends.
    """

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / ".lock"

    def __enter__(self) -> Self:
        self._key = self.path.resolve()
        if self._key in _HELD:
            raise UserError(f"{self.path.parent} is in use by this very process; wait for that run to end")
        _HELD[self._key] = descriptor = self._acquire()
        with contextlib.suppress(
            OSError
        ):  # only a courtesy to whoever is refused; a full disk is found out elsewhere
            os.truncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        return self

    def _acquire(self) -> int:
        """Return a locked descriptor of a plain file that has no other name than ours."""
        while True:
            descriptor = self._open()
            try:
                self._lock(descriptor)
                status = os.fstat(descriptor)
                if self._is_still(status):
                    if status.st_nlink == 1:
                        return descriptor
                    self.path.unlink()  # it is a file elsewhere as well, which is not ours to write
            except OSError as error:
                os.close(descriptor)
                raise UserError(f"{self.path} cannot be replaced: {error.strerror}") from error
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _open(self) -> int:
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        except OSError as error:
            raise UserError(f"{self.path} cannot be opened: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise UserError(f"{self.path} is not a plain file; delete it")
        return descriptor

    def _lock(self, descriptor: int) -> None:
        try:
            if not _locked(descriptor, fcntl.LOCK_EX):
                owner = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
                raise UserError(
                    f"{self.path.parent} is in use by process {owner}; wait for it to end, or stop it first"
                )
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            raise UserError(
                f"{self.path} cannot be locked: the file system of {self.path.parent} has no locks; "
                "use an output_dir on another one"
            ) from error

    def _is_still(self, status: os.stat_result) -> bool:
        """Return whether the name still belongs to the file that we locked: another process may have replaced it."""
        try:
            return os.path.samestat(status, self.path.lstat())
        except FileNotFoundError:
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        descriptor = _HELD.pop(self._key, None)
        if descriptor is not None:  # a worker that was forked meanwhile has none
            os.close(descriptor)


def _locked(descriptor: int, kind: int, tries: int = TRIES) -> bool:
    """Lock an open file, if nobody else has."""
    for tries_left in reversed(range(tries)):
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if tries_left:
                time.sleep(PAUSE)
    return False


def is_held(run_dir: Path, *, if_unknown: bool = True) -> bool:
    """Tell whether a process works on a run right now; of a lock that may not be looked at, what `if_unknown` says."""
    try:
        descriptor = os.open(run_dir / ".lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return if_unknown and error.errno in (errno.EACCES, errno.EPERM)
    try:
        return not _locked(descriptor, fcntl.LOCK_SH, tries=1)  # several may look at once
    except OSError:  # a file system without locks, on which no run is trained
        return False
    finally:
        os.close(descriptor)
