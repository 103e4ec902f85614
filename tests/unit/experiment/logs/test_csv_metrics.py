"""`metrics.csv`: continued without reading a million rows, and harmless in a spreadsheet."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rl_training.cli.export_results import csv_text
from rl_training.core.csv_cells import csv_cell, csv_table
from rl_training.experiment.logs import csv_metrics
from rl_training.experiment.logs.csv_metrics import CsvTable

STEP = "time/total_timesteps"


def written(folder: Path, rows: list[dict[str, Any]]) -> tuple[Path, Path]:
    """Write a table and its log, as a run does."""
    table, log = folder / "metrics.csv", folder / "metrics.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    CsvTable(table, log).close()
    return table, log


def cells(table: Path) -> list[list[str]]:
    with table.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


FORMULAS = ["=1+1", "+cmd", "-1+cmd|' /C calc'!A0", "@SUM(1)", "\t=1", "\r=1", "=", "-inf"]


@pytest.mark.parametrize("text", FORMULAS)
def test_what_a_spreadsheet_would_execute_is_only_shown(tmp_path: Path, text: str) -> None:
    shown = f"'{text}".replace("\r", " ")
    assert csv_cell(text) == shown
    assert csv_cell("a\r=1") == "a =1"
    assert list(csv.reader(csv_table([{text: text}]).splitlines(keepends=True))) == [[shown]] * 2
    (header, row) = list(csv.reader(csv_text([{"problem": text}]).splitlines(keepends=True)))
    assert (header, row) == (["problem"], [shown])
    table = CsvTable(tmp_path / "metrics.csv", tmp_path / "none")
    table.log({STEP: 1.0}, 1)
    table.log({STEP: 2.0, text: -3.0}, 2)
    table.close()
    assert cells(tmp_path / "metrics.csv")[0] == [STEP, shown]
    assert cells(tmp_path / "metrics.csv")[2] == ["2.0", "-3.0"]


@pytest.mark.parametrize("value", ["-2.5", "+1e-3", "-.5", "ppo", "", None, -3, -2.5, "a=b", "'x"])
def test_numbers_and_other_text_stay_as_they_are(value: Any) -> None:
    assert csv_cell(value) is value


def call_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all tables count as large."""
    monkeypatch.setattr(csv_metrics, "MAX_WHOLE_BYTES", 1)
    monkeypatch.setattr(csv_metrics, "read_rows", lambda *_: pytest.fail("all rows were parsed"))


ROWS = [{STEP: k, "a": k / 7, "b": None} for k in range(1, 2_000)]


def test_a_large_table_is_cut_to_the_rows_of_its_log(tmp_path: Path, monkeypatch: Any) -> None:
    table, log = written(tmp_path, ROWS)
    call_large(monkeypatch)
    whole = table.read_bytes()
    kept = ROWS[:1_500]
    log.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    again = CsvTable(table, log)
    assert table.read_bytes() == b"".join(whole.splitlines(keepends=True)[:1_501])
    for row in ROWS[1_500:]:
        again.log(row, row[STEP])
    again.close()
    assert table.read_bytes() == whole


def test_a_large_table_with_hard_links_is_copied_before_it_is_cut(tmp_path: Path, monkeypatch: Any) -> None:
    """As in a copy that `cp -al` made: the original must not change."""
    table, log = written(tmp_path, ROWS)
    call_large(monkeypatch)
    original = tmp_path / "original.csv"
    original.hardlink_to(table)
    whole = table.read_bytes()
    log.write_text("".join(json.dumps(row) + "\n" for row in ROWS[:1_500]), encoding="utf-8")
    again = CsvTable(table, log)
    again.log(ROWS[0], 1)
    again.close()
    assert original.read_bytes() == whole
    assert len(cells(table)) == 1_502


