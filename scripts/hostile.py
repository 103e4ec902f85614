"""Tries every case of `tests/hostile_cases` with the real command.

`make hostile` writes `results/hostile.md`. Each case must end with the expected exit code and one error message that
names the culprit, without a traceback, and lose nothing. If it is interrupted, it goes on with the next case.
`scripts/hostile_folders.py` does the same for run folders made to do harm.
"""

import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import tyro

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from hostile_cases.attempt import MAX_BYTES, MAX_SECONDS, Verdict, attempt, make_run
from hostile_cases.case import Case
from hostile_cases.groups import GROUPS
from hostile_cases.progress import Progress
from rl_training.experiment.files import write_text


def report(groups: dict[str, Sequence[Verdict]]) -> str:
    """Return `results/hostile.md`."""
    found = [verdict for verdicts in groups.values() for verdict in verdicts]
    bad = sum(bool(verdict.problems) for verdict in found)
    above = sum(any(text.startswith("took") for text in verdict.problems) for verdict in found)
    lines = [
        "# Hostile input",
        "",
        f"`make hostile`: {len(found)} bad command lines, configs, environments, machines and files, each tried in its "
        "own process. A case has a problem if the exit code is not the expected one, if there is a traceback, no error "
        "message or more than one, a message that does not name the culprit, or if anything is lost: bad input leaves "
        "no trace, an existing run stays the same to the byte, and an interrupted run resumes and finishes, with the "
        "weights of an undisturbed run where they can be compared. What is refused with exit code 2 must take at most "
        f"{MAX_SECONDS} s and {MAX_BYTES // 10**9} GB. **{bad} cases have a problem, and {above} of them are above "
        "these bounds.**",
    ]
    for group, verdicts in groups.items():
        lines += ["", f"## {group}", ""]
        lines += ["| case | exit code | seconds | MB | message |", "|---|---|---|---|---|"]
        for verdict in verdicts:
            said = verdict.said.replace("|", "/").replace("`", "'").replace("\r", "")
            told = f"`{said[:200]}{'…' if len(said) > 200 else ''}`" if said else "nothing that is not usual"
            problems = f" **{'; '.join(verdict.problems)}**" if verdict.problems else ""
            used = f"{verdict.seconds:.1f} | {verdict.num_bytes / 10**6:.0f}"
            lines.append(f"| {verdict.case.name} | {verdict.case.code} | {used} | {told}{problems} |")
    return "\n".join(lines) + "\n"


def main(
    only: Annotated[
        str, tyro.conf.arg(help="Try the cases whose name, or whose group, contains this text.")
    ] = "",
    jobs: Annotated[int, tyro.conf.arg(help="Cases that are tried at the same time.")] = 2,
    output: str = str(ROOT / "results" / "hostile.md"),
) -> int:
    """Try every case and write the table; the exit code is 1 if anything went wrong."""
    groups: dict[str, Sequence[Verdict]] = {}
    progress = Progress("hostile")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        genuine, reference = (make_run(Path(folder), paused=paused) for paused in (True, False))

        def tried(numbered: tuple[str, Case]) -> Verdict:
            before = progress.done.get(numbered[0])
            if before is not None and not before["problems"]:
                return Verdict(numbered[1], **before)
            verdict = attempt(numbered[1], Path(folder) / numbered[0], genuine, reference)
            progress.add(
                numbered[0], {name: value for name, value in vars(verdict).items() if name != "case"}
            )
            print(
                f"{verdict.case.name}: {'; '.join(verdict.problems) or 'good'}\n  {verdict.said[:300]}",
                flush=True,
            )
            return verdict

        for group, cases in GROUPS.items():
            numbered = [(f"{group}{i}".replace(" ", ""), case) for i, case in enumerate(cases)]
            chosen = [(place, case) for place, case in numbered if only in f"{group}: {case.name}"]
            groups[group] = list(pool.map(tried, chosen))
    if not only:
        write_text(Path(output), report(groups))
        progress.finish()
    return int(any(verdict.problems for verdicts in groups.values() for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
