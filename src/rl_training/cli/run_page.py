"""What `rl-training runs show` prints."""

import shlex
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from rl_training.cli.commands import command_name
from rl_training.cli.tables import age, either, number, size
from rl_training.core.errors import printable
from rl_training.experiment.run_records import RunRecord

WIDTH = 18


def print_page(run: RunRecord, told: dict[str, Any]) -> None:
    """Print a run in detail."""
    for label, text in [*_state(run, told), *_origin(told)]:
        _line(label, text)
    _block(
        "Settings that differ from the defaults", [f"{k} = {v}" for k, v in told["changed_settings"].items()]
    )
    _block("Checkpoints", list(_checkpoints(told)))
    _block("Go on", [f"{command_name()} {words}" for words in _next(run, told)])


def _line(label: str, text: object) -> None:
    print(f"{label:<{WIDTH}}{printable(text)}")


def _block(title: str, lines: list[str]) -> None:
    print(f"\n{title}")
    for line in lines or ["none"]:
        print(f"  {printable(line)}")


def _state(run: RunRecord, told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "Run folder", f"{run.path} ({size(told['bytes'])})"
    yield "Experiment", f"{either(run.algo)} on {either(run.env_id)}, seed {either(run.seed)}"
    yield "Status", run.status + (f": {run.problem}" if run.problem else "")
    yield "Steps", f"{number(run.timesteps, ',')} of {number(run.total_timesteps, ',')}"
    tenth = f"mean of the last tenth of its {run.num_evaluations} evaluation(s)"
    yield "Score", f"{number(run.score)}, {tenth}; best {number(run.best)}"
    yield "Started", _moment(run.started)
    if run.finished is not None:
        lasted = f", {run.finished - run.started} after its start" if run.started else ""
        yield "Ended", f"{_moment(run.finished)}{lasted}"
    again = [f"{told[name]} {name}" for name in ("resumes", "restarts") if told[name]]
    if again:
        yield "Went on", ", ".join(again)


def _origin(told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    versions, machine, begun = told["versions"], told["machine"], told["started_from"]
    if isinstance(told["arguments"], list):
        yield "Command", " ".join(map(str, told["arguments"]))
    if isinstance(begun, dict):
        yield "Began with", f"{begun.get('path')} after {begun.get('timesteps')} steps"
    if isinstance(versions, dict):
        yield "Versions", ", ".join(f"{name} {version}" for name, version in versions.items())
    yield "Commit", either(told["git_commit"])
    if isinstance(machine, dict):
        yield "Processor", either(machine.get("processor"))
    yield "Update path", either(told["update_path"])


def _checkpoints(told: dict[str, Any]) -> Iterator[str]:
    for checkpoint in told["checkpoints"]:
        called = f"  ({', '.join(checkpoint['called'])})" if checkpoint["called"] else ""
        yield f"{checkpoint['name']:<16}{size(checkpoint['bytes']):>10}{called}"
    if told["replay_bytes"]:
        yield f"{'replay':<16}{size(told['replay_bytes']):>10}"


def _next(run: RunRecord, told: dict[str, Any]) -> Iterator[str]:
    path = shlex.quote(str(run.path))
    if told["checkpoints"]:
        yield f"eval {path} --num-episodes 20"
    if run.status in ("finished", "stopped"):
        yield f"resume {path} --total-timesteps {2 * (run.timesteps or 0) or 'N'}"
    elif run.status != "running":
        yield f"resume {path}"
    if told["checkpoints"]:
        yield f"train --start-from {path} --learning-rate 1e-4"


def _moment(moment: datetime | None) -> str:
    return "-" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC ({age(moment)} ago)"
