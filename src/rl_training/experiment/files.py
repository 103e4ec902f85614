"""Files of a run: writes that are complete or not there, and reads that trust nothing."""

import contextlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rl_training.core.errors import UserError

MAX_JSON_BYTES = 64 << 20


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, data: Any) -> int:
    """Replace `path` by `data` as readable JSON in one step; return its size."""
    content = (json.dumps(data, indent=1) + "\n").encode("utf-8")
    write_bytes(path, content)
    return len(content)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content` in one step: a temporary name, fsync, rename, fsync of the folder."""
    with replacing(path) as file:
        file.write(content)


def unshare(path: Path) -> None:
    """Give a file that has other names as well, as in a snapshot made of hard links, a copy of its own.

    What is appended to it afterwards then reaches no file outside of the run.
    """
    if path.lstat().st_nlink > 1:
        with path.open("rb") as shared, replacing(path) as own:
            shutil.copyfileobj(shared, own)


@contextlib.contextmanager
def scratch_file(folder: Path, suffix: str) -> Iterator[Path]:
    """Yield an empty file of a new name for another program to write; it is deleted unless it was renamed."""
    descriptor, name = tempfile.mkstemp(prefix=".", suffix=suffix, dir=folder)
    os.fchmod(descriptor, 0o644)  # the maker of private files knows no other mode
    os.close(descriptor)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of `path` when all is written: a temporary name, fsync, rename, fsync."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:  # never through a link that somebody put there
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        name_file(error, path)
        raise
    sync_folder(path.parent)


def name_file(error: OSError, path: Path) -> None:
    """Put the file into an error that a person knows: fsync names none, and others a temporary one."""
    error.filename, error.filename2 = str(path), None


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        name_file(error, folder)
        raise
    finally:
        os.close(descriptor)


def replace_folder(new: Path, folder: Path) -> None:
    """Rename, with a possible predecessor of the same name put aside first; it goes when its successor is there.

    If the process is killed between the two renames, `find_checkpoint` and `restore_backups` know where to look.
    """
    sync_folder(new)
    aside = backup_path(folder)
    if folder.exists():
        shutil.rmtree(aside, ignore_errors=True)
        os.replace(folder, aside)
    os.replace(new, folder)
    sync_folder(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def backup_path(folder: Path) -> Path:
    """Return where a folder lies while its successor takes its name."""
    return folder.parent / f".{folder.name}.old"


def delete_folder(folder: Path) -> None:
    """Delete a checkpoint: first its name, so that nobody reads half of it."""
    nameless = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(nameless, ignore_errors=True)
    os.replace(folder, nameless)
    shutil.rmtree(nameless)


def refuse_special_files(folder: Path) -> None:
    """Refuse links, pipes and devices below `folder`: a run holds plain files, and nothing else is followed.

    A run that is being trained deletes files meanwhile; what is gone cannot be followed.
    """
    for path, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            entry = Path(path) / name
            try:
                mode = entry.lstat().st_mode
            except FileNotFoundError:
                continue
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise UserError(f"{entry} is a link, a pipe or a device; a run holds plain files only")
        if Path(path) == folder and "wandb" in folders:
            # the tracker's own, in which links are usual, and which we neither read nor write
            folders.remove("wandb")
            if (folder / "wandb" / "settings").exists():
                raise UserError(
                    f"{folder / 'wandb' / 'settings'} would tell wandb where to send your data; delete it"
                )


def refuse_link_inside(folder: Path, target: Path) -> None:
    """Refuse a folder to write into that is reached through a link that lies in `folder`."""
    inside = folder.resolve()
    steps = [target.absolute(), *target.absolute().parents]
    for step in steps:
        if step.is_symlink() and (step.parent.resolve() / step.name).is_relative_to(inside):
            raise UserError(f"{step} is a link inside of {folder}; choose another folder")


def read_json(path: Path) -> Any:
    """Return the JSON in a file of sensible size; what is wrong is told in one sentence."""
    try:
        return json.loads(read_plain(path).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}") from error


def read_plain(path: Path) -> bytes:
    """Return the bytes of a plain file of sensible size; a pipe would make us wait for ever, so others are refused."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{path} is not a plain file")
        if status.st_size > MAX_JSON_BYTES:
            raise UserError(f"{path} is larger than {MAX_JSON_BYTES >> 20} MiB, which no file of ours is")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
