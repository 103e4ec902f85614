"""Tries every bad command line, config, environment, machine and file we know against the real command.

`make hostile` writes `results/hostile.md`. The promise under test: the right exit code, one sentence that names the
culprit, no traceback, and nothing lost. `scripts/hostile_folders.py` does the same for folders that mean harm.
"""

import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import tyro
from riddles import command_lines, config_files, environments, machines, saved_runs
from riddles.attempt import Verdict, attempt, make_run
from riddles.kind import Kind

from rl_training.experiment.files import write_text

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {
    "Command lines": command_lines.KINDS,
    "Config files": config_files.KINDS,
    "Environments": environments.KINDS,
    "Machines": machines.KINDS,
    "Runs and checkpoints": saved_runs.KINDS,
}


def report(rooms: dict[str, Sequence[Verdict]]) -> str:
    """Return `results/hostile.md`."""
    found = [verdict for verdicts in rooms.values() for verdict in verdicts]
    bad = sum(bool(verdict.problems) for verdict in found)
    lines = [
        "# No riddles",
        "",
        f"`make hostile`: {len(found)} kinds of bad command line, config, environment, machine and file, each tried by "
        "a process of its own. A kind has a problem if there is another exit code than expected, a traceback, no "
        "sentence or more than one, a sentence that does not name the culprit, or if anything is lost: bad input "
        "leaves no trace, a run that was there stays the same to the byte, and one that was under way goes on to its "
        f"end, with the weights of one that had no trouble where that can be compared. **{bad} kinds have one.**",
    ]
    for room, verdicts in rooms.items():
        lines += ["", f"## {room}", "", "| kind | exit code | what a person reads |", "|---|---|---|"]
        for verdict in verdicts:
            said = verdict.said.replace("|", "/").replace("`", "'").replace("\r", "")
            told = f"`{said[:200]}{'…' if len(said) > 200 else ''}`" if said else "nothing that is not usual"
            problems = f" **{'; '.join(verdict.problems)}**" if verdict.problems else ""
            lines.append(f"| {verdict.kind.name} | {verdict.kind.code} | {told}{problems} |")
    return "\n".join(lines) + "\n"


def main(
    only: Annotated[
        str, tyro.conf.arg(help="Try the kinds whose name, or whose room, contains this text.")
    ] = "",
    jobs: Annotated[int, tyro.conf.arg(help="Kinds that are tried at the same time.")] = 2,
    output: str = str(ROOT / "results" / "hostile.md"),
) -> int:
    """Try every kind and write the table; the exit code is 1 if anything went wrong."""
    rooms: dict[str, Sequence[Verdict]] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        genuine, reference = (make_run(Path(folder), paused=paused) for paused in (True, False))

        def tried(numbered: tuple[str, Kind]) -> Verdict:
            verdict = attempt(numbered[1], Path(folder) / numbered[0], genuine, reference)
            print(
                f"{verdict.kind.name}: {'; '.join(verdict.problems) or 'good'}\n  {verdict.said[:300]}",
                flush=True,
            )
            return verdict

        for room, kinds in ROOMS.items():
            numbered = [(f"{room}{i}".replace(" ", ""), kind) for i, kind in enumerate(kinds)]
            chosen = [(place, kind) for place, kind in numbered if only in f"{room}: {kind.name}"]
            rooms[room] = list(pool.map(tried, chosen))
    if not only:
        write_text(Path(output), report(rooms))
    return int(any(verdict.problems for verdicts in rooms.values() for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
