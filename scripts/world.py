"""Train every algorithm in environments of other packages and write a table of the outcomes.

`make world` runs what is missing and updates `results/world.md`. Each finished cell is stored in `results/world.json`
at once, so a killed run can be restarted; faults are tried again. Delete the file to start over, or name suites to run
them again: `python scripts/world.py popgym highway-env`.
"""

import json
import sys
from pathlib import Path
from typing import Any

from world_cell import CHECK, Place, Work, attempts, prepare, tried
from world_identity import SUITE, columns, learned
from world_mujoco import table
from world_report import report
from world_suites import all_places

from rl_training.algorithms import ALGORITHMS
from rl_training.experiment.files import write_text

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "results" / "world.json"
TABLE = ROOT / "results" / "world.md"
Cells = dict[str, dict[str, dict[str, Any]]]
"""Outcomes by suite, then by environment and column."""
FAULT = {"outcome": "fault"}


def rows() -> list[tuple[str, Place, tuple[str, ...], Work]]:
    """Return every row of the tables: suite, environment, columns and the function to run."""
    places = all_places()
    usual = [(place.suite, place, (CHECK, *ALGORITHMS), tried) for place in places]
    identity = [place for place in places if place.name.startswith("IdentityEnv")]
    return usual + [(SUITE, place, columns(place), learned) for place in identity]


def read() -> Cells:
    """Return the cells that are finished."""
    return json.loads(DATA.read_text()) if DATA.exists() else {}


def write(cells: Cells) -> None:
    """Replace the file: a line for each cell, so that a change of one is a change of a line."""
    suites = []
    for suite, found in cells.items():
        lines = ",\n".join(
            f" {json.dumps(key)}: {json.dumps(cell, ensure_ascii=False)}" for key, cell in found.items()
        )
        suites.append(f"{json.dumps(suite)}: {{\n{lines}\n}}")
    write_text(DATA, "{\n" + ",\n".join(suites) + "\n}\n")


def main() -> int:
    """Run what is missing, or named; return 1 if there are faults."""
    prepare()
    anew = set(sys.argv[1:])
    cells = {suite: found for suite, found in read().items() if suite not in anew}
    kept: Cells = {}
    for suite, place, names, work in rows():
        found = cells.setdefault(suite, {})
        keys = {column: f"{place.name} | {column}" for column in names}
        missing = [column for column, key in keys.items() if found.get(key, FAULT)["outcome"] == "fault"]
        for column, end in attempts(place, missing if not anew or suite in anew else [], work):
            print(f"{suite}: {keys[column]}: {end['outcome']} {end.get('said', '')}", flush=True)
            found[keys[column]] = end
            write(cells)
        kept.setdefault(suite, {}).update({key: found[key] for key in keys.values() if key in found})
    write(kept)  # drop cells that no longer exist
    write_text(TABLE, report(kept, table()))
    return int(any(cell["outcome"] == "fault" for found in kept.values() for cell in found.values()))


if __name__ == "__main__":
    sys.exit(main())
