"""A sample of `make hostile`: run folders that mean harm, opened by real commands."""

import subprocess
import sys
from pathlib import Path

import pytest

from hostile_cases import run_folders

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
    assert attempt.problems == ("code was executed", "exit code 0 instead of 2")


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
