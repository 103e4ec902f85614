"""Tries one case in its own process and checks exit code, messages and files."""

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from hostile_cases.case import SLOWLY, TRAIN, Arena, Case, Kept
from rl_training.experiment.logs.metadata import read_metadata

SECONDS = 120
"""More than this and a command counts as stuck."""
MAX_SECONDS, MAX_BYTES = 10, 10**9
"""The bounds that every refusal must keep."""
LARGE = 64 << 20
"""Files from this size on are compared by their size."""
HERE = Path(__file__).parent
COMMAND = (sys.executable, "-m", "rl_training")
FORBIDDEN = ("Traceback", "nexpected", "--debug", "Warning: ", "Exception ignored")
"""Text that must never appear; the second matches both `Unexpected` and `unexpected`."""


@dataclass(frozen=True)
class Verdict:
    """The result of one case."""

    case: Case
    said: str
    problems: tuple[str, ...]
    seconds: float = 0.0
    num_bytes: int = 0


@dataclass(frozen=True)
class Ended:
    """How a command ended; a code of None means that it did not."""

    code: int | None
    out: str
    err: str
    seconds: float = 0.0
    num_bytes: int = 0
    """The largest amount of memory that the process had; 0 if that is unknown."""


def attempt(case: Case, folder: Path, genuine: Path, reference: Path) -> Verdict:
    """Try one case in a new folder; `genuine` is a run paused in the middle, `reference` one that has ended."""
    arena = Arena(folder / "here", genuine)
    arena.here.mkdir(parents=True)
    if case.needs_run:
        shutil.copytree(genuine, arena.here / "runs" / genuine.name)
    case.prepare(arena)
    before = contents(arena.here)
    ended = _start(case, arena)
    problems = judged(case, ended)
    if case.kept in (Kept.NO_TRACE, Kept.UNCHANGED):
        changed = sorted(name for name, _ in before.items() ^ contents(arena.here).items())
        problems += [f"changed: {', '.join(changed[:4])}"] if changed else []
    elif case.kept is not Kept.DELETED:
        problems += _lost(case, arena, reference)
    return Verdict(case, _said(ended, arena), tuple(problems), ended.seconds, ended.num_bytes)


def make_run(folder: Path, *, paused: bool) -> Path:
    """Train a run to its end, or until a signal pauses it in the middle."""
    arena = Arena(folder / ("paused" if paused else "finished") / "here", Path("none"))
    arena.here.mkdir(parents=True)
    stop = {"variables": SLOWLY, "meanwhile": lambda arena: os.kill(int(lock_owner(arena)), signal.SIGTERM)}
    ended = _start(Case("made", TRAIN, **stop if paused else {}), arena)  # type: ignore[arg-type]
    if ended.code != (143 if paused else 0):
        raise RuntimeError(f"a run to be misused ended with {ended}")
    (arena.run / ".lock").unlink()
    return arena.run


def lock_owner(arena: Arena) -> str:
    """Return the process that trains the run."""
    return (arena.run / ".lock").read_text(encoding="utf-8").strip()


def contents(folder: Path) -> dict[str, str]:
    """Return everything below a folder by its content; locks, which tell only who was there, apart."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path)] = f"link to {os.readlink(path)}"
        elif path.is_file() and path.name != ".lock":
            size = path.stat().st_size
            found[str(path)] = (
                hashlib.sha256(path.read_bytes()).hexdigest() if size < LARGE else f"{size} bytes"
            )
        elif path.is_dir():
            found[str(path)] = "folder"
    return found


def _variables(case: Case, folder: Path) -> dict[str, str]:
    """Return the variables of a process: those of this one, and a home, a key and modules of its own."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "STRANGE", "LC_"))
    }
    package = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    own = {
        "HOME": str(folder / "home"),
        "XDG_STATE_HOME": str(folder.parent / "state"),  # of all arenas, as their genuine run is signed
        "PYTHONPATH": os.pathsep.join([str(HERE / "modules"), str(HERE / "faults"), *package]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return {**kept, **own, **case.variables}


def _start(case: Case, arena: Arena) -> Ended:
    """Run the command of a case, and do meanwhile what it asks for."""
    command = shlex.join([*COMMAND, *(word.replace("{run}", str(arena.run)) for word in case.arguments)])
    script = case.shell.replace("{command}", command)
    if case.read_only:
        script = _without_writing(arena.here / case.read_only, script)
    started = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            ["bash", "-c", script], cwd=arena.here, env=_variables(case, arena.here.parent),
            stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
        )  # fmt: skip
        if case.meanwhile is not None and _trains(arena, process):
            case.meanwhile(arena)
        code, num_bytes = _waited_for(process)
        seconds = time.monotonic() - started
        for stream in (out, err):
            stream.seek(0)
        said = [stream.read().decode(errors="replace") for stream in (out, err)]
    return Ended(code, *said, seconds, num_bytes)


def peak_bytes(pid: int | str, entry: str = "VmHWM:") -> int:
    """Return the most memory that a process has had so far, or another entry of its status; 0 if it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(entry):
                return int(line.split()[1]) * 1024
    return 0


def used_bytes(kilobytes: int, peak: int) -> int:
    """Return the memory of a process that has ended; the kernel also counts its parent's, until it starts a program."""
    return kilobytes * 1024 if kilobytes * 1024 > peak_bytes("self") else peak


def _waited_for(process: "subprocess.Popen[bytes]") -> tuple[int | None, int]:
    """Return the exit code and the memory of a process; kill it, and return no code, if it does not end."""
    limit, stuck, peak = time.monotonic() + SECONDS, False, 0
    while True:
        peak = max(peak, peak_bytes(process.pid))
        try:
            found, status, used = os.wait4(process.pid, os.WNOHANG)
        except ChildProcessError:  # it had ended before
            return process.returncode, 0
        if found:
            process.returncode = os.waitstatus_to_exitcode(status)
            return None if stuck else process.returncode, used_bytes(used.ru_maxrss, peak)
        if not stuck and time.monotonic() > limit:
            stuck = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
        time.sleep(0.01)


def _without_writing(folder: Path, script: str) -> str:
    """Return a script that cannot write to a folder: by permissions, which mean nothing to root, or by a mount."""
    if os.geteuid() != 0:
        return f"chmod -R a-w {folder}; trap 'chmod -R u+w {folder}' EXIT; {script.removeprefix('exec ')}"
    mount = f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder} && {script}"
    return f"exec unshare -m bash -c {shlex.quote(mount)}"


