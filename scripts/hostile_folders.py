"""Opens every run folder of `tests/hostile_cases/run_folders.py` with every command.

`make hostile` writes `results/hostile_folders.md`. If it is interrupted, it goes on with the next case.
"""

import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import tyro

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from hostile_cases import large_folders, run_folders
from hostile_cases.progress import Progress
from hostile_cases.run_folders import MAX_BYTES, MAX_SECONDS, Attempt, attempts, genuine_runs
from rl_training.experiment.files import write_text


def report(found: list[Attempt]) -> str:
    """Return the table of `results/hostile_folders.md`."""
    by_case: dict[str, list[Attempt]] = {}
    for each in found:
        by_case.setdefault(each.case, []).append(each)
    bad = sum(bool(each.problems) for each in found)
    processes = sum("forked" not in each.door for each in found)
    executed = sum("code was executed" in each.problems for each in found)
    changed = sum(any(text.startswith("changed outside") for text in each.problems) for each in found)
    above = sum(any(text.startswith("took") for text in each.problems) for each in found)
    lines = [
        "# Folders that mean harm",
        "",
        f"`make hostile`: {len(by_case)} kinds of hostile run folder, {len(found)} attempts to evaluate, resume, load "
        "or list one, from outside and with the folder as working folder; "
        f"{processes} of them by processes of their own (`rl-training`, `python -m rl_training.cli`, a script), the "
        "others by forks of one that has imported everything. An attempt has a problem if code was executed, if "
        "anything outside of the folder changed, if there was a traceback, an escape sequence, another exit code than "
        f"expected, or if it took more than {MAX_SECONDS} s or {MAX_BYTES // 10**9} GB. **{bad} attempts have one: "
        f"{executed} executed code, {changed} wrote outside, {above} were above the bounds.** Time and memory are the "
        "largest of all attempts; a fork has the memory of the process that has imported everything.",
        "",
        "| case | attempts | seconds | MB | what a person reads | problems |",
        "|---|---|---|---|---|---|",
    ]
    for name, tried in by_case.items():
        said = next((each.said for each in tried if each.said), "")
        problems = "; ".join(f"{a.door}: {', '.join(a.problems)}" for a in tried if a.problems) or "none"
        told = (
            f"`{said[:160].replace('|', '/').replace('`', '')}{'…' if len(said) > 160 else ''}`"
            if said
            else "harmless"
        )
        used = f"{max(a.seconds for a in tried):.1f} | {max(a.num_bytes for a in tried) / 10**6:.0f}"
        lines.append(f"| {name} | {len(tried)} | {used} | {told} | {problems} |")
    return "\n".join(lines) + "\n"


def main(
    only: Annotated[str, tyro.conf.arg(help="Try the cases whose name contains this text.")] = "",
    output: str = str(ROOT / "results" / "hostile_folders.md"),
) -> int:
    """Try every case and write the table; the exit code is 1 if anything went wrong."""
    found: list[Attempt] = []
    progress = Progress("hostile_folders")
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"XDG_STATE_HOME": f"{folder}/state", "HOME": f"{folder}/home", "WANDB_MODE": "offline"}
        runs = genuine_runs(Path(folder))
        all_cases = [*run_folders.cases(), *large_folders.cases()]
        for number, case in enumerate(case for case in all_cases if only in case.name):
            before = [Attempt(**each) for each in progress.done.get(case.name, [])]
            if before and not any(each.problems for each in before):
                found += before
                continue
            tried = []
            for each in attempts(case, runs[case.algo], Path(folder) / f"case{number}"):
                tried.append(each)
                print(f"{each.case}: {each.door}: {', '.join(each.problems) or 'good'}", flush=True)
                if each.problems:
                    print(f"  {each.said}", flush=True)
            found += tried
            progress.add(case.name, [asdict(each) for each in tried])
    if not only:
        write_text(Path(output), report(found))
        progress.finish()
    return int(any(each.problems for each in found))


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
