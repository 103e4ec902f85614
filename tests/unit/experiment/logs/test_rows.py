"""Logs of a stranger: long lines, many damaged rows, large and sparse files."""

import json
import os
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest

from rl_training.core.errors import UserError
from rl_training.experiment.logs import curves
from rl_training.experiment.logs import rows as module
from rl_training.experiment.logs.rows import end_of_last_row, last_row, read_rows

ROW = b'{"timesteps": 1}\n'


def test_a_line_without_end_is_a_damaged_row_that_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with path.open("wb") as file:
        file.write(ROW)
        file.truncate(30 << 20)  # one line of zeros
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + ROW)
    tracemalloc.start()
    with pytest.warns(UserWarning, match="damaged row 2"):
        assert read_rows(path) == [{"timesteps": 1}] * 2
    assert tracemalloc.get_traced_memory()[1] < 4 * module.MAX_LINE_BYTES
    tracemalloc.stop()


def test_a_log_larger_than_any_run_writes_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.touch()
    os.truncate(path, 6 << 30)  # sparse: takes no room
    with pytest.raises(UserError, match="at most 1024 MiB"):
        read_rows(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match="is not a regular file"):
        read_rows(path)


def test_of_many_damaged_rows_some_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"x\n" * 1_000 + ROW)
    with pytest.warns(UserWarning, match="damaged row") as reported:
        assert len(read_rows(path)) == 1
    assert len(reported) == module.MAX_WARNINGS + 1
    assert "990 more damaged rows" in str(reported[-1].message)


def test_of_a_large_log_rows_at_equal_distances_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps({"timesteps": k}) + "\n" for k in range(10_000)), encoding="utf-8")
    assert len(read_rows(path)) == 10_000
    monkeypatch.setattr(module, "MAX_WHOLE_BYTES", 1_000)
    monkeypatch.setattr(module, "SAMPLE", 100)
    steps = [row["timesteps"] for row in read_rows(path)]
    assert steps[0] == 0
    assert steps[-1] == 9_999
    assert steps == sorted(set(steps))
    assert 100 <= len(steps) <= 101
    assert max(b - a for a, b in pairwise(steps)) < 200


@pytest.mark.parametrize("rows", [0, 1, 10_000])
def test_the_end_of_the_last_row(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(ROW * rows + b"x" * 200_000)
    assert end_of_last_row(path) == len(ROW) * rows
    assert last_row(path) == {}


def test_a_curve_of_many_evaluations_is_drawn_with_few_dots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(
        curves, "_draw", lambda rows, evaluations, title: drawn.append(len(evaluations)) or b""
    )
    row = b'{"timesteps": 1, "mean_reward": 1, "returns": [1]}\n'
    for count in (curves.MAX_POINTS, 2 * curves.MAX_POINTS + 1):
        (tmp_path / "evaluations.jsonl").write_bytes(row * count)
        curves.plot_learning_curve(tmp_path, "title")
    assert drawn == [curves.MAX_POINTS, -(-(2 * curves.MAX_POINTS + 1) // 3)]
    evaluations = [{"timesteps": k, "mean_reward": 1.0, "returns": [1.0]} for k in range(3_000)]
    (axes,) = curves._figure([], evaluations, "title").axes
    assert len(axes.lines) == 1_000 + 1


def test_damaged_rows_of_a_sample_have_no_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row's number in the sample is not its number in the file."""
    monkeypatch.setattr(module, "MAX_WHOLE_BYTES", 1)
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"timesteps": 1}\n' + "x\n" * 7 + '{"timesteps": 5}\n', encoding="utf-8")
    with pytest.warns(UserWarning, match="skipping damaged rows, [2-7] in a sample") as reported:
        assert len(read_rows(path)) == 2
    assert len(reported) == 1
