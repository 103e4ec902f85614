"""Locks: one process trains in a run folder, and a checkpoint is not pruned while it is read."""

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from rl_training.core.errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    raise UserError(
        "rl_training needs a POSIX system (Linux, macOS) for file locks, signals and forks; on Windows, use WSL"
    ) from None

_HELD: dict[Path, int] = {}
"""Lock file -> descriptor; a forked worker closes them, because it would keep the lock."""
_READING: set[int] = set()
"""Descriptors of the folders that are being read; a forked worker closes them as well."""

TRIES, PAUSE = 3, 0.02
"""Attempts, and seconds between them, to acquire a lock: `is_held` takes it for an instant."""


def _forget_in_worker() -> None:
    for descriptor in [*_HELD.values(), *_READING]:
        os.close(descriptor)
    _HELD.clear()
    _READING.clear()


os.register_at_fork(after_in_child=_forget_in_worker)


class RunLock:
    """Context manager that holds `RUN/.lock`.

    The lock belongs to the open file (flock). Other processes may open and close the file without releasing it, and the
    kernel releases it when the process ends.
    """

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / ".lock"

    def __enter__(self) -> Self:
        self._key = self.path.resolve()
        if self._key in _HELD:
            raise UserError(f"{self.path.parent} is in use by this process; wait for that run to end")
        _HELD[self._key] = descriptor = self._acquire()
        with contextlib.suppress(OSError):  # the number only improves the message of other processes
            os.truncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        return self

    def _acquire(self) -> int:
        """Return a locked descriptor of a regular file without other hard links."""
        while True:
            descriptor = self._open()
            try:
                self._lock(descriptor)
                status = os.fstat(descriptor)
                if self._is_still(status):
                    if status.st_nlink == 1:
                        return descriptor
                    self.path.unlink()  # a hard link to a file elsewhere, which must not be written
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
            raise UserError(f"{self.path} is not a regular file; delete it")
        return descriptor

    def _lock(self, descriptor: int) -> None:
        try:
            if not _locked(descriptor, fcntl.LOCK_EX):
                owner = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
                raise UserError(
                    f"{self.path.parent} is in use by process {owner}; wait for it to end, or stop it first"
                )
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL):
                raise UserError(f"{self.path} cannot be locked: {error.strerror}") from error
            raise UserError(
                f"{self.path} cannot be locked: its file system does not support locks; use an "
                "output_dir on another file system"
            ) from error

    def _is_still(self, status: os.stat_result) -> bool:
        """Return whether the path still names the locked file: another process may have replaced it."""
        try:
            return os.path.samestat(status, self.path.lstat())
        except FileNotFoundError:
            return False

    def __exit__(self, *error: object) -> None:
        descriptor = _HELD.pop(self._key, None)
        if descriptor is not None:  # None in a forked worker
            os.close(descriptor)


def _locked(descriptor: int, kind: int, tries: int = TRIES) -> bool:
    """Try to lock an open file; return whether it worked."""
    for tries_left in reversed(range(tries)):
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if tries_left:
                time.sleep(PAUSE)
    return False


def is_held(run_dir: Path, *, if_unknown: bool = True) -> bool:
    """Return whether a process is using a run; `if_unknown` if the lock file may not be read."""
    try:
        descriptor = os.open(run_dir / ".lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return if_unknown and error.errno in (errno.EACCES, errno.EPERM)
    try:
        return not _locked(descriptor, fcntl.LOCK_SH, tries=1)  # shared, so that several may check at once
    except OSError:  # no locks on this file system, so no run trains here
        return False
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def reading_folder(folder: Path) -> Iterator[None]:
    """Keep a folder from being pruned until the context exits; no effect if it is missing or cannot be locked."""
    descriptor = _open_folder(folder)
    if descriptor is None:
        yield
        return
    _READING.add(descriptor)
    try:
        with contextlib.suppress(OSError):  # no locks on this file system
            _locked(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        if descriptor in _READING:  # not in a forked worker
            _READING.discard(descriptor)
            os.close(descriptor)


@contextlib.contextmanager
def unless_being_read(folder: Path) -> Iterator[bool]:
    """Yield whether a folder may be deleted; a reader that arrives meanwhile waits until the context exits."""
    descriptor = _open_folder(folder)
    if descriptor is None:
        yield True
        return
    try:
        try:
            free = _locked(descriptor, fcntl.LOCK_EX, tries=1)
        except OSError:  # no locks on this file system
            free = True
        yield free
    finally:
        os.close(descriptor)


def _open_folder(folder: Path) -> int | None:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (OSError, ValueError):  # missing, not readable, or not a valid file name
        return None
