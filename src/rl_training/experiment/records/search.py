"""Finds runs in folders, and returns them as records or table rows. Needs no torch."""

import glob
import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import count
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from rl_training.core.errors import UserError, printable
from rl_training.experiment.records.read import NO_RUN, RunRecord, read_run, scalars

if TYPE_CHECKING:
    import pandas

MAX_FOLDERS = 20_000
"""Folders that are searched."""
DEPTH = 4
"""Levels of folders that are searched, as for `runs/zoo/runs/<job>/<run>`; run folders are not searched."""
LAUNCH = frozenset({"jobs", "results"})
"""Folders that `zoo run` and `benchmark` create next to `runs`."""
Row = dict[str, Any]


class Runs(Sequence[RunRecord]):
    """A sequence of run records."""

    def __init__(self, records: Sequence[RunRecord]) -> None:
        self._records = list(records)

    @overload
    def __getitem__(self, index: int) -> RunRecord: ...
    @overload
    def __getitem__(self, index: slice) -> "Runs": ...
    def __getitem__(self, index: int | slice) -> "RunRecord | Runs":
        return Runs(self._records[index]) if isinstance(index, slice) else self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"<{len(self)} runs>"

    def where(
        self,
        *,
        algo: Sequence[str] = (),
        env_id: Sequence[str] = (),
        status: Sequence[str] = (),
        seed: Sequence[int] = (),
    ) -> "Runs":
        """Return the runs that match all given conditions; `env_id` takes patterns such as `ALE/*`."""
        return Runs(
            [
                run
                for run in self
                if (not algo or run.algo in algo)
                and (not env_id or any(fnmatchcase(run.env_id or "", pattern) for pattern in env_id))
                and (not status or run.status in status)
                and (not seed or run.seed in seed)
            ]
        )

    def rows(self, *, evaluations: bool = False) -> list[Row]:
        """Return one row per run with its settings, or one per evaluation; all rows have the same keys."""
        if not evaluations:
            return _with_all_keys([row_of(run) | run.config | row_of(run) for run in self])
        return _with_all_keys([_identity_of(run) | scalars(row) for run in self for row in run.evaluations])

    def to_frame(self, *, evaluations: bool = False) -> "pandas.DataFrame":
        """Return the rows as a pandas DataFrame; pandas must be installed."""
        try:
            import pandas
        except ImportError as error:
            raise UserError("to_frame needs pandas; pip install pandas, or use rows()") from error
        return pandas.DataFrame(self.rows(evaluations=evaluations))


def load_runs(*patterns: str | PathLike[str]) -> Runs:
    """Return the runs in folders; each pattern is a folder of runs, a run folder, or a glob such as `runs/ppo__*`.

    Damaged runs are included with status `damaged`; other folders are not.
    """
    return Runs([record for record in search(*patterns or ("runs",)) if record.is_run])


def search(*patterns: str | PathLike[str]) -> list[RunRecord]:
    """Return a record of every folder that matches a pattern or is inside a matching one, each once."""
    found: dict[str, RunRecord] = {}
    for pattern in patterns:
        for path in _matching_folders(os.fspath(pattern)):
            for record in _records(path):
                # a link that is not followed counts as itself
                same = os.path.realpath(record.path) if record.is_run else os.path.abspath(record.path)
                found.setdefault(same, record)
    return list(found.values())


def run_at(path: str | PathLike[str]) -> RunRecord:
    """Return the run of a path: its folder, a checkpoint, or `last`/`best`."""
    given, whole = Path(path), Path(path).absolute()
    for candidate in (given, whole.parent, whole.parent.parent):
        record = read_run(candidate)
        if record.is_run:
            return record
    problem = f"is not a run ({read_run(given).problem})" if os.path.lexists(given) else "does not exist"
    raise UserError(f"{path} {problem}; give a run folder")


def _matching_folders(pattern: str) -> list[Path]:
    """Return the folders that match a path or a pattern."""
    if os.path.isdir(pattern):
        return [Path(pattern)]
    if not glob.has_magic(pattern):
        problem = "is not a folder" if os.path.lexists(pattern) else "does not exist"
        raise UserError(
            f"{pattern or repr(pattern)} {problem}; give a folder of runs, a run, or a pattern such as 'runs/ppo__*'"
        )
    try:
        matches = [
            Path(match) for match in sorted(glob.glob(pattern, recursive=True)) if os.path.isdir(match)
        ]
    except ValueError as error:
        raise UserError(f"{pattern[:200]!r} cannot be searched: {error}") from error
    if not matches:
        raise UserError(f"no folder matches '{pattern}'")
    return matches


def _records(path: Path) -> Iterator[RunRecord]:
    """Yield the record of a run, or the records of the folders inside."""
    record = read_run(path)
    if record.is_run:
        yield record
    elif os.access(path, os.R_OK | os.X_OK):
        yield from _inside(path, "", DEPTH, count(1))
    else:
        raise UserError(f"{path} {record.problem}; give a readable folder")


def _inside(folder: Path, prefix: str, depth: int, searched: Iterator[int]) -> Iterator[RunRecord]:
    try:
        with os.scandir(folder) as entries:
            found = sorted((entry.name, entry.is_symlink()) for entry in entries if _is_folder(entry))
    except OSError:  # reported by its own record
        return
    ours = LAUNCH if {"jobs", "runs"} <= {name for name, _ in found} else frozenset()
    for name, is_link in found:
        if name.startswith("."):
            continue
        path, shown = folder / name, f"{prefix}{name}"
        if next(searched) > MAX_FOLDERS:
            raise UserError(f"{folder}: more than {MAX_FOLDERS:,} folders to search; give a narrower folder")
        if is_link:
            yield RunRecord(path, printable(shown), NO_RUN, "a link; give its path to follow it")
            continue
        record = read_run(path, shown)
        inner = [] if record.is_run or depth <= 1 else list(_inside(path, f"{shown}/", depth - 1, searched))
        if any(other.is_run for other in inner):
            yield from inner
        elif record.is_run or name not in ours:
            yield record


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _identity_of(run: RunRecord) -> Row:
    return {
        "name": run.name,
        "path": str(run.path),
        "algo": run.algo,
        "env_id": run.env_id,
        "seed": run.seed,
        "status": run.status,
    }


def row_of(run: RunRecord) -> Row:
    """Return the columns of a run, without its settings."""
    versions = run.metadata_entry("versions")
    return _identity_of(run) | {
        "timesteps": run.timesteps,
        "total_timesteps": run.total_timesteps,
        "score": run.score,
        "best": run.best,
        "num_evaluations": run.num_evaluations,
        "started": run.started.isoformat() if run.started else None,
        "finished": run.finished.isoformat() if run.finished else None,
        "git_commit": run.metadata_entry("git_commit"),
        "version": versions.get("rl_training") if isinstance(versions, dict) else None,
        "problem": run.problem,
    }


def _with_all_keys(rows: list[Row]) -> list[Row]:
    """Return rows that all have the same keys, in order of first appearance."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [{key: row.get(key) for key in keys} for row in rows]
