"""The replay data of a run: written in segments next to the checkpoints, and listed in their manifests."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_training.core.errors import UserError
from rl_training.experiment.checkpoints.segments import (
    RowStorage,
    SegmentStore,
    prune_segments,
    verify_segments,
)
from rl_training.experiment.files import MAX_TRUSTED_JSON_BYTES, read_json

FOLDER = "replay"


class ReplayFiles:
    """Saves the storages of a run's experience source; on-policy algorithms have none."""

    def __init__(self, checkpoints: Path, storages: Mapping[str, RowStorage]) -> None:
        self.checkpoints, self.storages = checkpoints, storages
        self.folder = checkpoints / FOLDER
        self._stores = {kind: SegmentStore(self.folder, _prefix(kind)) for kind in storages}
        self._listed: dict[str, list[Any]] = {}  # by checkpoint, so that each manifest is read once

    @property
    def bytes_written(self) -> int:
        """Bytes written by this process so far."""
        return sum(store.bytes_written for store in self._stores.values())

    def save(self, checkpoint: str) -> dict[str, Any]:
        """Write the new rows; return the entry for the manifest of `checkpoint`."""
        listed = {}
        for kind, storage in self.storages.items():
            listed[kind] = {
                "total_rows": storage.total_rows,
                "kept_rows": storage.kept_rows,
                "segments": self._stores[kind].append(storage),
            }
        self._listed[checkpoint] = [entry["segments"] for entry in listed.values()]
        return listed

    def continue_from(self, listed: Mapping[str, Any]) -> None:
        """Treat the segments that a manifest lists as written, after `load_replay` has restored their rows."""
        for kind, store in self._stores.items():
            store.continue_from(listed[kind]["segments"])

    def prune(self) -> None:
        """Delete the segments that no checkpoint in the folder needs."""
        if not self.storages or not self.folder.is_dir():
            return
        names = {path.name for path in self.checkpoints.glob("step_*")}
        self._listed = {name: listed for name, listed in self._listed.items() if name in names}
        for name in names - set(self._listed):
            self._listed[name] = _listed_in(self.checkpoints / name)
        prune_segments(self.folder, [files for listed in self._listed.values() for files in listed])


def load_replay(storages: Mapping[str, RowStorage], checkpoint: Path, listed: Mapping[str, Any]) -> None:
    """Restore the rows that the manifest of a checkpoint lists; each file is verified while it is read."""
    for kind, storage in storages.items():
        if kind not in listed:
            raise UserError(f"{checkpoint} has no {kind} for the replay buffer; use another checkpoint")
        entry, store = listed[kind], SegmentStore(checkpoint.parent / FOLDER, _prefix(kind))
        with _with_remedy(checkpoint):
            store.restore(storage, entry["segments"], entry["total_rows"], entry["kept_rows"])


def verify_replay(checkpoint: Path, listed: Mapping[str, Any]) -> None:
    """Raise if replay data that a checkpoint needs is missing or damaged."""
    for entry in listed.values():
        with _with_remedy(checkpoint):
            verify_segments(checkpoint.parent / FOLDER, entry["segments"])


@contextlib.contextmanager
def _with_remedy(checkpoint: Path) -> Iterator[None]:
    """Add what the user can still do to an error about replay data."""
    try:
        yield
    except UserError as error:
        raise UserError(
            f"{error}; the agent in {checkpoint} is intact: load it and save it to another folder to continue with an "
            "empty buffer"
        ) from error


def _listed_in(checkpoint: Path) -> list[Any]:
    try:
        replay = read_json(checkpoint / "manifest.json", MAX_TRUSTED_JSON_BYTES)["facts"].get("replay", {})
        return [entry["segments"] for entry in replay.values()]
    except (UserError, KeyError, TypeError, AttributeError):  # damaged, so no run can resume from it
        return []


def _prefix(kind: str) -> str:
    return "" if kind == "transitions" else kind
