"""Writes that are either complete or not there: a temporary name, fsync, rename, fsync of the folder."""

import json
import os
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, data: Any) -> None:
    """Replace `path` by `data` as readable JSON in one step."""
    write_text(path, json.dumps(data, indent=2) + "\n")


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content` in one step."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
