"""docs/runs.md: its scripts and commands run as shown."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from loading import ROOT
from rl_training.experiment.records.read import NO_RUN, STATUSES
from support.folders import run_folder

PAGE = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
SCRIPT, WITH_PANDAS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
(SHELL,) = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)


def run_script(text: str, folder: Path) -> str:
    known = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    }
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=folder,
        env=known,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
def test_the_script_runs_as_shown(tmp_path):
    lines = run_script(SCRIPT, tmp_path).splitlines()
    assert [line.split()[1] for line in lines] == ["1", "2"]
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {line.split()[0] for line in lines}


@pytest.mark.extra
def test_the_script_with_pandas_runs_as_shown(tmp_path):
    pytest.importorskip("pandas", reason="pandas is not installed: run make test-extras")
    run_folder(tmp_path / "runs", "one")
    run_folder(tmp_path / "runs", "two", (3.0, 7.0))
    said = run_script(WITH_PANDAS, tmp_path)
    assert re.search(r"ppo +CartPole-v1 +5\.0 .* 2", said)
    assert re.search(r"1000 +5\.0", said)


def test_its_commands_run_as_shown(cli, tmp_path, monkeypatch):
    run_folder(tmp_path / "runs", "RUN", seed=1)
    run_folder(tmp_path / "runs", "OTHER", seed=2)
    monkeypatch.chdir(tmp_path)
    *commands, last = [shlex.split(line)[1:] for line in SHELL.splitlines()]
    for words in commands:
        outcome = cli(*words)
        assert (outcome.code, outcome.err) == (0, ""), words
        assert outcome.out
    assert last[:2] == ["runs", "rm"]
    assert cli(*last, "--yes").code == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["OTHER"]
    assert (tmp_path / "results.csv").exists()


def test_it_lists_every_status():
    assert all(f"`{status}`" in PAGE for status in (*STATUSES, NO_RUN))
