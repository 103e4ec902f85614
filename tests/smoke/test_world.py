"""The script behind `make world`: what it tells apart, and that what is done stays done."""

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from loading import load_file

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    module = load_file("scripts/world.py")
    monkeypatch.setattr(module, "DATA", tmp_path / "world.json")
    monkeypatch.setattr(module, "TABLE", tmp_path / "world.md")
    monkeypatch.setattr(module, "prepare", lambda: None)
    monkeypatch.setattr(module, "report", lambda cells, mujoco: "")
    monkeypatch.setattr(sys, "argv", ["world.py"])
    return module


def test_ok_refused_and_a_process_that_dies_are_told_apart(world: ModuleType) -> None:
    def work(place: Any, column: str) -> dict[str, Any]:
        if column == "dies":
            os._exit(3)
        if column == "raises":
            raise ZeroDivisionError("by a stranger")
        os.write(1, b"noise of a stranger\n")
        return world.tried(place, column)

    place = world.Place("suite", "CartPole-v1")
    found = dict(world.attempts(place, ["dqn", "dies", "sac", "raises"], work))
    assert found["dqn"] == {"outcome": "ok", "noise": ["noise of a stranger"]}
    assert found["dies"] == {"outcome": "fault", "said": "the process died"}
    assert found["sac"]["outcome"] == "refused"
    assert "sac needs continuous actions" in found["sac"]["said"]
    assert found["raises"]["said"].startswith("ZeroDivisionError: by a stranger (test_world.py:")


def test_what_is_finished_is_kept_at_once_and_only_faults_are_tried_again(
    world: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place, ends, tried = world.Place("suite", "X-v0"), {"ppo": "ok", "dqn": "refused", "sac": "fault"}, []

    def attempts(place: Any, columns: list[str], work: Any) -> Any:
        for column in columns:
            tried.append(column)
            yield column, {"outcome": ends[column]}
            assert f"X-v0 | {column}" in json.loads((tmp_path / "world.json").read_text())["suite"]

    monkeypatch.setattr(world, "attempts", attempts)
    monkeypatch.setattr(world, "rows", lambda: [("suite", place, tuple(ends), None)])
    assert world.main() == 1
    ends["sac"] = "ok"
    assert world.main() == 0
    assert tried == ["ppo", "dqn", "sac", "sac"]
    monkeypatch.setattr(sys, "argv", ["world.py", "suite"])
    assert world.main() == 0
    assert tried[4:] == ["ppo", "dqn", "sac"]
