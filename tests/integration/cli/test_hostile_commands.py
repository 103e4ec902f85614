"""Bad command lines and configs in this process, and a sample of `make hostile` in processes of their own."""

from pathlib import Path

import pytest

from hostile_cases import attempt as attempt_module
from hostile_cases.attempt import Ended, attempt, contents, judged, make_run
from hostile_cases.case import Arena, Case, Kept
from hostile_cases.groups import CASES, GROUPS

pytestmark = pytest.mark.fault

BAD_INPUT = {
    case.name: case
    for group in ("Command lines", "Config files", "Files without end")
    for case in GROUPS[group]
    if case.code == 2
}
SAMPLE = [
    "a command misspelt",
    "an observation of another shape",
    "a terminal that knows ASCII alone",
    "a full disk behind the output",
    "a working folder that is gone",
    "a broken disk at a checkpoint",
    "a limit of open files",
    "a run that is nowhere",
]
"""Cases that need a process, a shell or a disk of their own; the first checks the command itself."""


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_refused_and_leaves_no_trace(name, cli, tmp_path, monkeypatch):
    """All of them, in this process: it has imported everything already."""
    case, arena = BAD_INPUT[name], Arena(tmp_path, tmp_path)
    assert case.kept is Kept.NO_TRACE
    case.prepare(arena)
    before = contents(tmp_path)
    for variable in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.syspath_prepend(str(attempt_module.HERE / "modules"))
    monkeypatch.chdir(tmp_path)
    outcome = cli(*case.arguments)
    assert judged(case, Ended(outcome.code, outcome.out, outcome.err)) == []
    assert contents(tmp_path) == before


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("hostile")
    return folder, make_run(folder, paused=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_with_the_real_command(reference, name):
    folder, run_dir = reference
    case = CASES[name]
    assert not case.needs_run
    verdict = attempt(case, folder / f"case{SAMPLE.index(name)}", run_dir, run_dir)
    assert verdict.problems == (), verdict.said


def test_there_are_many_cases_and_no_two_of_one_name():
    assert len(CASES) == sum(map(len, GROUPS.values())) >= 150
    assert all(len(cases) >= 25 for cases in GROUPS.values())


def test_the_judge_sees_what_is_wrong():
    case = Case("x", (), ("culprit",))
    assert judged(case, Ended(2, "", "error: culprit\n")) == []
    assert judged(case, Ended(2, "", "error: culprit\n", 12.0, 3 * 10**9)) == ["took 12 s", "took 3.0 GB"]
    assert judged(case, Ended(2, "", "error: an unexpected culprit\n")) == ["says 'nexpected'"]
    assert judged(case, Ended(None, "", "")) == ["still running after 120 s"]
    assert judged(case, Ended(1, "", "Traceback\nerror: a\x1b[2J\nerror: b\n")) == [
        "exit code 1 instead of 2",
        "says 'Traceback'",
        "escape sequences",
        "2 sentences instead of one",
        "a line from nowhere: Traceback",
        "does not say 'culprit'",
    ]


def test_the_judge_sees_what_is_lost_or_left_behind(tmp_path):
    leaving = Case("x", ("--version",), shell="touch trace; exec {command}", code=0)
    verdict = attempt(leaving, tmp_path / "a", tmp_path, tmp_path)
    assert verdict.problems == (f"changed: {tmp_path / 'a' / 'here' / 'trace'}",)
    losing = Case("x", ("--version",), code=0, kept=Kept.RESUMES)
    assert attempt(losing, tmp_path / "b", tmp_path, tmp_path).problems == ("the run is gone",)
