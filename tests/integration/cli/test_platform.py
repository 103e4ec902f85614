"""Where there is no POSIX, one sentence says so."""

import subprocess
import sys
from pathlib import Path

import pytest

from loading import ROOT

SENTENCE = "for file locks, signals and forks; on Windows, use WSL"
ELSEWHERE = "import sys\nsys.modules['fcntl'] = None  # as Windows has none\n"


def elsewhere(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ELSEWHERE + script],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.mark.parametrize("command", [["train", "ppo", "--env-id", "CartPole-v1"], ["eval", "runs"]])
def test_a_command_says_so(tmp_path, command):
    done = elsewhere(tmp_path, f"from rl_training.cli import main\nsys.exit(main({command!r}))\n")
    assert done.returncode == 2
    assert done.stderr.startswith("error: rl_training needs a POSIX system")
    assert done.stderr.strip().endswith(SENTENCE)
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_python_says_so(tmp_path):
    done = elsewhere(tmp_path, "import rl_training\nrl_training.load('runs')\n")
    assert done.stderr.splitlines()[-1].endswith(SENTENCE)


def test_it_is_declared():
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '"Operating System :: POSIX"' in declared
