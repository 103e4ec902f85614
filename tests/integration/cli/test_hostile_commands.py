"""A sample of `make hostile`: bad command lines, configs, environments and machines, tried by real commands."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from loading import ROOT, load_file

pytestmark = pytest.mark.fault

SCRIPTS = ROOT / "scripts"


@pytest.fixture(scope="module")
def hostile() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield load_file("scripts/hostile.py")


@pytest.fixture(scope="module")
def attempts(hostile: ModuleType) -> ModuleType:
    return sys.modules["riddles.attempt"]


SAMPLE = [
    "no command",
    "a command misspelt",
    "a flag misspelt",
    "an environment misspelt",
    "tabs",
    "an environment that cannot be built",
    "an observation of another shape",
    "a working folder that is gone",
    "a broken disk at a checkpoint",
    "a limit of open files",
    "a run that is nowhere",
]


def kinds(hostile: ModuleType) -> dict:
    return {kind.name: kind for room in hostile.ROOMS.values() for kind in room}


@pytest.fixture(scope="module")
def reference(attempts: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("hostile")
    return folder, attempts.make_run(folder, paused=False)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample(hostile, attempts, reference, name):
    folder, run_dir = reference
    kind = kinds(hostile)[name]
    assert not kind.needs_run
    verdict = attempts.attempt(kind, folder / f"kind{SAMPLE.index(name)}", run_dir, run_dir)
    assert verdict.problems == (), verdict.said


def test_there_are_many_kinds_and_no_two_of_one_name(hostile):
    rooms = hostile.ROOMS.values()
    assert len(kinds(hostile)) == sum(map(len, rooms)) >= 150
    assert all(len(room) >= 25 for room in rooms)


def test_the_judge_sees_what_is_wrong(attempts):
    kind = sys.modules["riddles.kind"].Kind("x", (), ("culprit",))
    ended = attempts.Ended
    assert attempts.judged(kind, ended(2, "", "error: culprit\n")) == []
    assert attempts.judged(kind, ended(2, "", "error: an unexpected culprit\n")) == ["says 'nexpected'"]
    assert attempts.judged(kind, ended(None, "", "")) == ["still running after 120 s"]
    assert attempts.judged(kind, ended(1, "", "Traceback\nerror: a\x1b[2J\nerror: b\n")) == [
        "exit code 1 instead of 2",
        "says 'Traceback'",
        "escape sequences",
        "2 sentences instead of one",
        "a line from nowhere: Traceback",
        "does not say 'culprit'",
    ]


def test_what_is_lost_or_left_behind_is_seen(hostile, attempts, tmp_path):
    kind_class = sys.modules["riddles.kind"].Kind
    leaving = kind_class("x", ("--version",), shell="touch trace; exec {command}", code=0)
    verdict = attempts.attempt(leaving, tmp_path / "a", tmp_path, tmp_path)
    assert verdict.problems == (f"changed: {tmp_path / 'a' / 'here' / 'trace'}",)
    losing = kind_class("x", ("--version",), code=0, kept=sys.modules["riddles.kind"].Kept.RESUMES)
    assert attempts.attempt(losing, tmp_path / "b", tmp_path, tmp_path).problems == ("the run is gone",)
