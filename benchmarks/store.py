"""Measurements as JSON, written after every round, so that a benchmark can be stopped and continued."""

import hashlib
import json
from pathlib import Path
from typing import Any

from rl_training.experiment.files import write_json

Round = dict[str, dict[str, Any]]
"""Side -> its measurement."""


class Store:
    """Rounds of rows in a file. Rounds with other settings, versions or source are not continued."""

    def __init__(self, path: Path, surroundings: dict[str, Any]) -> None:
        self.path, self.surroundings = path, surroundings
        self.rows: dict[str, dict[str, Any]] = {}
        if path.exists():
            self.rows = json.loads(path.read_text(encoding="utf-8"))["rows"]

    def begin(self, name: str, key: dict[str, Any]) -> str | None:
        """Prepare a row for more rounds; return why earlier rounds do not count, or None."""
        # as it is read from a file, where tuples are lists
        made_with = json.loads(json.dumps({"settings": key, **self.surroundings}))
        before = self.rows.get(name)
        if before is not None and before["made_with"] == made_with:
            return None
        self.rows[name] = {"made_with": made_with, "rounds": []}
        if before is None:
            return None
        changed = [part for part in made_with if before["made_with"].get(part) != made_with[part]]
        return f"{len(before['rounds'])} earlier rounds were made with other {' and '.join(changed)}"

    def rounds(self, name: str) -> list[Round]:
        """Return the rounds of a row so far."""
        found: list[Round] = self.rows.get(name, {"rounds": []})["rounds"]
        return found

    def add(self, name: str, found: Round) -> None:
        """Store a round on disk."""
        self.rows[name]["rounds"].append(found)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, {"rows": self.rows})

    def made_with(self) -> list[tuple[dict[str, Any], list[str]]]:
        """Return versions and machine with the rows they apply to: one entry if they are the same for all rows."""
        groups: list[tuple[dict[str, Any], list[str]]] = []
        for name, row in self.rows.items():
            around = {part: value for part, value in row["made_with"].items() if part != "settings"}
            alike = next((names for seen, names in groups if seen == around), None)
            if alike is None:
                groups.append((around, [name]))
            else:
                alike.append(name)
        return groups


def digest(root: Path, *patterns: str) -> str:
    """Return a short hash of the files below `root` that match: a changed line makes earlier rounds stale."""
    found = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
        found.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]
