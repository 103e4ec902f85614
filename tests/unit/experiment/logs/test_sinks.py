"""What metric files say of numbers that are none, and of rows that are not whole."""

import csv
import json
import math
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig
from rl_training.experiment.logs.rows import read_rows
from rl_training.experiment.logs.sinks import MetricFiles

STEP = "time/total_timesteps"


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


def test_numbers_that_are_not_finite_are_null_in_json_and_empty_in_csv(tmp_path: Path) -> None:
    """Nought would be a result; the columns appear with the first row and in the middle of the file."""
    files = MetricFiles(tmp_path, TrainConfig(algo="ppo", env_id="CartPole-v1"), {})
    bad = {"a": math.nan, "b": math.inf, "c": -math.inf}
    files.log({STEP: 1.0, "a": math.nan}, 1)
    files.log({STEP: 2.0} | bad, 2)
    files.log({STEP: 3.0} | bad, 3)
    files.close()
    lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line, parse_constant=refuse) for line in lines] == [
        {STEP: 1.0, "a": None},
        {STEP: 2.0, "a": None, "b": None, "c": None},
        {STEP: 3.0, "a": None, "b": None, "c": None},
    ]
    with (tmp_path / "metrics.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.reader(file))
    assert table == [[STEP, "a", "b", "c"], ["1.0", "", "", ""], ["2.0", "", "", ""], ["3.0", "", "", ""]]


def test_a_torn_last_row_is_left_out(tmp_path: Path) -> None:
    """Whatever is left of it: half of a name, half of a number, or all but the last brace."""
    path = tmp_path / "metrics.jsonl"
    whole = '{"a": 1.5}\n{"a": 2.25}\n'
    for length in range(1, len('{"a": 3.75}')):
        path.write_text(whole + '{"a": 3.75}'[:length], encoding="utf-8")
        assert read_rows(path) == [{"a": 1.5}, {"a": 2.25}]
