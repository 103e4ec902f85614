"""Runs found in folders, as a sequence of records and as rows of a table. Needs no torch."""

import glob
import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from rl_training.core.errors import UserError, printable
from rl_training.experiment.records.read import NO_RUN, RunRecord, read_run, scalars

if TYPE_CHECKING:
    import pandas

DEPTH = 4
"""How many folders deep runs are looked for, as `runs/zoo/runs/<job>/<run>` lies; none is looked into that is a run."""
LAUNCH = frozenset({"jobs", "results"})
"""What `zoo run` and `benchmark` keep beside their `runs`, and what nobody takes for a run."""
Row = dict[str, Any]


class Runs(Sequence[RunRecord]):
    """Runs, one record each."""

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
        """Return those with one of the given values each; nothing given is no condition, and ids may be patterns."""
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
        """Return a row per run, with all its settings, or one per evaluation, without them; all have the same keys."""
        if not evaluations:
            return _with_all_keys([_with_settings(row_of(run), run.config) for run in self])
        return _with_all_keys([_identity_of(run) | scalars(row) for run in self for row in run.evaluations])

    def to_frame(self, *, evaluations: bool = False) -> "pandas.DataFrame":
        """Return the rows as a frame of pandas, which must be installed."""
        try:
            import pandas
        except ImportError as error:
            raise UserError("to_frame needs pandas: pip install pandas; rows() does without") from error
        return pandas.DataFrame(self.rows(evaluations=evaluations))


def load_runs(*patterns: str | PathLike[str]) -> Runs:
    """Return the runs in a folder, of a run folder itself, or of all that a pattern such as `runs/ppo__*` names.

    Damaged runs are among them, with status `damaged`; folders that are not runs are left out.
    """
    return Runs([record for record in search(*patterns or ("runs",)) if record.is_run])


def search(*patterns: str | PathLike[str]) -> list[RunRecord]:
    """Return a record of every folder that the patterns name or that lies in one of them, each once, by name."""
    found: dict[str, RunRecord] = {}
    for pattern in patterns:
        for path in _matching_folders(os.fspath(pattern)):
            for record in _records(path):
                # a link that is not followed is not what it leads to
                same = os.path.realpath(record.path) if record.is_run else os.path.abspath(record.path)
                found.setdefault(same, record)
    return list(found.values())


def run_at(path: str | PathLike[str]) -> RunRecord:
    """Return the run that a path means: its folder, a checkpoint of it, or `last`/`best` of one."""
    given, whole = Path(path), Path(path).absolute()
    for candidate in (given, whole.parent, whole.parent.parent):
        record = read_run(candidate)
        if record.is_run:
            return record
    problem = f"is not a run ({read_run(given).problem})" if os.path.lexists(given) else "does not exist"
    raise UserError(f"{path} {problem}; give a run folder")


def _matching_folders(pattern: str) -> list[Path]:
    """Return the folders that a path or a pattern names."""
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
    """Yield the record of a run, or those of what lies in a folder."""
    record = read_run(path)
    if record.is_run:
        yield record
    elif os.access(path, os.R_OK | os.X_OK):
        yield from _inside(path, "", DEPTH)
    else:
        raise UserError(f"{path} {record.problem}; give a folder that you may read")


def _inside(folder: Path, prefix: str, depth: int) -> Iterator[RunRecord]:
    try:
        with os.scandir(folder) as entries:
            found = sorted((entry.name, entry.is_symlink()) for entry in entries if _is_folder(entry))
    except OSError:  # its own record says so
        return
    ours = LAUNCH if {"jobs", "runs"} <= {name for name, _ in found} else frozenset()
    for name, is_link in found:
        if name.startswith("."):
            continue
        path, shown = folder / name, f"{prefix}{name}"
        if is_link:
            yield RunRecord(path, printable(shown), NO_RUN, "a link, which is followed only if you name it")
            continue
        record = read_run(path, shown)
        inner = [] if record.is_run or depth <= 1 else list(_inside(path, f"{shown}/", depth - 1))
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
    """Return what is told of every run, without its settings."""
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


def _with_settings(row: Row, config: Row) -> Row:
    """Return a row with the settings that it does not tell already, whatever names a damaged file gives them."""
    return row | {key: value for key, value in config.items() if key not in row}


def _with_all_keys(rows: list[Row]) -> list[Row]:
    """Return rows that all have the keys of all of them, in the order of their first appearance."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [{key: row.get(key) for key in keys} for row in rows]
