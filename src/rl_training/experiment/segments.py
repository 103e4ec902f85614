"""Append-only storage for data that outlives a rollout: each checkpoint writes only what is new.

Rows have absolute numbers that never repeat. A checkpoint needs the rows `[total - kept, total)`; they lie in segment
files `segment_<first>_<end>.safetensors` beside the checkpoints, each written once, listed and hashed in every manifest
that needs it, and deleted when no kept manifest does.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from rl_training.core.errors import UserError
from rl_training.experiment.files import read_tensors, write_bytes

NAME = re.compile(r"segment_(\d+)_(\d+)\.safetensors")


class RowStorage(Protocol):
    """A buffer whose rows can be read and written by absolute number, such as a ring."""

    total_rows: int
    """Rows ever added."""
    kept_rows: int
    """How many of the newest are still there."""
    capacity: int
    """How many there is room for."""

    def read_rows(self, start: int, stop: int) -> dict[str, Tensor]: ...
    def restore_rows(self, start: int, rows: Mapping[str, Tensor], total_rows: int) -> None: ...


@dataclass(frozen=True)
class Segment:
    """One file: rows [start, stop), with its size and hash."""

    name: str
    start: int
    stop: int
    size: int
    sha256: str


class SegmentStore:
    """Writes and reads the segments of one run, in `RUN/checkpoints/replay`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.segments: list[Segment] = []

    def append(self, storage: RowStorage) -> list[dict[str, Any]]:
        """Write the rows that no segment holds yet; return the list a manifest must carry."""
        first = storage.total_rows - storage.kept_rows
        written = self.segments[-1].stop if self.segments else 0
        start = max(written, first)
        if start < storage.total_rows:
            self.segments.append(self._write(start, storage))
        self.segments = [segment for segment in self.segments if segment.stop > first]
        return [asdict(segment) for segment in self.segments]

    def restore(self, storage: RowStorage, listed: Sequence[Mapping[str, Any]], total_rows: int) -> None:
        """Verify the listed segments, put their rows back, and go on appending after them."""
        self.segments = [_checked(entry) for entry in listed]
        first, last = (self.segments[0].start, self.segments[-1].stop) if self.segments else (0, 0)
        if last != total_rows or first > max(total_rows - storage.capacity, 0):
            raise UserError(
                f"{self.folder}: rows {first} to {last} are listed of {total_rows}; use another checkpoint"
            )
        for before, after in zip(self.segments, self.segments[1:], strict=False):
            if before.stop != after.start:
                raise UserError(
                    f"{self.folder}: rows {before.stop} to {after.start} are missing; use another checkpoint"
                )
        for segment in self.segments:
            rows = read_tensors(self.folder / segment.name, segment.size, segment.sha256)
            if any(len(column) != segment.stop - segment.start for column in rows.values()):
                raise UserError(f"{self.folder / segment.name} holds other rows than its name says")
            try:
                storage.restore_rows(segment.start, rows, segment.stop)
            except (KeyError, ValueError) as error:
                raise UserError(f"{self.folder / segment.name} does not fit: {error}") from error

    def prune(self, needed: Iterable[Sequence[Mapping[str, Any]]]) -> None:
        """Delete the files that none of the manifests in `needed` lists."""
        names = {entry["name"] for listed in needed for entry in listed}
        for path in self.folder.glob("segment_*.safetensors"):
            if path.name not in names:
                path.unlink()

    def _write(self, start: int, storage: RowStorage) -> Segment:
        stop = storage.total_rows
        rows = {name: rows.contiguous() for name, rows in storage.read_rows(start, stop).items()}
        blob = save_tensors(rows)
        name = f"segment_{start}_{stop}.safetensors"
        self.folder.mkdir(parents=True, exist_ok=True)
        write_bytes(self.folder / name, blob)
        return Segment(name, start, stop, len(blob), hashlib.sha256(blob).hexdigest())


class RingStorage:
    """The simplest `RowStorage`: named columns [capacity, ...], the newest rows overwrite the oldest."""

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        self.columns = dict(columns)
        self.capacity = len(next(iter(self.columns.values())))
        self.total_rows = self.kept_rows = 0

    def add(self, rows: Mapping[str, Tensor]) -> None:
        """Append rows [k, ...]."""
        count = len(next(iter(rows.values())))
        self.restore_rows(self.total_rows, rows, self.total_rows + count)

    def read_rows(self, start: int, stop: int) -> dict[str, Tensor]:
        """Return the rows by absolute number, copied."""
        index = torch.arange(start, stop) % self.capacity
        return {name: column[index] for name, column in self.columns.items()}

    def restore_rows(self, start: int, rows: Mapping[str, Tensor], total_rows: int) -> None:
        """Write rows at their absolute numbers, and count up to `total_rows`."""
        index = torch.arange(start, total_rows) % self.capacity
        for name, column in self.columns.items():
            if rows[name].shape[1:] != column.shape[1:] or rows[name].dtype != column.dtype:
                raise ValueError(f"column '{name}' has another shape or type")
            column[index] = rows[name]
        self.total_rows = total_rows
        self.kept_rows = min(total_rows, self.capacity)


def _checked(entry: Mapping[str, Any]) -> Segment:
    segment = Segment(**entry)
    match = NAME.fullmatch(segment.name)
    if match is None or [int(part) for part in match.groups()] != [segment.start, segment.stop]:
        raise UserError(f"manifest names an impossible segment {segment.name!r}; use another checkpoint")
    return segment
