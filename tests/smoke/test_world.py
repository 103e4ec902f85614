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


def test_a_process_that_dies_and_one_that_raises_are_told_apart(world: ModuleType) -> None:
    """The children do no arithmetic: a fork of a process with threads, such as this one, may hang in it."""

    def work(place: Any, column: str) -> dict[str, Any]:
        if column == "dies":
            os._exit(3)
        if column == "raises":
            raise ZeroDivisionError("by a stranger")
        os.write(1, b"noise of a stranger\n")
        return {"outcome": "ok"}

    place = world.Place("suite", "CartPole-v1")
    found = dict(world.attempts(place, ["fine", "dies", "also fine", "raises"], work))
    for column in ("fine", "also fine"):
        assert found[column] == {"outcome": "ok", "noise": ["noise of a stranger"]}
    assert found["dies"] == {"outcome": "fault", "said": "the process died"}
    assert found["raises"]["said"].startswith("ZeroDivisionError: by a stranger (test_world.py:")


def test_what_is_refused_is_told_with_its_sentence(world: ModuleType) -> None:
    place = world.Place("suite", "CartPole-v1")
    assert world.tried(place, "dqn") == {"outcome": "ok"}
    refused = world.tried(place, "sac")
    assert refused["outcome"] == "refused"
    assert "sac needs continuous actions" in refused["said"]


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
