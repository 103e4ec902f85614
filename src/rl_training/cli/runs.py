"""`rl-training runs`: list, show, compare and delete run folders."""

import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from rl_training.cli.arguments import Option, parse
from rl_training.cli.exit_codes import command_name
from rl_training.cli.tables import age, either, json_text, number, print_table, size
from rl_training.core.errors import UserError, did_you_mean, printable
from rl_training.experiment.records.compare import differences_of
from rl_training.experiment.records.read import RunRecord
from rl_training.experiment.records.remove import check_removable, foreign_files, leftovers, remove_runs
from rl_training.experiment.records.search import Runs, row_of, run_at, search

HELP = """usage: rl-training runs ACTION [options]

actions:
  list [FOLDER]   the runs in a folder: status, steps, scores, age
  show RUN        one run: settings that differ from the defaults, times, versions, checkpoints, next commands
  diff RUN RUN    differences between runs: settings, versions, commit, scores
  rm RUN ...      delete runs, except those that are being trained

start here:
  rl-training runs list
  rl-training runs list runs --env CartPole-v1 --status finished --sort score
  rl-training runs show runs/RUN

rl-training runs ACTION --help lists all flags.
"""

Status = Literal[
    "running", "finished", "stopped", "paused", "failed", "interrupted", "abandoned", "damaged", "not a run"
]
Sort = Literal["age", "name", "algo", "env", "seed", "status", "step", "score", "best"]
ATTRIBUTES = {"age": "started", "env": "env_id", "step": "timesteps"}
"""What the sort keys mean that are not the name of an attribute of `RunRecord`."""
LARGEST_FIRST = ("age", "step", "score", "best")
COLUMNS = ("run", "algo", "env", "seed", "status", "step / total", "score", "best", "age", "remark")
NUMBERS = ("seed", "step / total", "score", "best", "age")


@dataclass(frozen=True, kw_only=True)
class List:
    """List the runs in a folder, newest first.

    score is the mean return of the last tenth of a run's evaluations; best is the highest mean return of an evaluation.
    A run is abandoned if its status is running but no process trains it. Folders that are not runs are marked.
    """

    folders: Annotated[tuple[str, ...], Option(positional=True, metavar="FOLDER")] = ("runs",)
    """Run folders, folders that contain runs at most four levels down, or patterns such as 'runs/ppo__*'."""
    algo: Annotated[tuple[str, ...], Option(repeated=True)] = ()
    """Only runs of this algorithm; may be given several times, as may the next three."""
    env: Annotated[tuple[str, ...], Option(repeated=True, aliases=("--env-id",))] = ()
    """Only runs of this environment, or of those that a pattern such as 'ALE/*' names."""
    status: Annotated[tuple[Status, ...], Option(repeated=True)] = ()
    """Only runs with this status."""
    seed: Annotated[tuple[int, ...], Option(repeated=True)] = ()
    """Only runs of this seed."""
    sort: Sort = "age"
    """What to sort by: the newest, the furthest and the highest first, names and seeds upwards."""
    reverse: bool = False
    """Sort the other way round."""
    json: bool = False
    """Print a JSON list with one object per folder."""


@dataclass(frozen=True, kw_only=True)
class Show:
    """Show one run: settings that differ from the defaults, results, checkpoints and next commands."""

    runs: Annotated[tuple[str, ...], Option(positional=True, metavar="RUN")] = ()
    """One run folder, or a checkpoint of one."""
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True, kw_only=True)
class Diff:
    """Show the differences between runs: settings, versions, commit, processor and results."""

    runs: Annotated[tuple[str, ...], Option(positional=True, metavar="RUN")] = ()
    """Two run folders or more."""
    json: bool = False
    """Print one JSON object: by group and name a list with the value of each run."""


@dataclass(frozen=True, kw_only=True)
class Remove:
    """Delete runs permanently; not runs that are being trained, links, or folders that are not runs."""

    runs: Annotated[tuple[str, ...], Option(positional=True, metavar="RUN")] = ()
    """Run folders."""
    yes: bool = False
    """Do not ask for confirmation; required without a terminal."""


