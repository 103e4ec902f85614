"""Terminals, disks and limits that fail, most of them in the middle of a run."""

import os
import shutil
import signal
from typing import Any

from hostile_cases.attempt import lock_owner
from hostile_cases.case import SLOWLY, Arena, Case, Kept, train

EVENTS = "tensorboard/events.out.tfevents.scalars"


def disk(name: str, fault: str, *words: str, **more: Any) -> Case:
    """Return a case whose disk fails as `faults/sitecustomize.py` is told."""
    settings: dict[str, Any] = {"code": 1, "kept": Kept.EXACTLY, "variables": {"STRANGE_DISK": fault}} | more
    return train(name, words=words, **settings)


def meanwhile(name: str, harm: Any, *words: str, **more: Any) -> Case:
    """Return a case to whose run something happens while it trains."""
    settings: dict[str, Any] = {"code": 1, "kept": Kept.EXACTLY, "variables": SLOWLY} | more
    return train(name, words=words, meanwhile=harm, **settings)


def gone(name: str) -> Any:
    """Return a harm: a file or folder of the run is deleted."""

    def harm(arena: Arena) -> None:
        path = arena.run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return harm


def moved(arena: Arena) -> None:
    """Move the run elsewhere."""
    arena.run.rename(arena.here / "elsewhere")


def signalled(number: int) -> Any:
    """Return a harm: a signal to the process that trains."""
    return lambda arena: os.kill(int(lock_owner(arena)), number)


def empty_folder(arena: Arena) -> None:
    """Make the folder that runs are made in."""
    (arena.here / "runs").mkdir()


FULL, BROKEN = "No space left on device", "Input/output error"

