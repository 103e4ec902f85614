"""Processes that a run starts."""

import subprocess
import sys
from pathlib import Path

from rl_training.core.processes import new_interpreter


def test_a_new_interpreter_imports_from_the_same_folders(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def main(arguments): print(arguments[1:])")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/skipped")])
    done = subprocess.run(new_interpreter("only_here", 3, "x"), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['3', 'x']"