def _trains(arena: Arena, process: "subprocess.Popen[bytes]") -> bool:
    """Wait until a run has a checkpoint after its first; return whether that came before its end."""
    limit = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < limit:
        if any(arena.here.glob("runs/*/checkpoints/step_32")):
            return True
        time.sleep(0.02)
    return False


def judged(case: Case, ended: Ended) -> list[str]:
    """Return what is wrong with how a command ended and with what it said."""
    if ended.code is None:
        return [f"still running after {SECONDS} s"]
    problems = [] if ended.code == case.code else [f"exit code {ended.code} instead of {case.code}"]
    said = ended.out + ended.err
    problems += [f"says '{word}'" for word in FORBIDDEN if word in ended.err]
    if not all(line.isprintable() for line in ended.err.replace("\r", "").split("\n")):
        problems.append("escape sequences")
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    if case.code in (1, 2) and case.words and len(errors) != 1:
        problems.append(f"{len(errors)} sentences instead of one")
    if case.code == 0 and errors:
        problems.append("a complaint about what is no fault")
    strange = [
        line
        for line in ended.err.splitlines()
        if line and not line.startswith(("error: ", "warning: ", "  "))
    ]
    if case.code in (0, 1, 2) and strange:
        problems.append(f"a line from nowhere: {strange[0][:200]}")
    problems += [f"does not say '{word}'" for word in case.words if word not in said]
    if case.code == 2 and ended.seconds > MAX_SECONDS:
        problems.append(f"took {ended.seconds:.0f} s")
    if case.code == 2 and ended.num_bytes > MAX_BYTES:
        problems.append(f"took {ended.num_bytes / 10**9:.1f} GB")
    return problems


def _lost(case: Case, arena: Arena, reference: Path) -> list[str]:
    """Return what a run has lost: it must load, go on, and end as it would have."""
    if not (arena.run / ".origin.json").is_file():
        return ["the run is gone"]
    status = read_metadata(arena.run).get("status")
    command = (
        ("eval", "{run}", "--num-episodes", "1") if status == "finished" else ("resume", "{run}", "--quiet")
    )
    mended = {"STRANGE_MENDED": "1", "STRANGE_SECONDS": "0"}
    ended = _start(Case("mended", (*command, "--trust-modules"), variables=mended), arena)
    problems = [] if ended.code == 0 else [f"{command[0]} afterwards: {ended.err.strip()[-300:]}"]
    if case.kept is Kept.EXACTLY:
        weights = "checkpoints/step_256/model.safetensors"
        mine = arena.run / weights
        if not mine.is_file() or mine.read_bytes() != (reference / weights).read_bytes():
            problems.append("it ended with other weights than a run without trouble")
    return problems


def _said(ended: Ended, arena: Arena) -> str:
    """Return what a person reads, as it would be anywhere."""
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    lines = errors or [line for line in ended.err.splitlines() if line.strip()]
    said = lines[0] if lines else ""
    if said.endswith(":") and errors:  # all problems of a config at once
        said += " …"
    said = (
        said.replace(str(arena.run), "RUN").replace(str(arena.here) + "/", "").replace(str(arena.here), ".")
    )
    return re.sub(r"runs/ppo__\S+?__\d{8}-\d{6}", "RUN", said.removeprefix("error: "))
