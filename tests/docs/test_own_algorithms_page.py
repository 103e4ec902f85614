"""docs/own-algorithms.md and the example project run as shown."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from loading import ROOT

PAGE = (ROOT / "docs" / "own-algorithms.md").read_text(encoding="utf-8")
MODULE, SCRIPT = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
(CONFIG,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
(SHELL,) = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
KNOWN = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}


def run(folder, *command):
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=KNOWN,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def project(tmp_path):
    (tmp_path / "my_ppo.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(CONFIG, encoding="utf-8")
    return tmp_path


def test_one_more_setting_takes_few_lines():
    lines = [line for line in MODULE.splitlines() if line.strip()]
    assert len(lines) <= 18


@pytest.mark.slow
def test_the_page_runs_as_shown(project, cli, monkeypatch):
    assert run(project, "script.py").count("MyPPO(") == 3
    monkeypatch.chdir(project)
    shown = ""
    for command in SHELL.splitlines():
        name, *words = command.split()
        assert name == "rl-training"
        outcome = cli(*words)
        assert outcome.code == 0, outcome.err
        shown += outcome.out
    sys.modules.pop("my_ppo")
    assert "Factor of all initial weights" in shown
    assert "2 of 2 runs are finished" in shown
    assert len(list(project.glob("runs/my_ppo-MyPPO__CartPole-v1__*"))) == 5


@pytest.mark.slow
def test_the_example_project_compares_two_algorithms(tmp_path):
    folder = tmp_path / "research_project"
    shutil.copytree(ROOT / "examples" / "research_project", folder)
    shown = run(folder, "compare.py", "--seeds", "1", "--total-timesteps", "1024", "--processes", "2")
    rows = re.findall(r"^\| (\w+\.yaml) \| (-?[\d.]+) \[.*\] \| [\d.]+ \[.*\] \|$", shown, re.MULTILINE)
    assert [name for name, _ in rows] == ["ppo.yaml", "robust_ppo.yaml"]
    assert re.search(r"P\(a run of RobustPPO beats one of PPO\) = \d\.\d\d \[", shown)
    (metadata,) = folder.glob("runs/runs/robust_ppo-*/*/metadata.json")
    assert '"update_path": "explicit, loss by autograd"' in metadata.read_text(encoding="utf-8")
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert all(f"`{file.name}`" in readme for file in folder.iterdir() if file.suffix in (".py", ".yaml"))
