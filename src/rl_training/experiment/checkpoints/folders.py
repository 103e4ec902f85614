"""The checkpoints of a run among each other: finding, pointing to, replacing and pruning them.

`last` and `best` are moved after the folder they name is complete. A folder loses its name before it is deleted, so a
reader finds it whole or not at all, and looks again if what it looked for has changed meanwhile.
"""

import contextlib
import os
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from rl_training.core.errors import UserError
from rl_training.experiment.checkpoints.format import Checkpoint, read_checkpoint, step_of
from rl_training.experiment.files import backup_path, delete_folder, refuse_special_files, write_text

POINTERS = ("last", "best")
TRIES, PAUSE = 20, 0.01
"""How often, and after how many seconds, a checkpoint that was replaced or pruned while it was read is looked for."""


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read what a user means by a run (its newest whole checkpoint), a checkpoint, a saved agent, or `last`/`best`.

    The run may be in training: what was replaced or pruned in the middle of it is read anew.
    """
    given = readable_path(path)

    def attempt(remarks: list[str]) -> Checkpoint:
        if not (given / "checkpoints").is_dir():
            return read_checkpoint(find_checkpoint(path))
        refuse_special_files(given / "checkpoints")
        return _read_newest(given, None, remarks)

    return _retry_while_changing(given, attempt)


def readable_path(path: str | os.PathLike[str]) -> Path:
    """Return a path that may lead somewhere; one that no disk has, or that may not be followed, is refused."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass  # the search that follows tells what is missing
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{str(path)[:200]!r} cannot be read: {problem}; give a run folder") from error
    return Path(path)


def _retry_while_changing(given: Path, attempt: Callable[[list[str]], Checkpoint]) -> Checkpoint:
    """Return what `attempt` does; if it found fault and the folders have changed meanwhile, try again.

    The remarks that `attempt` leaves in its list become warnings, if it is the last.
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
        warnings.warn(remark, stacklevel=3)
    if checkpoint is None:
        assert fault is not None
        raise fault
    return checkpoint


def _folder_state(given: Path) -> dict[Path, object]:
    """Return what a reader of `given` depends on: pointers, and which folders bear the names of checkpoints now."""
    found: dict[Path, object] = {}
    for place in (given, given / "checkpoints", given.parent, given.parent / "checkpoints"):
        for pointer in POINTERS:
            found[place / pointer] = read_pointer(place, pointer)
        for folder in [given, backup_path(given), *place.glob("step_*"), *place.glob(".step_*.old")]:
            with contextlib.suppress(OSError, ValueError):  # not there, or no name of a file at all
                status = folder.lstat()
                found[folder] = (status.st_ino, status.st_ctime_ns)
    return found


def _is_being_replaced(situation: Mapping[Path, object]) -> bool:
    """Tell whether a folder was put aside whose successor is not there yet."""
    asides = [path for path in situation if path.name.startswith(".") and path.name.endswith(".old")]
    return any(path.with_name(path.name[1:].removesuffix(".old")) not in situation for path in asides)


def write_pointer(checkpoints: Path, pointer: str, name: str) -> None:
    """Make `last` or `best` name a checkpoint, by rename."""
    write_text(checkpoints / pointer, name + "\n")


def read_pointer(checkpoints: Path, pointer: str) -> str | None:
    """Return the checkpoint that `last` or `best` names, if any."""
    try:
        if not (checkpoints / pointer).is_file():
            return None
        with (checkpoints / pointer).open(encoding="utf-8") as file:
            return file.read(64).strip()  # no name of ours is longer
    except (OSError, UnicodeDecodeError):
        return None


def prune(checkpoints: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints and those that a pointer names."""
    named = {read_pointer(checkpoints, pointer) for pointer in POINTERS}
    for folder in _steps(checkpoints)[keep:]:
        if folder.name not in named:
            delete_folder(folder)


def read_newest(run_dir: Path, *, before: str | None = None) -> Checkpoint:
    """Return the newest checkpoint of a run that is whole; damaged ones are named in a warning and passed over.

    `before` is one that was found wanting for another reason: only older ones count.
    """
    return _retry_while_changing(run_dir, lambda remarks: _read_newest(run_dir, before, remarks))


def _read_newest(run_dir: Path, before: str | None, remarks: list[str]) -> Checkpoint:
    checkpoints = run_dir / "checkpoints"
    folders = _steps(checkpoints)
    last = read_pointer(checkpoints, "last")
    if before is not None:
        folders = [folder for folder in folders if step_of(folder.name) < step_of(before)]
    if not folders:
        raise UserError(f"{run_dir} has no checkpoint to go on from")
    declared = [folder for folder in folders if last is not None and step_of(folder.name) <= step_of(last)]
    folders = declared or folders  # one that is newer than `last` was not declared yet
    if before is None and folders[0].name != last:
        problem = "is missing or unreadable" if last is None else f"names {last!r}, which is not there"
        remarks.append(f"{checkpoints / 'last'} {problem}; using {folders[0].name}")
    for folder, older in zip(folders, [*folders[1:], None], strict=True):
        try:
            return read_checkpoint(folder)
        except UserError as error:
            if older is None:
                raise
            remarks.append(f"{error}; going back to {older.name}")
    raise AssertionError("unreachable: the loop returns or raises")


def delete_newer(checkpoints: Path, name: str) -> None:
    """Delete what a killed process left half-done, and the checkpoints after `name`: they will be made again."""
    for leftover in [*checkpoints.glob(".*.tmp"), *checkpoints.glob(".*.old")]:
        shutil.rmtree(leftover, ignore_errors=True)
        leftover.unlink(missing_ok=True)
    best = read_pointer(checkpoints, "best")
    if best is not None and (step_of(best) > step_of(name) or not (checkpoints / best).is_dir()):
        (checkpoints / "best").unlink()  # first: it never names what is not there
    for folder in _steps(checkpoints):
        if step_of(folder.name) > step_of(name):
            delete_folder(folder)


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """Return the checkpoint folder that a user means by a run, a checkpoint, a saved agent, or `last`/`best` of one."""
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
    """Tell whether a run has any checkpoint folder, whole or not."""
    return bool(_steps(run_dir / "checkpoints"))


def _steps(checkpoints: Path) -> list[Path]:
    """Return the checkpoint folders, newest first."""
    folders = [folder for folder in checkpoints.glob("step_*") if step_of(folder.name) >= 0]
    return sorted(folders, key=lambda folder: step_of(folder.name), reverse=True)


def _present(folder: Path) -> Path:
    """Return `folder`, or where it was put aside for a successor that never came."""
    return backup_path(folder) if not folder.exists() and backup_path(folder).is_dir() else folder


def restore_backups(checkpoints: Path) -> None:
    """Give checkpoints that were put aside for a successor that never came their name back.

    Only for whoever holds the run's lock: a process that is at work puts folders aside as well.
    """
    for aside in checkpoints.glob(".step_*.old"):
        folder = aside.with_name(aside.name.removeprefix(".").removesuffix(".old"))
        if aside.is_dir() and not folder.exists():
            os.replace(aside, folder)
