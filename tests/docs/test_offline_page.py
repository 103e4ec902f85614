"""The Python of docs/offline.md runs in order on a small dataset."""

import re
from pathlib import Path

from support.datasets import tiny_dataset

PAGE = Path(__file__).parents[2] / "docs" / "offline.md"


def test_its_python_runs_in_order(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "pendulum").symlink_to(tiny_dataset("Pendulum-v1"))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 3
    for code in blocks:
        exec(code, names)
