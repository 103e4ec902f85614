"""Append-only storage for replay data: each checkpoint writes the new rows and little more.

Rows have absolute numbers that are never reused. A checkpoint needs the rows `[total - kept, total)`. They are stored
in files `segment_<first>_<end>.safetensors` next to the checkpoints (`segment_<kind>_…` if a buffer has several kinds
of rows). Every manifest lists the files that it needs with their hashes, and a file that no manifest needs is
deleted. Small neighbours are merged into larger files, as in a log-structured store, so that the list stays short: a
row is written again at most once per size level, of which there are five.
"""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from rl_training.core.errors import UserError
from rl_training.experiment.checkpoints.tensor_files import read_tensors, write_tensors

MAX_ROWS = 2**14
FAN_IN = 8
"""This many neighbours of one size level are merged into one of the next."""
Span: TypeAlias = tuple[int, int]
NAME = re.compile(r"segment_([a-z]+_)?(\d+)_(\d+)\.safetensors")


class RowStorage(Protocol):
    """A buffer whose rows can be read and written by absolute number, such as a ring buffer."""

    total_rows: int
    """Rows ever added."""
    kept_rows: int
    """How many of the newest rows are in the buffer."""
    capacity: int
    """The largest number of rows that the buffer can hold."""

    def read_rows(self, start: int, stop: int) -> dict[str, Tensor]: ...
    def restore_rows(self, start: int, rows: Mapping[str, Tensor], total_rows: int) -> None: ...


@dataclass(frozen=True)
class Segment:
    """One file with the rows [start, stop), its size and its hash."""

    name: str
    start: int
    stop: int
    size: int
    sha256: str


class SegmentStore:
    """Writes and reads the segments of one storage in `RUN/checkpoints/replay`."""

    def __init__(self, folder: Path, kind: str = "") -> None:
        self.folder = folder
        self.prefix = f"segment_{kind}_" if kind else "segment_"
        self.segments: list[Segment] = []
        self.bytes_written = 0

    def append(self, storage: RowStorage) -> list[dict[str, Any]]:
        """Write the rows that no intact file holds; return the list for the manifest."""
        first = storage.total_rows - storage.kept_rows
        whole: dict[Span, Segment] = {}
        spans: list[Span] = []
        for segment in self.segments:
            if segment.stop > first:
                if self._is_there(segment):
                    whole[segment.start, segment.stop] = segment
                spans.append((segment.start, segment.stop))
        written = max(spans[-1][1] if spans else 0, first)
        if written < storage.total_rows:
            spans.append((written, storage.total_rows))
        self.segments = [
            whole.get(span) or self._write(max(span[0], first), span[1], storage)
            for span in merged(spans)
            if span[1] > first
        ]
        return [asdict(segment) for segment in self.segments]

    def continue_from(self, listed: Sequence[Mapping[str, Any]]) -> None:
        """Treat the listed segments as written."""
        self.segments = [_checked(entry) for entry in listed]

    def _is_there(self, segment: Segment) -> bool:
        """Return whether the file still has its size; the content is not read."""
        path = self.folder / segment.name
        try:
            size = path.lstat().st_size
            problem = f"has {size} bytes instead of {segment.size}"
        except FileNotFoundError:
            size, problem = -1, "was deleted"
        if size != segment.size:
            warnings.warn(f"{path} {problem}; writing its rows again from memory", stacklevel=4)
        return size == segment.size

    def restore(
        self, storage: RowStorage, listed: Sequence[Mapping[str, Any]], total_rows: int, kept_rows: int
    ) -> None:
        """Verify the listed segments and restore their rows; later rows are appended after them."""
        self.continue_from(listed)
        first, last = (self.segments[0].start, self.segments[-1].stop) if self.segments else (0, 0)
        if last != total_rows or not 0 <= kept_rows <= storage.capacity or first > total_rows - kept_rows:
            raise UserError(
                f"{self.folder}: segments hold rows {first} to {last} of {total_rows}; use another checkpoint"
            )
        if last - first > storage.capacity + 2 * MAX_ROWS:  # old rows are kept up to the end of their file
            raise UserError(
                f"{self.folder}: segments hold {last - first:,} rows, and the buffer {storage.capacity:,}; use another "
                "checkpoint"
            )
        for before, after in zip(self.segments, self.segments[1:], strict=False):
            if before.stop != after.start:
                raise UserError(
                    f"{self.folder}: rows {before.stop} to {after.start} are missing; use another checkpoint"
                )
        for segment in self.segments:
            rows = read_tensors(self.folder / segment.name, segment.size, segment.sha256)
            if any(len(column) != segment.stop - segment.start for column in rows.values()):
                raise UserError(f"{self.folder / segment.name} does not hold the rows that its name says")
            try:
                storage.restore_rows(segment.start, rows, segment.stop)
            except (KeyError, ValueError) as error:
                raise UserError(f"{self.folder / segment.name} does not fit the buffer: {error}") from error

    def _write(self, start: int, stop: int, storage: RowStorage) -> Segment:
        name = f"{self.prefix}{start}_{stop}.safetensors"
        self.folder.mkdir(parents=True, exist_ok=True)
        size, digest = write_tensors(self.folder / name, storage.read_rows(start, stop))
        self.bytes_written += size
        return Segment(name, start, stop, size, digest)


def merged(spans: Sequence[Span]) -> list[Span]:
    """Return the spans [start, stop) into which neighbouring `spans` should be merged.

    Levels never decrease along the result, and fewer than FAN_IN neighbours have the same level, except the largest.
    """
    found: list[Span] = []
    for start, stop in spans:
        while found and _level(found[-1]) > _level((start, stop)):
            start = found.pop()[0]
        # in slices, because the rows of a segment are gathered in memory while it is written
        for place in range(start, stop, MAX_ROWS):
            found.append((place, min(place + MAX_ROWS, stop)))
        while (level := _level(found[-1])) and [_level(span) for span in found[-FAN_IN:]] == [level] * FAN_IN:
            start, stop = found[-FAN_IN][0], found[-1][1]
            del found[-FAN_IN:]
            found += [(place, min(place + MAX_ROWS, stop)) for place in range(start, stop, MAX_ROWS)]
    return found


def _level(span: Span) -> int:
    """Return 0 for a span that is large enough to stay, plus 1 for each factor FAN_IN that it is smaller."""
    level, enough = 0, MAX_ROWS // 2
    while span[1] - span[0] < enough:
        level, enough = level + 1, enough // FAN_IN
    return level


def prune_segments(folder: Path, needed: Iterable[Sequence[Mapping[str, Any]]]) -> None:
    """Delete the files that no list in `needed` names."""
    names = {entry["name"] for listed in needed for entry in listed}
    for path in [*folder.glob("segment_*.safetensors"), *folder.glob(".segment_*.tmp")]:
        if path.name not in names:
            path.unlink()


def verify_segments(folder: Path, listed: Sequence[Mapping[str, Any]]) -> None:
    """Raise if one of the listed files is missing or differs from its hash."""
    for entry in listed:
        segment = _checked(entry)
        read_tensors(folder / segment.name, segment.size, segment.sha256)


def _checked(entry: Mapping[str, Any]) -> Segment:
    try:
        segment = Segment(**entry)
        match = NAME.fullmatch(segment.name)
    except TypeError as error:
        raise UserError(f"the manifest lists an invalid segment ({error}); use another checkpoint") from error
    if match is None or [int(part) for part in match.groups()[1:]] != [segment.start, segment.stop]:
        raise UserError(f"the manifest lists an invalid segment {segment.name!r}; use another checkpoint")
    return segment
