"""docs/benchmarks.md: its examples run in order, as shown."""

import os
import re
import subprocess
import sys

import pytest

from loading import ROOT
from rl_training.lab.benchmark_text import COVERAGE
from rl_training.lab.statistics import RESAMPLES

PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
SCRIPTS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
KNOWN = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.slow
def test_its_blocks_run_and_leave_the_files_it_lists(tmp_path):
    (tmp_path / "script.py").write_text("\n".join(SCRIPTS), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path, env=KNOWN, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    listed = set(re.findall(r"`(\w+\.(?:md|csv|json|png))`", PAGE))
    made = {path.name for folder in ("report", "later") for path in (tmp_path / folder).iterdir()}
    assert made == listed - {"updates.png"}, "its runs count steps"
    assert "updates.png" in listed
    assert "| CartPole-v1 | ppo | 3 |" in done.stdout
    assert re.search(r"\n0\.\d\d \[0\.\d\d, 0\.\d\d\]\n$", done.stdout)


def test_its_numbers_are_those_of_the_code():
    assert f"{RESAMPLES:,} resamples" in PAGE
    words = " ".join(PAGE.split())
    few = [f"{percent}% of cases with {seeds} seeds" for seeds, percent in COVERAGE.items()][:1]
    few += [f"{percent}% with {seeds}" for seeds, percent in COVERAGE.items()][1:]
    assert ", ".join(few) in words