def run(argv: list[str]) -> int:
    """Run the chosen action."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0 if argv else 2
    actions = {"list": list_runs, "show": show_run, "diff": diff_runs, "rm": remove}
    if argv[0] not in actions:
        remedy = did_you_mean(argv[0], actions) or f"; use one of {', '.join(actions)}"
        raise UserError(f"unknown action '{argv[0]}'{remedy}")
    return actions[argv[0]](argv[1:])


def list_runs(argv: list[str]) -> int:
    """Print a table of the chosen runs."""
    flags = parse(List, argv, "rl-training runs list")
    found = Runs(search(*flags.folders or ("runs",)))
    chosen = found.where(algo=flags.algo, env_id=flags.env, status=flags.status, seed=flags.seed)
    records = _sorted(chosen, flags.sort, flags.reverse)
    if flags.json:
        print(json_text([row_of(record) for record in records]))
        return 0
    places = printable(", ".join(flags.folders))
    if records:
        columns = COLUMNS if any(record.problem for record in records) else COLUMNS[:-1]
        print_table(columns, [_cells(record)[: len(columns)] for record in records], NUMBERS)
    elif len(found):
        print(f"none of the {len(found)} folders in {places} fits")
    else:
        print(f"no runs in {places}")
    if half := sum(len(leftovers(Path(folder))) for folder in flags.folders):
        note = f"note: {half} run(s) in {places} are partially deleted; the next rm there completes it"
        print(note, file=sys.stderr)
    return 0


def _sorted(runs: Runs, sort: str, reverse: bool) -> list[RunRecord]:
    """Return the runs in order; runs without a value come last."""
    key = attrgetter(ATTRIBUTES.get(sort, sort))
    largest_first = (sort in LARGEST_FIRST) != reverse
    known = sorted((run for run in runs if key(run) is not None), key=key, reverse=largest_first)
    return known + [run for run in runs if key(run) is None]


def _cells(run: RunRecord) -> list[str]:
    steps = f"{number(run.timesteps, ',')} / {number(run.total_timesteps, ',')}" if run.is_run else "-"
    texts = [either(value) for value in (run.algo, run.task, run.seed)]
    scores = [number(value) for value in (run.score, run.best)]
    return [run.name, *texts, run.status, steps, *scores, age(run.started), run.problem or ""]


def show_run(argv: list[str]) -> int:
    """Print one run in detail."""
    flags = parse(Show, argv, "rl-training runs show")
    if not flags.runs:
        raise UserError(
            "runs show needs a run: rl-training runs show runs/RUN; rl-training runs show --help lists its flags"
        )
    if len(flags.runs) > 1:
        given = shlex.join(flags.runs)
        raise UserError(
            f"runs show takes one run, and {len(flags.runs)} are given; rl-training runs diff {given} compares them"
        )
    record = run_at(flags.runs[0])
    # imported late, as it imports PyTorch
    from rl_training.experiment.records.describe import describe

    details = describe(record)
    if flags.json:
        print(json_text(details))
    else:
        print_page(record, details)
    return 0


def diff_runs(argv: list[str]) -> int:
    """Print the differences between runs."""
    flags = parse(Diff, argv, "rl-training runs diff")
    if len(flags.runs) < 2:
        raise UserError("diff needs two runs or more: rl-training runs diff runs/ONE runs/OTHER")
    records = [run_at(path) for path in flags.runs]
    found = differences_of(records)
    if flags.json:
        print(json_text({"runs": [str(record.path) for record in records], **found}))
        return 0
    for record in records:
        if not record.config:
            print(printable(f"warning: the settings of {record.path} cannot be read"), file=sys.stderr)
    if not found:
        print("no difference in settings, versions, commit, processor and results")
        return 0
    rows = [
        [group, name, *(f"{v:,.6g}" if isinstance(v, float) else either(v) for v in values)]
        for group, values_by_name in found.items()
        for name, values in values_by_name.items()
    ]
    names = [record.path.resolve().name for record in records]
    if len(set(names)) < len(names):  # runs in different folders may have the same name
        names = [str(record.path) for record in records]
    print_table(["", "", *names], rows)
    return 0


def remove(argv: list[str]) -> int:
    """Delete runs, after asking."""
    flags = parse(Remove, argv, "rl-training runs rm")
    if not flags.runs:
        raise UserError("rm needs runs: rl-training runs rm runs/RUN")
    paths = list({os.path.realpath(path): Path(path) for path in flags.runs}.values())
    records = [check_removable(path) for path in paths]  # checks all of them before the first is deleted
    if not flags.yes:
        if not sys.stdin.isatty():
            raise UserError("rm asks for confirmation, but there is no terminal; use --yes")
        if not _agreed(records):
            print("nothing was deleted")
            return 0
    deleted = [f"deleted {path}{_with(foreign_files(path))}" for path in paths]
    remove_runs(paths)
    for line in deleted:
        print(printable(line))
    return 0


def _with(others: list[str]) -> str:
    """Return the other files in a run folder, as text."""
    return f", and with it {', '.join(others)}" if others else ""


def _agreed(records: list[RunRecord]) -> bool:
    for record in records:
        steps = f"{number(record.timesteps, ',')} steps"
        print(printable(f"{record.path}  {record.status}, {steps}{_with(foreign_files(record.path))}"))
    what = "this run" if len(records) == 1 else f"these {len(records)} runs"
    try:
        return input(f"Delete {what} permanently? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


def print_page(run: RunRecord, details: dict[str, Any]) -> None:
    """Print a run in detail."""
    for label, text in [*_state(run, details), *_origin(details)]:
        print(f"{label:<18}{printable(text)}")
    changed = [f"{name} = {value}" for name, value in details["changed_settings"].items()]
    _block("Settings that differ from the defaults", changed)
    _block("Checkpoints", list(_checkpoints(details)))
    _block("Next", [f"{command_name()} {words}" for words in _next(run, details)])


def _block(title: str, lines: list[str]) -> None:
    print(f"\n{title}")
    for line in lines or ["none"]:
        print(f"  {printable(line)}")


def _state(run: RunRecord, details: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "Run folder", f"{run.path} ({size(details['bytes'])})"
    yield "Experiment", f"{either(run.algo)} on {either(run.task)}, seed {either(run.seed)}"
    yield "Status", run.status + (f": {run.problem}" if run.problem else "")
    if run.dataset:
        yield "Dataset", run.dataset
    yield run.unit.capitalize(), f"{number(run.timesteps, ',')} of {number(run.total_timesteps, ',')}"
    tenth = f"mean of the last tenth of its {run.num_evaluations} evaluation(s)"
    yield "Score", f"{number(run.score)}, {tenth}; best {number(run.best)}"
    yield "Started", _moment(run.started)
    if run.finished is not None:
        lasted = f", {run.finished - run.started} after its start" if run.started else ""
        yield "Ended", f"{_moment(run.finished)}{lasted}"
    again = [f"{details[name]} {name}" for name in ("resumes", "restarts") if details[name]]
    if again:
        yield "Resumed", ", ".join(again)


def _origin(details: dict[str, Any]) -> Iterator[tuple[str, str]]:
    versions, machine, begun = details["versions"], details["machine"], details["started_from"]
    if isinstance(details["arguments"], list):
        yield "Command", " ".join(map(str, details["arguments"]))
    if isinstance(begun, dict):
        yield "Started from", f"{begun.get('path')} after {begun.get('timesteps')} steps"
    if isinstance(versions, dict):
        yield "Versions", ", ".join(f"{name} {version}" for name, version in versions.items())
    yield "Commit", either(details["git_commit"])
    if isinstance(machine, dict):
        yield "Processor", either(machine.get("processor"))
    yield "Update path", either(details["update_path"])
    if isinstance(details["losses"], dict):
        yield "Replaced losses", ", ".join(f"{name}: {loss}" for name, loss in details["losses"].items())


def _checkpoints(details: dict[str, Any]) -> Iterator[str]:
    for checkpoint in details["checkpoints"]:
        called = f"  ({', '.join(checkpoint['called'])})" if checkpoint["called"] else ""
        yield f"{checkpoint['name']:<16}{size(checkpoint['bytes']):>10}{called}"
    if details["replay_bytes"]:
        yield f"{'replay':<16}{size(details['replay_bytes']):>10}"


def _next(run: RunRecord, details: dict[str, Any]) -> Iterator[str]:
    path = shlex.quote(str(run.path))
    if details["checkpoints"]:
        if run.env_id or not run.dataset:
            yield f"eval {path} --num-episodes 20"
        if run.dataset:
            yield f"eval {path} --on-dataset {shlex.quote(run.dataset)}"
    if run.status in ("finished", "stopped"):
        budget = "--total-updates" if run.counts_updates else "--total-timesteps"
        yield f"resume {path} {budget} {2 * (run.timesteps or 0) or 'N'}"
    elif run.status != "running":
        yield f"resume {path}"
    if details["checkpoints"]:
        yield f"train --start-from {path} --learning-rate 1e-4"


def _moment(moment: datetime | None) -> str:
    return "-" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC ({age(moment)} ago)"
