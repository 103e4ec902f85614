"""docs/custom-components.md: its project runs exactly as shown."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from loading import ROOT

PAGE = (ROOT / "docs" / "custom-components.md").read_text(encoding="utf-8")
ENCODER, SCRIPT, ELSEWHERE = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def run(folder: Path, script: str, *, told: str = "") -> str:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, script], cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == told
    return done.stdout


def test_the_script_is_short() -> None:
    lines = [line for line in SCRIPT.splitlines() if line.strip()]
    assert len(lines) < 40


@pytest.mark.slow
def test_the_page_runs_as_shown(tmp_path: Path) -> None:
    (tmp_path / "my_encoder.py").write_text(ENCODER, encoding="utf-8")
    (tmp_path / "train_walk.py").write_text(SCRIPT, encoding="utf-8")
    answer = "SIGINT: saving a checkpoint after this update; Ctrl-C again stops at once"
    told = run(tmp_path, "train_walk.py", told=answer)
    assert re.search(r"interrupted: .*step_2048", told), told
    assert float(told.split("return ")[1]) == pytest.approx(-1.0), "it walks straight to the end"
    (run_dir,) = (tmp_path / "runs").iterdir()
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert all("notes/first_step" in row for row in rows)
    assert rows[-1]["time/total_timesteps"] == 4096
    manifest = json.loads((tmp_path / "half_way" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["progress"]["timesteps"] == 2048

    (tmp_path / "train_walk.py").unlink()  # the environment is gone
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE, encoding="utf-8")
    assert run(tmp_path, "elsewhere.py").strip() == "[1]"
