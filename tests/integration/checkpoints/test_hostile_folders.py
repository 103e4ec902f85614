"""A sample of `make hostile`: run folders that mean harm, opened by real commands."""

import subprocess
import sys
from pathlib import Path

import pytest

from hostile_cases import endless_files, large_folders, progress, run_folders

pytestmark = pytest.mark.fault


@pytest.fixture(scope="module")
def genuine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return run_folders.genuine_runs(tmp_path_factory.mktemp("genuine"))


SAMPLE = [
    ("modules under the names of our dependencies", "rl-training eval, inside"),
    ("modules under the names of Python's", "python -m eval, inside"),
    ("an environment in a module of the folder", "rl-training resume, inside"),
]


@pytest.mark.parametrize(("name", "door"), SAMPLE)
def test_a_hostile_folder(genuine: dict[str, Path], tmp_path: Path, name: str, door: str) -> None:
    (case,) = [case for case in run_folders.cases() if case.name == name]
    arena = run_folders.Arena(tmp_path / "there" / "arena", genuine[case.algo])
    case.harm(arena)
    program = run_folders.MODULE if door.startswith("python -m") else run_folders.CONSOLE
    attempt = run_folders.attempt(case, arena, door.split()[-2].rstrip(","), program, inside=True)
    assert attempt.door == door
    assert attempt.problems == ()


def test_the_payloads_are_live_and_the_judge_sees_them(genuine: dict[str, Path], tmp_path: Path) -> None:
    """The same folder, trusted by the user: its module is imported."""
    arena = run_folders.Arena(tmp_path / "there" / "arena", genuine["ppo"])
    run_folders.trap(arena)
    arena.changed()
    ended = run_folders.forked("eval", ["eval", ".", "--num-episodes", "1", "--trust-modules"], arena.run)
    attempt = run_folders.judge("trusted", arena, "door", ended, 2)
    assert attempt.problems == ("code was executed", "exit code 0 instead of 2", "0 errors instead of one")


def test_the_judge_sees_what_changes_outside(genuine: dict[str, Path], tmp_path: Path) -> None:
    arena = run_folders.Arena(tmp_path / "there" / "arena", genuine["ppo"])
    arena.hard_link("metrics.jsonl")
    write = "import sys; open('metrics.jsonl', 'a').write('x'); sys.exit('\\x1b[31mTraceback')"
    arena.changed()
    attempt = run_folders.judge(
        "x", arena, "door", run_folders.spawned([sys.executable, "-c", write], arena.run), 0
    )
    assert attempt.problems == (
        "changed outside: outside/metrics.jsonl",
        "a traceback",
        "escape sequences",
        "exit code 1 instead of 0",
    )


def test_there_are_many_kinds_and_each_does_something(genuine: dict[str, Path], tmp_path: Path) -> None:
    cases = run_folders.cases()
    assert len({case.name for case in cases}) == len(cases) > 50
    for number, case in enumerate(cases):
        arena = run_folders.Arena(tmp_path / str(number), genuine[case.algo])
        case.harm(arena)
        same = subprocess.run(
            ["diff", "-rq", "--no-dereference", str(genuine[case.algo]), str(arena.run)],
            stdout=subprocess.DEVNULL,
            check=False,
            timeout=20,
        )
        linked = any(path.stat().st_nlink > 1 for path in arena.run.rglob("*") if path.is_file())
        assert same.returncode != 0 or linked, case.name


LARGE = {
    "weights of 6 GB, as the manifest says": "resume",
    "90,000 unknown settings of the run": "load",
    "a stack of 10^8 frames": "eval",
    "a pipe among the arguments": "eval",
    "65,536 environments": "resume",
    "300,000 evaluations": "runs list",
}


@pytest.mark.parametrize("name", LARGE)
def test_a_folder_that_would_take_memory_or_time(genuine: dict[str, Path], tmp_path: Path, name: str) -> None:
    (case,) = [case for case in large_folders.cases() if case.name == name]
    arena = run_folders.Arena(tmp_path / "there" / "arena", genuine[case.algo])
    case.harm(arena)
    attempt = run_folders.attempt(case, arena, LARGE[name], (), inside=False)
    assert [
        problem for problem in attempt.problems if " s" not in problem
    ] == []  # other tests take time, too
    assert 0 < attempt.num_bytes < run_folders.MAX_BYTES


def test_no_two_cases_have_one_name() -> None:
    names = [case.name for case in (*run_folders.cases(), *large_folders.cases())]
    assert len(set(names)) == len(names)
    assert len(large_folders.cases()) + len(endless_files.CASES) >= 150


def test_the_judge_sees_time_memory_and_several_errors(genuine: dict[str, Path], tmp_path: Path) -> None:
    arena = run_folders.Arena(tmp_path / "there" / "arena", genuine["ppo"])
    arena.changed()
    ended = run_folders.Ended(2, "", "error: a\nerror: b\n", 11.4, 2 * 10**9)
    attempt = run_folders.judge("x", arena, "door", ended, 2)
    assert attempt.problems == ("took 11 s", "took 2.0 GB", "2 errors instead of one")
    assert (attempt.seconds, attempt.num_bytes) == (11.4, 2 * 10**9)


def test_a_child_is_measured_and_a_stuck_one_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folders, "SECONDS", 1)
    waiting = "import time; x = bytearray(2 * 10**8); time.sleep(60)"
    ended = run_folders.spawned([sys.executable, "-c", waiting], tmp_path)
    assert ended.code == -1
    assert 1 <= ended.seconds < 30
    assert ended.num_bytes > 2 * 10**8


def test_an_interrupted_search_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.tempfile, "gettempdir", lambda: str(tmp_path))
    first = progress.Progress("x")
    first.add("a case", [{"problems": []}])
    with first.path.open("a", encoding="utf-8") as file:
        file.write('["torn')
    assert progress.Progress("x").done == {"a case": [{"problems": []}]}
    first.finish()
    assert progress.Progress("x").done == {}
