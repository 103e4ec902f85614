"""Verdicts of `make hostile` so far, so that an interrupted run goes on where it was."""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Progress:
    """A file of JSON lines in the temporary folder; it belongs to the present state of the code and the cases."""

    def __init__(self, name: str) -> None:
        digest = hashlib.sha256()
        for folder in (ROOT / "src", ROOT / "tests" / "hostile_cases"):
            for path in sorted(folder.rglob("*.py")):
                digest.update(path.read_bytes())
        self.path = Path(tempfile.gettempdir()) / f"rl_training_{name}_{digest.hexdigest()[:16]}.jsonl"
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.is_file() else []
        self.done: dict[str, Any] = dict(json.loads(line) for line in lines if line.endswith("]"))

    def add(self, key: str, verdict: Any) -> None:
        """Keep what was found about a case."""
        self.done[key] = verdict
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([key, verdict]) + "\n")

    def finish(self) -> None:
        """Delete the file, after the report is written."""
        self.path.unlink(missing_ok=True)
