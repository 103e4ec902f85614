"""The checkpoint folders of a run: finding, reading, pointing to and pruning them.

The pointers `last` and `best` are updated after the folder they name is complete. A folder is renamed before it is
deleted, so a reader finds it complete or not at all, and retries if the folders changed meanwhile. A reader locks the
folder, and a locked folder is pruned later, so a slow reader of a run that is being trained succeeds as well.
"""

import contextlib
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rl_training.core.errors import UserError
from rl_training.experiment.checkpoints.format import Checkpoint, read_checkpoint, step_of
from rl_training.experiment.checkpoints.locking import reading_folder, unless_being_read
from rl_training.experiment.checkpoints.trust import NO_TRUST, AlgorithmUnavailable, Trust
from rl_training.experiment.files import backup_path, delete_folder, refuse_special_files, write_text

POINTERS = ("last", "best")
TRIES, PAUSE = 20, 0.01
"""Attempts, and seconds between them, to read a checkpoint that is replaced or pruned meanwhile."""


def open_checkpoint(path: str | os.PathLike[str], trust: Trust = NO_TRUST) -> Checkpoint:
    """Read the newest intact checkpoint of a run, which may be training, a checkpoint folder, or `last`/`best`."""
    with keep_checkpoint(path, trust) as checkpoint:
        return checkpoint


@contextlib.contextmanager
def keep_checkpoint(path: str | os.PathLike[str], trust: Trust = NO_TRUST) -> Iterator[Checkpoint]:
    """Yield what `open_checkpoint` returns; its files, also its replay data, are not pruned until the context exits."""
    given = readable_path(path)
    with contextlib.ExitStack() as locks:

        def attempt(remarks: list[str]) -> Checkpoint:
            locks.close()  # those of the last attempt
            if not (given / "checkpoints").is_dir():
                return _read_locked(find_checkpoint(path), locks, trust)
            refuse_special_files(given / "checkpoints")
            return _read_newest(given, None, remarks, locks, trust)

        yield _retry_while_changing(given, attempt)


def _read_locked(folder: Path, locks: contextlib.ExitStack, trust: Trust) -> Checkpoint:
    locks.enter_context(reading_folder(folder))
    return read_checkpoint(folder, trust)


