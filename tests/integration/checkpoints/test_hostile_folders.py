"""A sample of `make hostile`: run folders that mean harm, opened by real commands."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from loading import load_file

pytestmark = pytest.mark.fault


@pytest.fixture(scope="module")
def hostile() -> ModuleType:
    return load_file("scripts/hostile_folders.py")


@pytest.fixture(scope="module")
def genuine(hostile: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return hostile.genuine_runs(tmp_path_factory.mktemp("genuine"))


SAMPLE = [
    ("modules under the names of our dependencies", "rl-training eval, inside"),
    ("modules under the names of Python's", "python -m eval, inside"),
    ("an environment in a module of the folder", "rl-training resume, inside"),
]


@pytest.mark.parametrize(("name", "door"), SAMPLE)
def test_a_hostile_folder(
    hostile: ModuleType, genuine: dict[str, Path], tmp_path: Path, name: str, door: str
) -> None:
    (kind,) = [kind for kind in hostile.kinds() if kind.name == name]
    arena = hostile.Arena(tmp_path / "there" / "arena", genuine[kind.algo])
    kind.harm(arena)
    program = hostile.MODULE if door.startswith("python -m") else hostile.CONSOLE
    attempt = hostile.attempt(kind, arena, door.split()[-2].rstrip(","), program, inside=True)
    assert attempt.door == door
    assert attempt.problems == ()


def test_the_payloads_are_live_and_the_judge_sees_them(
    hostile: ModuleType, genuine: dict[str, Path], tmp_path: Path
) -> None:
    """The same folder, trusted by the user: its module is imported."""
    arena = hostile.Arena(tmp_path / "there" / "arena", genuine["ppo"])
    hostile.trap(arena)
    arena.changed()
    ended = hostile.forked("eval", ["eval", ".", "--num-episodes", "1", "--trust-modules"], arena.run)
    attempt = hostile.judge("trusted", arena, "door", ended, 2)
    assert attempt.problems == ("code was executed", "exit code 0 instead of 2")


def test_the_judge_sees_what_changes_outside(
    hostile: ModuleType, genuine: dict[str, Path], tmp_path: Path
) -> None:
    arena = hostile.Arena(tmp_path / "there" / "arena", genuine["ppo"])
    arena.hard_link("metrics.jsonl")
    write = "import sys; open('metrics.jsonl', 'a').write('x'); sys.exit('\\x1b[31mTraceback')"
    arena.changed()
    attempt = hostile.judge("x", arena, "door", hostile.spawned([sys.executable, "-c", write], arena.run), 0)
    assert attempt.problems == (
        "changed outside: outside/metrics.jsonl",
        "a traceback",
        "escape sequences",
        "exit code 1 instead of 0",
    )


def test_there_are_many_kinds_and_each_does_something(
    hostile: ModuleType, genuine: dict[str, Path], tmp_path: Path
) -> None:
    kinds = hostile.kinds()
    assert len({kind.name for kind in kinds}) == len(kinds) > 50
    for number, kind in enumerate(kinds):
        arena = hostile.Arena(tmp_path / str(number), genuine[kind.algo])
        kind.harm(arena)
        same = subprocess.run(
            ["diff", "-rq", "--no-dereference", str(genuine[kind.algo]), str(arena.run)],
            stdout=subprocess.DEVNULL,
            check=False,
            timeout=20,
        )
        linked = any(path.stat().st_nlink > 1 for path in arena.run.rglob("*") if path.is_file())
        assert same.returncode != 0 or linked, kind.name