CASES = [
    train("a terminal that knows ASCII alone", words=(" ? ",), code=0, kept=Kept.EXACTLY,
          variables={"PYTHONIOENCODING": "ascii"}),
    train("a terminal of no known kind", words=(), code=0, kept=Kept.EXACTLY,
          variables={"TERM": "nonsense", "COLUMNS": "0", "LANG": "nowhere"}),
    train("a full disk behind the output", words=("standard output cannot be written", FULL), code=1,
          kept=Kept.EXACTLY, shell="exec {command} > /dev/full"),
    train("a full disk behind the errors", "--seed", "x", words=(), shell="exec {command} 2> /dev/full"),
    train("a reader that goes away", words=(), code=1, kept=Kept.EXACTLY,
          shell="set -o pipefail; {command} | head -c 1 > /dev/null"),
    train("no output at all", words=(), code=0, kept=Kept.EXACTLY, shell="exec {command} >&- 2>&-"),
    train("a working folder that is gone", words=("the working folder no longer exists; change into another one",),
          shell="mkdir gone && cd gone && rmdir ../gone && exec {command}"),
    train("a home that is gone", words=(), code=0, kept=Kept.EXACTLY,
          variables={"HOME": "/nowhere", "XDG_STATE_HOME": "", "XDG_CONFIG_HOME": "/dev/null"}),
    train("a state folder that is a file", words=(), code=0, kept=Kept.RESUMES,
          variables={"XDG_STATE_HOME": "/dev/null"}),
    train("no folder for temporary files", words=(), code=0, kept=Kept.EXACTLY, variables={"TMPDIR": "/nowhere"}),
    train("a drawing program that is not there", words=(), code=0, kept=Kept.EXACTLY,
          variables={"MPLBACKEND": "nonsense"}),
    train("warnings as errors", words=(), code=0, kept=Kept.EXACTLY, variables={"PYTHONWARNINGS": "error"}),
    meanwhile("metrics.jsonl deleted", gone("metrics.jsonl"), "metrics.jsonl", "was deleted", kept=Kept.EXACTLY),
    meanwhile("metrics.csv deleted", gone("metrics.csv"), "metrics.csv", kept=Kept.EXACTLY),
    meanwhile("evaluations.jsonl deleted", gone("evaluations.jsonl"), "evaluations.jsonl", "was deleted"),
    meanwhile("the TensorBoard file deleted", gone(EVENTS), EVENTS, "was deleted"),
    meanwhile("the TensorBoard folder deleted", gone("tensorboard"), "tensorboard was deleted"),
    meanwhile("metadata.json deleted", gone("metadata.json"), code=0, kept=Kept.EXACTLY),
    meanwhile("config.yaml deleted", gone("config.yaml"), code=0, kept=Kept.EXACTLY),
    meanwhile("the run moved elsewhere", moved, "moved or deleted"),
    meanwhile("the run deleted", gone("."), "moved or deleted", kept=Kept.DELETED),
    meanwhile("a wish to stop", signalled(signal.SIGINT), "resume", code=130),
    meanwhile("a wish of the system to stop", signalled(signal.SIGTERM), "resume", code=143),
    meanwhile("a sudden death", signalled(signal.SIGKILL), code=-9),
    disk("a full disk at the metrics", "write:ENOSPC:metrics.jsonl:3", "metrics.jsonl", FULL),
    disk("a full disk at the table", "write:ENOSPC:metrics.csv:3", "metrics.csv", FULL),
    disk("a full disk at the evaluations", "write:ENOSPC:evaluations.jsonl", "evaluations.jsonl", FULL),
    disk("a full disk at TensorBoard", "write:ENOSPC:tfevents:3", "tfevents", FULL),
    disk("a full disk at a checkpoint", "open:ENOSPC:step_64", "step_64", FULL),
    disk("a full disk at a pointer", "open:ENOSPC:/.last.tmp:3", "last", FULL),
    disk("a full disk at the curve", "open:ENOSPC:learning_curve", "learning_curve.png", FULL, code=0),
    disk("a full disk at the record of the end", "open:ENOSPC:metadata:3", "metadata.json", FULL),
    disk("a full disk at the first file", "open:ENOSPC:.metadata", "metadata.json", FULL, code=2),
    disk("a full disk at the config", "open:ENOSPC:config.yaml", "output_dir 'runs'", FULL, code=2, kept=Kept.NO_TRACE,
         prepare=empty_folder),
    disk("a broken disk at the metrics", "fsync:EIO:metrics.jsonl:3", "metrics.jsonl", BROKEN),
    disk("a broken disk at a checkpoint", "fsync:EIO:step_64", "step_64", BROKEN),
    disk("a broken disk at the record of the end", "fsync:EIO:metadata:3", "metadata.json", BROKEN),
    disk("a broken disk at the curve", "fsync:EIO:learning_curve", "learning_curve.png", BROKEN, code=0),
    train("a limit of a file's size", words=("File too large",), code=1, kept=Kept.EXACTLY,
          shell="ulimit -f 12; exec {command}"),
    train("a limit of memory, too low for the networks", "--hidden-sizes", "16384", "16384", "16384",
          words=("not enough memory",), shell="ulimit -v 1800000; exec {command}"),
    train("a limit of memory, too low for the start", words=("not enough memory",),
          shell="ulimit -v 450000; exec {command}"),
    train("a limit of open files", "--num-envs", "16", "--num-steps", "8", "--env-backend", "async",
          words=("workers for 16 environments cannot be started: Too many open files; use a smaller num_envs",),
          shell="ulimit -n 40; exec {command}"),
    train("an output folder that is read-only", words=("output_dir 'runs' cannot be written",), prepare=empty_folder,
          read_only="runs"),
    Case("a run that is read-only, resumed", ("resume", "{run}"), ("cannot be opened",), kept=Kept.EXACTLY,
         needs_run=True, read_only="runs"),
    Case("a run that is read-only, evaluated", ("eval", "{run}", "--num-episodes", "1"), (), code=0,
         kept=Kept.UNCHANGED, needs_run=True, read_only="runs"),
]  # fmt: skip
