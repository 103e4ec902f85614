"""Files of a run: atomic writes, and reads that do not trust the file."""

import contextlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rl_training.core.errors import UserError

MAX_JSON_BYTES = 16 << 20
"""Size of a JSON file; while it is read, it may need twenty times as much memory."""
MAX_TRUSTED_JSON_BYTES = 64 << 20
"""Size of a checkpoint's manifest that the user signed or trusts."""
MAX_METADATA_BYTES = 1 << 20
"""Size of `metadata.json`, which a run writes again when its status changes."""
MAX_RECORDS_BYTES = 64 << 20
"""Size of a file with many results."""
MAX_FILES = 20_000
"""Files in a run folder."""


def safe_name(text: str) -> str:
    """Return a text as part of a file name: other characters than ASCII letters, digits and ._- become a hyphen.

    >>> safe_name("ALE/Pong-v5"), safe_name("my_module:MyPPO")
    ('ALE-Pong-v5', 'my_module-MyPPO')
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)


def algorithm_folder(algo: str) -> str:
    """Return an algorithm as the first part of a folder's name, with at most 60 characters of `module:Class`."""
    return safe_name(algo)[-60:].lstrip("-.") or "algorithm"


def write_text(path: Path, text: str) -> None:
    """Atomically replace the file at `path` with `text`."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, data: Any) -> int:
    """Atomically replace the file at `path` with `data` as indented JSON; return its size."""
    content = (json.dumps(data, indent=1) + "\n").encode("utf-8")
    write_bytes(path, content)
    return len(content)


def write_bytes(path: Path, content: bytes) -> None:
    """Atomically replace the file at `path` with `content`."""
    with replacing(path) as file:
        file.write(content)


def unshare(path: Path) -> None:
    """Replace a file that has other hard links with a copy, so that appending changes no file outside the run."""
    if path.lstat().st_nlink > 1:
        with path.open("rb") as shared, replacing(path) as own:
            shutil.copyfileobj(shared, own)


@contextlib.contextmanager
def scratch_file(folder: Path, suffix: str) -> Iterator[Path]:
    """Yield a new empty file for another program to write; it is deleted unless it was renamed."""
    descriptor, name = tempfile.mkstemp(prefix=".", suffix=suffix, dir=folder)
    os.fchmod(descriptor, 0o644)  # mkstemp creates private files
    os.close(descriptor)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` on exit: write to a temporary name, fsync, rename, fsync the folder."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:  # "x" follows no existing link
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
    """Set the file name of an error: fsync gives none, and other calls give the temporary one."""
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
    """Rename `new` to `folder`; an existing folder is moved to its backup name first and deleted afterwards.

    If the process is killed between the two renames, `find_checkpoint` and `restore_backups` use the backup.
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
    """Return the name of a folder's backup while the folder is replaced."""
    return folder.parent / f".{folder.name}.old"


def delete_folder(folder: Path) -> None:
    """Delete a folder; it is renamed first, so that nobody reads half of it."""
    nameless = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(nameless, ignore_errors=True)
    os.replace(folder, nameless)
    shutil.rmtree(nameless)


def refuse_special_files(folder: Path) -> None:
    """Raise if there are links, pipes or devices below `folder`; files that vanish meanwhile are ignored."""
    count = 0
    for path, folders, files in os.walk(folder):
        count += len(folders) + len(files)
        if count > MAX_FILES:
            raise UserError(f"{folder} contains more than {MAX_FILES:,} files, so it is not a run")
        for name in [*folders, *files]:
            entry = Path(path) / name
            try:
                mode = entry.lstat().st_mode
            except FileNotFoundError:
                continue
            except OSError as error:  # a path that is too long
                raise UserError(f"{entry} cannot be read: {error.strerror}") from error
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise UserError(f"{entry} is a link, a pipe or a device; a run contains only regular files")
        if Path(path) == folder and "wandb" in folders:
            # wandb uses links; we neither read nor write its folder
            folders.remove("wandb")
            if (folder / "wandb" / "settings").exists():
                raise UserError(
                    f"{folder / 'wandb' / 'settings'} could redirect your data to another server; delete it"
                )


def refuse_link_inside(folder: Path, target: Path) -> None:
    """Raise if the path `target` goes through a link that is inside `folder`."""
    inside = folder.resolve()
    for step in [target.absolute(), *target.absolute().parents]:
        if step.is_symlink() and (step.parent.resolve() / step.name).is_relative_to(inside):
            raise UserError(f"{step} is a link inside {folder}; choose another folder")


def read_json(path: Path, limit: int = MAX_JSON_BYTES) -> Any:
    """Return the content of a JSON file of at most `limit` bytes; raise a clear error if it cannot be read."""
    try:
        return json.loads(read_plain(path, limit).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}") from error


def read_mapping(path: Path, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Return the content of a JSON file of at most `limit` bytes that contains a mapping."""
    data = read_json(path, limit)
    if not isinstance(data, dict):
        raise UserError(f"{path} is damaged: it is not a mapping")
    return data


def read_plain(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """Return the bytes of a regular file of at most `limit` bytes."""
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > limit:
                raise UserError(f"{path} is larger than {limit >> 10:,} KiB, so it is not a file of a run")
            return file.read(limit)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; opening or reading a pipe could block forever."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a device may already do something
        raise UserError(f"{path} is not a regular file")
    # without waiting, if a pipe has replaced the file meanwhile
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
