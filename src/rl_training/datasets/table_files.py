"""Reads the columns of a table: .npz, .csv or .parquet. Nothing in such a file is executed."""

import csv
import zipfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.core.errors import ConfigError, UserError, reason
from rl_training.core.types import Array
from rl_training.datasets.recording import plausible_size

SUFFIXES = (".npz", ".csv", ".parquet")
PYARROW = "pip install 'rl-training[offline]'"


def read_columns(path: Path, name: str) -> dict[str, Array]:
    """Return the columns of a table by name, all of the same length; raise one error for all problems."""
    readers = {".npz": _read_npz, ".csv": _read_csv, ".parquet": _read_parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise UserError(
            f"dataset '{name}' has the suffix '{path.suffix}'; use {', '.join(SUFFIXES)}, or a Minari dataset"
        )
    try:
        columns, problems = reader(path)
    except UserError:
        raise
    except PermissionError as error:
        raise UserError(f"dataset '{name}' cannot be read: {error.strerror}") from error
    except Exception as error:  # whatever zipfile, NumPy and pyarrow raise for damaged files
        raise UserError(f"dataset '{name}' cannot be read: {reason(error)}") from error
    lengths = {key: len(column) for key, column in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key} {length:,}" for key, length in lengths.items())
        problems.append(f"its columns have different lengths: {listed}")
    if problems:
        raise ConfigError(problems, f"dataset '{name}'")
    return columns


def _read_npz(path: Path) -> tuple[dict[str, Array], list[str]]:
    problems = []
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            problems += _member_problems(archive, member)
    if problems:
        return {}, problems
    columns = {}
    with np.load(path, allow_pickle=False) as arrays:
        for key in arrays.files:
            column = arrays[key]
            if not column.ndim:
                problems.append(f"'{key}' is a single value instead of a column")
            columns[key] = np.atleast_1d(column)
    return columns, problems


def _member_problems(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> list[str]:
    """Return why an array is not read: the memory that its header asks for is allocated before its data is read."""
    key = member.filename.removesuffix(".npy")
    if not plausible_size(member.file_size, member.compress_size):
        return [f"'{key}' announces {member.file_size:,} bytes and has {member.compress_size:,}"]
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(file)
    if dtype.hasobject:
        return [f"'{key}' holds Python objects, which are never loaded; save it as an array of numbers"]
    if prod(shape) * dtype.itemsize > member.file_size:
        return [f"'{key}' announces {prod(shape) * dtype.itemsize:,} bytes and has {member.file_size:,}"]
    return []


def _read_csv(path: Path) -> tuple[dict[str, Array], list[str]]:
    pyarrow_csv = _pyarrow("csv")
    with path.open(encoding="utf-8-sig", newline="") as file:
        names = next(csv.reader(file), [])
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        return {}, [f"there are several columns '{name}'" for name in repeated]
    return _columns_of(pyarrow_csv.read_csv(path))


def _read_parquet(path: Path) -> tuple[dict[str, Array], list[str]]:
    parquet = _pyarrow("parquet")
    described = parquet.ParquetFile(path)
    size = sum(
        described.metadata.row_group(number).total_byte_size
        for number in range(described.metadata.num_row_groups)
    )
    if not plausible_size(max(size, described.metadata.num_rows), path.stat().st_size):
        return {}, [
            f"it announces {described.metadata.num_rows:,} rows, and has only {path.stat().st_size:,} bytes"
        ]
    return _columns_of(described.read())


def _columns_of(table: Any) -> tuple[dict[str, Array], list[str]]:
    """Return the columns of an Arrow table; entries of structs get names such as `observations/a`."""
    columns, problems = dict[str, Array](), list[str]()
    for name in table.column_names:
        _add_column(name, table.column(name).combine_chunks(), columns, problems)
    return columns, problems


def _add_column(name: str, column: Any, columns: dict[str, Array], problems: list[str]) -> None:
    types = _pyarrow("types")
    if column.null_count:
        problems.append(f"'{name}' has {column.null_count:,} missing value(s)")
    elif types.is_struct(column.type):
        for place, part in enumerate(column.type):
            _add_column(f"{name}/{part.name}", column.field(place), columns, problems)
    elif (
        types.is_list(column.type)
        or types.is_large_list(column.type)
        or types.is_fixed_size_list(column.type)
    ):
        try:
            columns[name] = _stacked(column)
        except ValueError as error:
            problems.append(f"'{name}' {error}")
    else:
        columns[name] = column.to_numpy(zero_copy_only=False)


def _stacked(column: Any) -> Array:
    """Return a column of lists of equal length as an array [T, ...]."""
    rows = len(column)
    flat = column.flatten()
    if rows and len(flat) % rows:
        raise ValueError("has lists of different lengths")
    width = len(flat) // rows if rows else 0
    lengths = np.diff(column.offsets.to_numpy()) if hasattr(column, "offsets") else np.full(rows, width)
    if (lengths != width).any():
        raise ValueError("has lists of different lengths")
    inner = _stacked(flat) if hasattr(flat, "flatten") and _is_list(flat.type) else flat.to_numpy(False)
    return np.asarray(inner).reshape(rows, width, *np.shape(inner)[1:])


def _is_list(kind: Any) -> bool:
    types = _pyarrow("types")
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _pyarrow(module: str) -> Any:
    """Return a module of pyarrow; it is imported only where it is needed."""
    import importlib

    try:
        return importlib.import_module(f"pyarrow.{module}")
    except ImportError as error:
        raise UserError(f"CSV and Parquet files need pyarrow ({error}); install it with {PYARROW}") from error