def test_a_log_that_is_too_large_to_read_continues_with_new_rows(tmp_path: Path, monkeypatch: Any) -> None:
    table, log = written(tmp_path, ROWS)
    call_large(monkeypatch)
    monkeypatch.setattr(csv_metrics, "MAX_LOG_BYTES", log.stat().st_size - 1)
    with pytest.warns(UserWarning, match=r"is not compared with metrics\.jsonl.*continues with new rows"):
        again = CsvTable(table, log)
    again.log(ROWS[0], 1)
    again.close()
    assert len(cells(table)) == 2


@pytest.mark.parametrize(
    "harm", ["a row less", "another row", "a formula", "a new column", "missing", "no header"]
)
def test_a_large_table_that_differs_continues_with_new_rows(
    tmp_path: Path, monkeypatch: Any, harm: str
) -> None:
    table, log = written(tmp_path, ROWS)
    call_large(monkeypatch)
    lines = table.read_bytes().splitlines(keepends=True)
    changed = {
        "a row less": lines[:-1],
        "another row": [lines[0], b"7,1.0,\n", *lines[2:]],
        "a formula": [*lines[:50], b"=1,1.0,\n", *lines[51:]],
        "a new column": [line[:-1] + (b",c\n" if line is lines[0] else b",\n") for line in lines],
        "missing": [],
        "no header": lines[1:],
    }[harm]
    table.write_bytes(b"".join(changed))
    with pytest.warns(UserWarning, match=r"metrics\.csv has other rows than metrics\.jsonl"):
        again = CsvTable(table, log)
    again.log(ROWS[0], 1)
    again.close()
    assert cells(table) == [[STEP, "a", "b"], ["1", str(1 / 7), ""]]


def test_a_new_column_gets_empty_cells_in_all_rows(tmp_path: Path) -> None:
    table = tmp_path / "metrics.csv"
    again = CsvTable(table, tmp_path / "none")
    again.log({STEP: 1.0, "two\nlines": 2.0}, 1)
    again.log({STEP: 2.0, "x": 3.0, "y": 4.0}, 2)
    again.close()
    assert cells(table) == [[STEP, "two\nlines", "x", "y"], ["1.0", "2.0", "", ""], ["2.0", "", "3.0", "4.0"]]


PROGRAM = r"""
import json, re, sys, time
from pathlib import Path
from rl_training.config import TrainConfig
from rl_training.experiment.logs.curves import plot_learning_curve
from rl_training.experiment.logs.sinks import MetricFiles
folder = Path(sys.argv[1])
started = time.monotonic()
sizes = {path.name: path.stat().st_size for path in folder.glob("*.jsonl")}
files = MetricFiles(folder, TrainConfig(algo="ppo", env_id="CartPole-v1"), sizes)
files.log({"time/total_timesteps": 2e6, "rollout/ep_rew_mean": 1.0}, 2_000_000)
files.close()
plot_learning_curve(folder, "title")
seconds = time.monotonic() - started
peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
print(json.dumps([seconds, int(peak[1]) / 1024]))
"""


@pytest.mark.slow
def test_a_million_rows_are_continued_in_seconds_and_little_memory(tmp_path: Path) -> None:
    names = ["rollout/ep_rew_mean", "rollout/ep_len_mean", *(f"train/value{k}" for k in range(8))]
    columns = ",".join([STEP, *names])
    steps = range(1_000_000, 1_010_000)
    block = "".join(
        f'{{"{STEP}": {k}' + "".join([f', "{name}": {k}.5' for name in names]) + "}\n" for k in steps
    )
    (tmp_path / "metrics.jsonl").write_text(block * 100, encoding="utf-8")
    block = "".join(f"{k}" + f",{k}.5" * len(names) + "\n" for k in steps)
    (tmp_path / "metrics.csv").write_text(columns + "\n" + block * 100, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seconds, megabytes = json.loads(done.stdout)
    assert seconds < 5
    assert megabytes < 500
    assert (tmp_path / "metrics.csv").read_bytes().count(b"\n") == 1_000_002