def readable_path(path: str | os.PathLike[str]) -> Path:
    """Return the path, or raise if it is not a valid path or may not be accessed; it need not exist."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass  # the caller reports what is missing
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{str(path)[:200]!r} cannot be read: {problem}; give a run folder") from error
    return Path(path)


def _retry_while_changing(given: Path, attempt: Callable[[list[str]], Checkpoint]) -> Checkpoint:
    """Return the result of `attempt`; retry if it failed or left remarks and the folders changed meanwhile.

    The remarks of the last attempt become warnings.
    """
    for tries_left in reversed(range(TRIES)):
        before = _folder_state(given)
        checkpoint, fault, remarks = None, None, list[str]()
        try:
            checkpoint = attempt(remarks)
        except UserError as error:
            fault = error
        except OSError as error:
            fault = UserError(f"cannot read {error.filename or given}: {error.strerror or error}")
        if checkpoint is not None and not remarks:
            return checkpoint
        if tries_left == 0 or (_folder_state(given) == before and not _is_being_replaced(before)):
            break
        time.sleep(PAUSE)
    for remark in remarks:
        warnings.warn(remark, stacklevel=2)
    if checkpoint is None:
        assert fault is not None
        raise fault
    return checkpoint


def _folder_state(given: Path) -> dict[Path, object]:
    """Return what a reader of `given` depends on: the pointers and the identity of each checkpoint folder."""
    found: dict[Path, object] = {}
    for place in (given, given / "checkpoints", given.parent, given.parent / "checkpoints"):
        for pointer in POINTERS:
            found[place / pointer] = read_pointer(place, pointer)
        for folder in [given, backup_path(given), *place.glob("step_*"), *place.glob(".step_*.old")]:
            with contextlib.suppress(OSError, ValueError):  # missing, or not a valid file name
                status = folder.lstat()
                found[folder] = (status.st_ino, status.st_ctime_ns)
    return found


def _is_being_replaced(situation: Mapping[Path, object]) -> bool:
    """Return whether a folder was moved to its backup name and its replacement is not there yet."""
    backups = [path for path in situation if path.name.startswith(".") and path.name.endswith(".old")]
    return any(path.with_name(path.name[1:].removesuffix(".old")) not in situation for path in backups)


def write_pointer(checkpoints: Path, pointer: str, name: str) -> None:
    """Let `last` or `best` name a checkpoint; the file is replaced by a rename."""
    write_text(checkpoints / pointer, name + "\n")


def read_pointer(checkpoints: Path, pointer: str) -> str | None:
    """Return the name of the checkpoint that `last` or `best` points to, if any."""
    try:
        if not (checkpoints / pointer).is_file():
            return None
        with (checkpoints / pointer).open(encoding="utf-8") as file:
            return file.read(64).strip()  # longer than any checkpoint name
    except (OSError, UnicodeDecodeError):
        return None


def prune(checkpoints: Path, keep: int) -> None:
    """Delete all checkpoints except the newest `keep`, those that a pointer names, and those that are being read."""
    named = {read_pointer(checkpoints, pointer) for pointer in POINTERS}
    for folder in _steps(checkpoints)[keep:]:
        if folder.name in named:
            continue
        with unless_being_read(folder) as free:
            if free:
                delete_folder(folder)


def read_newest(run_dir: Path, trust: Trust = NO_TRUST, *, before: str | None = None) -> Checkpoint:
    """Return the newest intact checkpoint of a run; damaged ones are skipped with a warning.

    With `before`, the name of a checkpoint that cannot be used, only older ones are considered.
    """
    with contextlib.ExitStack() as locks:
        return _retry_while_changing(
            run_dir, lambda remarks: _read_newest(run_dir, before, remarks, locks, trust)
        )


def _read_newest(
    run_dir: Path, before: str | None, remarks: list[str], locks: contextlib.ExitStack, trust: Trust
) -> Checkpoint:
    checkpoints = run_dir / "checkpoints"
    folders = _steps(checkpoints)
    last = read_pointer(checkpoints, "last")
    if before is not None:
        folders = [folder for folder in folders if step_of(folder.name) < step_of(before)]
    if not folders:
        raise UserError(f"{run_dir} has no checkpoint to resume from")
    declared = [folder for folder in folders if last is not None and step_of(folder.name) <= step_of(last)]
    folders = declared or folders  # a folder newer than `last` may be incomplete
    if before is None and folders[0].name != last:
        problem = "is missing or unreadable" if last is None else f"names {last!r}, which does not exist"
        remarks.append(f"{checkpoints / 'last'} {problem}; using {folders[0].name}")
    for folder, older in zip(folders, [*folders[1:], None], strict=True):
        try:
            return _read_locked(folder, locks, trust)
        except AlgorithmUnavailable:  # an older checkpoint has the same algorithm
            raise
        except UserError as error:
            if older is None:
                raise
            remarks.append(f"{error}; falling back to {older.name}")
    raise AssertionError("unreachable: the loop returns or raises")


def delete_newer(checkpoints: Path, name: str) -> None:
    """Delete the checkpoints after `name`, which will be written again, and temporary files of a killed process."""
    for leftover in [*checkpoints.glob(".*.tmp"), *checkpoints.glob(".*.old")]:
        shutil.rmtree(leftover, ignore_errors=True)
        leftover.unlink(missing_ok=True)
    best = read_pointer(checkpoints, "best")
    if best is not None and (step_of(best) > step_of(name) or not (checkpoints / best).is_dir()):
        (checkpoints / "best").unlink()  # before the folder, so that it never names a missing one
    for folder in _steps(checkpoints):
        if step_of(folder.name) > step_of(name):
            delete_folder(folder)


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """Return the checkpoint folder of a run, a checkpoint, a saved agent, or `last`/`best` of one."""
    given = _present(Path(path))
    if (given / "manifest.json").is_file():
        return given
    if given.name in POINTERS and not given.is_dir():
        inside = given.absolute().parent.name == "checkpoints"
        checkpoints = given.parent if inside else given.parent / "checkpoints"
        return _follow(checkpoints, given.name, path)
    if (given / "checkpoints").is_dir():
        return _follow(given / "checkpoints", "last", path)
    if (given / "last").is_file():
        return _follow(given, "last", path)
    problem = "holds no checkpoint" if given.exists() else "does not exist"
    raise UserError(
        f"{path or given} {problem}; give a run folder, a checkpoint folder, or last/best of a run"
    )


def _follow(checkpoints: Path, pointer: str, given: object) -> Path:
    name = read_pointer(checkpoints, pointer)
    if name is None:
        raise UserError(f"{given} has no checkpoint yet ({checkpoints / pointer} is missing)")
    if Path(name).name != name or step_of(name) < 0:
        raise UserError(f"{checkpoints / pointer} names '{name}', which is not a checkpoint of this run")
    return _present(checkpoints / name)


def has_checkpoints(run_dir: Path) -> bool:
    """Return whether a run has any checkpoint folder, intact or damaged."""
    return bool(_steps(run_dir / "checkpoints"))


def _steps(checkpoints: Path) -> list[Path]:
    """Return the checkpoint folders, newest first."""
    folders = [folder for folder in checkpoints.glob("step_*") if step_of(folder.name) >= 0]
    return sorted(folders, key=lambda folder: step_of(folder.name), reverse=True)


def _present(folder: Path) -> Path:
    """Return `folder`, or its backup if a process was killed while replacing it."""
    return backup_path(folder) if not folder.exists() and backup_path(folder).is_dir() else folder


def restore_backups(checkpoints: Path) -> None:
    """Rename the backups of checkpoints whose replacement was never completed to their original names.

    The caller must hold the run's lock: a running process makes backups as well.
    """
    for backup in checkpoints.glob(".step_*.old"):
        folder = backup.with_name(backup.name.removeprefix(".").removesuffix(".old"))
        if backup.is_dir() and not folder.exists():
            os.replace(backup, folder)
