"""docs/recipes.md: every example runs exactly as shown."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from loading import ROOT

PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
ENVIRONMENT, *SCRIPTS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
(SHELL,) = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
KNOWN = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(SCRIPTS)))
def test_a_script_runs_as_shown(tmp_path, number):
    (tmp_path / "my_env.py").write_text(ENVIRONMENT, encoding="utf-8")
    (tmp_path / "script.py").write_text(SCRIPTS[number], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=KNOWN,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.slow
def test_the_loop_survives_kills_and_knows_its_end(tmp_path):
    (tmp_path / "my_env.py").write_text(ENVIRONMENT, encoding="utf-8")
    (tmp_path / "go.sh").write_text(
        SHELL.replace("rl-training", f"{sys.executable} -m rl_training"), encoding="utf-8"
    )

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["sh", "go.sh"], cwd=tmp_path, env=KNOWN, start_new_session=True, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    process = start()
    deadline = time.monotonic() + 200
    while not list(tmp_path.glob("runs/*/checkpoints/step_*")):
        assert time.monotonic() < deadline, "no checkpoint appeared"
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    again = start()
    told = again.communicate(timeout=240)[0]
    assert again.returncode == 0, told
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert '"status": "finished"' in (run_dir / "metadata.json").read_text(encoding="utf-8")
    last = start()
    assert "is finished (4,096 of 4,096 steps)" in last.communicate(timeout=240)[0]
    assert last.returncode == 0
