"""Run folders made to do harm, opened with every command, from outside and from inside of them.

No code out of the folder may run, nothing outside of it may change, and there is a clear error and exit code, never a
traceback. Each case starts from a genuine run, with hashes made to fit; payloads leave a canary.
"""

import hashlib
import json
import os
import pickle
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

import rl_training
from hostile_cases.attempt import peak_bytes, used_bytes
from rl_training import cli
from rl_training.algorithms.dqn import DQNConfig
from rl_training.algorithms.ppo import PPOConfig
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.types import Progress
from rl_training.experiment.checkpoints.format import manifest_hash
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import Callback, PauseTraining

STEP = "checkpoints/step_64"
EVENTS = "tensorboard/events.out.tfevents.scalars"
SECONDS = 60
"""More than this and a command counts as stuck."""
MAX_SECONDS, MAX_BYTES = 10, 10**9
"""The bounds that every command must keep."""
IMPORTED_BYTES = 4 * 10**8
"""Memory of a process that has imported everything."""
OURS = (
    "torch", "yaml", "tyro", "numpy", "gymnasium", "safetensors", "rich", "matplotlib", "threadpoolctl",
    "imageio_ffmpeg", "wandb", "mujoco", "Box2D", "pygame", "farama_notifications", "cloudpickle",
)  # fmt: skip
CONSOLE = (str(Path(sys.executable).with_name("rl-training")),)
MODULE = (sys.executable, "-m", "rl_training.cli")
LOADER = """
import sys
import rl_training
from rl_training.core.errors import UserError
try:
    rl_training.load(sys.argv[1]).evaluate(1)
except UserError as error:
    sys.exit(print(f"error: {error}", file=sys.stderr) or 2)
"""


class Arena:
    """One attempt: a run, somebody's files beside it, and a canary that must not appear."""

    def __init__(self, folder: Path, genuine: Path) -> None:
        self.folder, self.canary, self.outside = folder, folder / "canary", folder / "outside"
        folder.mkdir(parents=True)
        (self.outside / "deeper").mkdir(parents=True)
        for name in ("precious", "deeper/thesis.tex"):
            (self.outside / name).write_text("years of work\n", encoding="utf-8")
        self.run = Path(shutil.copytree(genuine, folder / "run"))
        self._before: dict[str, str] = {}

    @property
    def payload(self) -> str:
        """Python that leaves the canary."""
        return f"open({str(self.canary)!r}, 'w').close()\n"

    def put(self, name: str, content: str | bytes) -> Path:
        """Write a file into the run."""
        path = self.run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def forge(self, change: Callable[[dict[str, Any]], Any], *, keep_signature: bool = False) -> None:
        """Change the manifest, and make its hash fit."""
        path = self.run / STEP / "manifest.json"
        manifest = json.loads(path.read_text(encoding="utf-8"))
        change(manifest)
        if not keep_signature:
            manifest.pop("signature", None)
        path.write_text(json.dumps(manifest | {"sha256": manifest_hash(manifest)}), encoding="utf-8")

    def plant(self, name: str, blob: bytes) -> None:
        """Replace a tensor file, and make its entry fit."""
        self.put(f"{STEP}/{name}", blob)
        entry = {"size": len(blob), "sha256": hashlib.sha256(blob).hexdigest()}
        self.forge(lambda manifest: manifest["files"].update({name: entry}))

    def link(self, name: str, target: Path) -> None:
        """Put a link where a file or folder was."""
        path = self.run / name
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    def hard_link(self, name: str) -> None:
        """Let a file of the run be one of somebody's as well."""
        path, target = self.run / name, self.outside / Path(name).name
        path.touch()
        path.rename(target)
        os.link(target, path)

    def changed(self) -> list[str]:
        """Return what is not as it was when this was last asked, the canary and ordered videos apart."""
        before, self._before = self._before, self._surroundings()
        names = sorted(name for name in before | self._before if before.get(name) != self._before.get(name))
        return [name for name in names if name != "canary" and not name.startswith("videos")]

    def _surroundings(self) -> dict[str, str]:
        """Return what lies outside of the run, by content."""
        found = {}
        for path in sorted(self.folder.rglob("*")):
            if path.is_relative_to(self.run):
                continue
            name = str(path.relative_to(self.folder))
            if path.is_symlink():
                found[name] = f"link to {os.readlink(path)}"
            elif path.is_file():
                found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                found[name] = "folder"
        return found


class Bomb:
    """Unpickling it leaves the canary."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        """Return what unpickling calls."""
        return os.open, (str(self.path), os.O_CREAT | os.O_WRONLY)


@dataclass(frozen=True)
class Case:
    """A way to do harm, and how each command must end."""

    name: str
    harm: Callable[[Arena], Any]
    eval_code: int = 0
    resume_code: int = 0
    eval_flags: tuple[str, ...] = ()
    eval_path: str = ""
    algo: str = "ppo"
    pythons_own: bool = False
    """`python -m` is lost before our first line; only the console command can be asked."""
    working_folder: bool = False
    """It is about the working folder, so `python -m` is tried inside as well."""
    bounded: bool = False
    """It is about memory and time, so each command is tried once, and `runs list` as well."""


@dataclass(frozen=True)
class Attempt:
    """What one command did about one case."""

    case: str
    door: str
    problems: tuple[str, ...]
    said: str
    seconds: float = 0.0
    num_bytes: int = 0
    """The largest amount of memory that the process had."""


def refused(name: str, harm: Callable[[Arena], Any], **more: Any) -> Case:
    """Return a case that evaluating and resuming both refuse."""
    return Case(name, harm, eval_code=2, resume_code=2, **more)


def env_id(name: str) -> Callable[[dict[str, Any]], Any]:
    """Return a change of the manifest: another environment."""
    return lambda manifest: manifest["config"].update(env_id=name)


def modules(names: Any, form: str = "{}.py") -> Callable[[Arena], None]:
    """Return a harm: payloads under the names of modules."""
    return lambda arena: [arena.put(form.format(name), arena.payload) for name in names] and None


def trap(arena: Arena) -> None:
    """Name a module that lies in the folder as the environment's."""
    for folder in ("", "checkpoints/", f"{STEP}/"):
        arena.put(f"{folder}trap.py", arena.payload)
        arena.put(f"{folder}trapped/envs.py", arena.payload)
    arena.forge(env_id("trap:CartPole-v1"))


def pipe(name: str) -> Callable[[Arena], None]:
    """Return a harm: a pipe that nobody writes to."""

    def harm(arena: Arena) -> None:
        (arena.run / name).unlink(missing_ok=True)
        os.mkfifo(arena.run / name)

    return harm


def unix_socket(arena: Arena) -> None:
    """Put something that is neither file nor folder where rows are appended."""
    (arena.run / "metrics.jsonl").unlink()
    before = Path.cwd()
    os.chdir(arena.run)  # the name of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind("metrics.jsonl")
    finally:
        os.chdir(before)


def endless(arena: Arena) -> None:
    """Let the manifest be 8 GiB of nothing."""
    with (arena.run / STEP / "manifest.json").open("wb") as file:
        file.truncate(8 << 30)


def huge_header(arena: Arena) -> None:
    """Announce a header of 2^60 bytes."""
    arena.plant("model.safetensors", struct.pack("<Q", 1 << 60) + b"{}")


def torch_archive(arena: Arena) -> None:
    """Let the weights be what torch.load would unpickle."""
    path = arena.folder.parent / "archive"
    torch.save({"weight": Bomb(arena.canary)}, path)
    arena.plant("model.safetensors", path.read_bytes())


def git_folder(arena: Arena) -> None:
    """Let git, which is asked for the commit, find programs to run."""
    subprocess.run(["git", "init", "-q", str(arena.run)], check=True, capture_output=True)
    program = arena.put("payload.sh", f"#!/bin/sh\ntouch '{arena.canary}'\n")
    program.chmod(0o755)
    arena.put(
        ".git/config",
        f"[core]\n\trepositoryformatversion = 0\n\tfsmonitor = {program}\n\tsshCommand = {program}\n"
        f"\tpager = {program}\n\thooksPath = {arena.run}\n[alias]\n\trev-parse = !{program}\n",
    )


def programs(arena: Arena) -> None:
    """Put programs under the names of those that are called."""
    for name in ("git", "ffmpeg", "python", "python3", "latex", "sh", "uname"):
        arena.put(name, f"#!/bin/sh\ntouch '{arena.canary}'\n").chmod(0o755)


def settings_of_others(arena: Arena) -> None:
    """Put the settings that tools look for in the working folder."""
    arena.put("pyproject.toml", "[build-system]\nrequires = []\n[tool.tyro]\nx = 1\n")
    arena.put("setup.cfg", "[options]\n")
    arena.put("pyvenv.cfg", "home = /nowhere\n")
    arena.put(".env", "PYTHONSTARTUP=startup.py\nPYTHONPATH=.\nWANDB_BASE_URL=http://localhost:1\n")
    for name in ("startup.py", "hubconf.py", "conftest.py", "setup.py", "__init__.py", "__main__.py"):
        arena.put(name, arena.payload)


def escapes(manifest: dict[str, Any]) -> None:
    """Say things in a manifest that a terminal would obey."""
    manifest["config"]["env_id"] = "\x1b]0;owned\x07\x1b[2J-v0"
    manifest["facts"]["surroundings"] = {"torch": "\x1b[31m" * 1000}


def stopped(arena: Arena) -> None:
    """Say things that a terminal would obey as the reason why the run has ended."""
    reason = "\x1b[2J\n\x1b]0;owned\x07"
    arena.put("metadata.json", json.dumps({"status": "stopped", "stop_reason": reason}))
    arena.forge(lambda manifest: manifest["state"]["trainer"].update(stop_reason=reason))


def segment_outside(manifest: dict[str, Any]) -> None:
    """List replay data that lies elsewhere."""
    manifest["facts"]["replay"]["transitions"]["segments"][0]["name"] = "../../../outside/precious"


def file_outside(manifest: dict[str, Any]) -> None:
    """List weights that lie elsewhere."""
    manifest["files"]["../../../outside/x.safetensors"] = manifest["files"]["model.safetensors"]


def first_imports() -> set[str]:
    """Return the modules that `python -m` itself imports before it comes to ours."""
    program = "import runpy, pkgutil, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


def cases() -> list[Case]:
    """Return every way to do harm that is tried."""
    early = first_imports()
    standard = [name for name in sorted(sys.stdlib_module_names) if not name.startswith("_")]
    here: dict[str, Any] = {"working_folder": True}
    laughs = "a: &a [x, x]\n" + "".join(
        f"{after}: &{after} [*{before}, *{before}]\n"
        for before, after in zip("abcdefghijklmnopqrstuvwx", "bcdefghijklmnopqrstuvwxy", strict=True)
    )
    return [
        Case("modules under the names of our dependencies", modules(OURS), **here),
        Case("packages under the names of our dependencies", modules(OURS, "{}/__init__.py"), **here),
        Case("extension modules under the names of our dependencies", modules(OURS, "{}.abi3.so"), **here),
        Case("modules under the names of Python's", modules(set(standard) - early), **here),
        Case("modules that Python itself imports first", modules(early & set(standard)), pythons_own=True),
        Case("a package under our own name", modules(["rl_training"], "{}/__init__.py"), pythons_own=True),
        Case("sitecustomize and usercustomize", modules(["sitecustomize", "usercustomize"]), **here),
        Case("path configuration files", lambda a: a.put("evil.pth", f"import os; {a.payload}"), **here),
        Case("settings of other tools, startup files", settings_of_others, **here),
        Case("programs under the names of those that are called", programs,
             eval_flags=("--record", "../videos"), **here),
        Case("a git repository with programs in its settings", git_folder, **here),
        Case(
            "a matplotlibrc that starts TeX",
            lambda a: a.put("matplotlibrc", "text.usetex: True\ntext.latex.preamble: \\input{evil}\nbackend: TkAgg\n"),
            **here,
        ),
        Case("settings that send wandb elsewhere", lambda a: (
            a.put("wandb/settings", "[default]\nbase_url = http://localhost:1\n"),
            a.forge(lambda m: m["config"].update(track="wandb"))), resume_code=2, **here),
        refused("an environment in a module of the folder", trap, **here),
        refused("an environment in a package of the folder", lambda a: (
            trap(a), a.forge(env_id("trapped.envs:CartPole-v1"))), **here),
        refused("an environment in a module of Python's that acts when imported", lambda a: a.forge(
            env_id("antigravity:X-v0"))),
        refused("a signed manifest, changed, its hash made to fit", lambda a: (
            trap(a), a.forge(env_id("trap:CartPole-v1"), keep_signature=True)), **here),
        refused("a manifest with a made-up signature", lambda a: (trap(a), a.forge(
            lambda m: m.update(signature="0" * 64), keep_signature=True)), **here),
        refused("forged arguments of the environment", lambda a: a.forge(
            lambda m: m["config"].update(env_kwargs={"__import__('os').system": a.payload, "id": "trap:X-v0"}))),
        refused("a pickle as weights", lambda a: a.plant("model.safetensors", pickle.dumps(Bomb(a.canary)))),
        refused("a torch archive as weights", torch_archive),
        refused("a pickle as manifest", lambda a: a.put(f"{STEP}/manifest.json", pickle.dumps(Bomb(a.canary)))),
        Case("pickles as logs, metadata and config", lambda a: [
            a.put(name, pickle.dumps(Bomb(a.canary), 0)) for name in (
                "metrics.jsonl", "evaluations.jsonl", "metadata.json", "config.yaml", "metrics.csv")]),
        Case("objects in config.yaml", lambda a: a.put(
            "config.yaml", f"!!python/object/apply:builtins.open [{a.canary}, w]\n")),
        Case("aliases that grow in config.yaml", lambda a: a.put("config.yaml", laughs)),
        Case("the checkpoints are a link", lambda a: (
            shutil.copytree(a.run / "checkpoints", a.outside / "checkpoints"),
            a.link("checkpoints", a.outside / "checkpoints")), resume_code=2),  # reading through it changes nothing
        refused("a checkpoint is a link", lambda a: (
            shutil.copytree(a.run / STEP, a.outside / "step_64"), a.link(STEP, a.outside / "step_64"))),
        refused("the weights are a link", lambda a: (
            shutil.copy(a.run / STEP / "model.safetensors", a.outside / "w"),
            a.link(f"{STEP}/model.safetensors", a.outside / "w"))),
        *(Case(f"{name} is a link", lambda a, name=name: a.link(name, a.outside / "precious"), resume_code=2)
          for name in ("metrics.jsonl", "evaluations.jsonl", EVENTS, "metrics.csv", ".lock", "error.txt")),
        *(Case(f"{name} is a hard link", lambda a, name=name: a.hard_link(name))
          for name in ("metrics.jsonl", "evaluations.jsonl", EVENTS, "metrics.csv", "learning_curve.png", ".lock",
                       "metadata.json", "config.yaml", "error.txt", "checkpoints/last")),
        Case("what is to be cleaned up is a link", lambda a: [a.link(f"checkpoints/{name}", a.outside) for name in (
            ".step_96.tmp", ".step_64.old")], eval_code=2, resume_code=2),
        Case(".lock is a pipe", pipe(".lock"), resume_code=2),
        Case(".lock is a folder", lambda a: (a.run / ".lock").mkdir(), resume_code=2),
        refused("the manifest is a pipe", pipe(f"{STEP}/manifest.json")),
        Case("the metadata is a pipe", pipe("metadata.json"), resume_code=2),
        Case("a log is a socket", unix_socket, resume_code=2),
        refused("`last` is a device without end", lambda a: a.link("checkpoints/last", Path("/dev/zero"))),
        Case("`last` leads out of the run", lambda a: a.put("checkpoints/last", "../../outside")),
        Case("`best` leads out of the run", lambda a: a.put("checkpoints/best", "../../outside"),
             eval_code=2, eval_path="best"),
        Case("replay data that lies elsewhere", lambda a: a.forge(segment_outside), resume_code=2, algo="dqn"),
        refused("weights that lie elsewhere", lambda a: a.forge(file_outside)),
        refused("a header without end", huge_header),
        refused("a manifest without end", endless),
        refused("a manifest nested without end", lambda a: a.put(f"{STEP}/manifest.json", b"[" * 10**6)),
        refused("an observation without end", lambda a: a.forge(
            lambda m: m["facts"]["spaces"]["observation_space"].update(shape=[2**62]))),
        refused("more actions than there are weights", lambda a: a.forge(
            lambda m: m["facts"]["spaces"]["action_space"].update(n=2**62))),
        refused("bounds that are code", lambda a: a.forge(
            lambda m: m["facts"]["spaces"]["observation_space"].update(low=f"__import__('os').system({a.payload!r})"))),
        refused("a network without end", lambda a: a.forge(
            lambda m: m["config"]["algorithm"].update(hidden_sizes=[2**14] * 64))),
        refused("escape sequences in the manifest", lambda a: a.forge(escapes)),
        Case("escape sequences in the reason of a stop", stopped, resume_code=2),
        Case("rows of nonsense in the logs", lambda a: (
            a.put("metrics.jsonl", b"{}\n\xff\n[]\n" * 3), a.put("evaluations.jsonl", b"{}\n\xff\n" * 3),
            a.forge(lambda m: m["facts"]["log_positions"].update({"metrics.jsonl": 24, "evaluations.jsonl": 15})))),
        Case("videos led out by a link", lambda a: a.link("videos", a.outside), eval_code=2, resume_code=2,
             eval_flags=("--record", "RUN/videos", "--num-episodes", "1")),
    ]  # fmt: skip


class _PauseAt64(Callback):
    def on_collect(self, progress: Progress) -> None:
        """Stop where the arenas begin."""
        if progress.timesteps >= 64:
            raise PauseTraining("to be copied")


def genuine_runs(folder: Path) -> dict[str, Path]:
    """Train the two runs, paused at 64 of 96 steps, that all cases are copies of."""
    common: dict[str, Any] = {
        "env_id": "CartPole-v1", "output_dir": str(folder / "genuine"), "total_timesteps": 96, "num_envs": 2,
        "num_eval_episodes": 1, "eval_every_timesteps": 32, "log_every_timesteps": 32, "keep_checkpoints": 1,
    }  # fmt: skip
    ppo = PPOConfig(num_steps=16, batch_size=16, update_epochs=1, hidden_sizes=(8,))
    dqn = DQNConfig(buffer_size=100, learning_starts=8, batch_size=4, hidden_sizes=(8,))
    runs = {}
    for algo, settings in (("ppo", ppo), ("dqn", dqn)):
        config = TrainConfig(algo=algo, algorithm=settings, **common)
        runs[algo] = train(config, callbacks=[_PauseAt64()]).run_dir
        for path in (runs[algo] / ".lock", *(runs[algo] / "checkpoints").glob("step_[!6]*")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        (runs[algo] / "checkpoints" / "best").write_text("step_64\n", encoding="utf-8")
    return runs


def attempts(case: Case, genuine: Path, folder: Path) -> Iterator[Attempt]:
    """Try every door on fresh copies.

    What depends on where Python looks for modules is tried by commands of their own, and so is one door of every case;
    the other doors by a fork of this process, which has imported everything already and is ten times as fast.
    """
    spawned = {("eval", True)} if case.eval_path or case.eval_flags else {("resume", True)}
    if case.working_folder or case.pythons_own:
        spawned = {("eval", True), ("resume", True), ("load", True)}
    doors = [(door, inside) for door in ("eval", "resume", "load") for inside in (True, False)]
    ways = [(door, inside, CONSOLE if (door, inside) in spawned else ()) for door, inside in doors]
    if case.bounded:
        ways = [("eval", True, ()), ("resume", False, CONSOLE), ("load", False, ()), ("runs list", True, ())]
    if case.working_folder:
        ways.append(("eval", True, MODULE))
    for number, (door, inside, program) in enumerate(ways):
        arena = Arena(folder / str(number) / "arena", genuine)
        case.harm(arena)
        yield attempt(case, arena, door, program, inside=inside)


def attempt(case: Case, arena: Arena, door: str, program: tuple[str, ...], *, inside: bool) -> Attempt:
    """Try one door: by `program`, or by a fork if there is none."""
    run, cwd = (".", arena.run) if inside else (str(arena.run), arena.folder.parent)
    code = case.resume_code if door == "resume" else case.eval_code
    if door == "runs list":
        name, code, command = "rl-training runs list", 0, ["rl-training", "runs", "list", run]
    elif door == "load":
        if case.eval_path or case.eval_flags:
            code = 0  # it is about another door
        name = "load"
        command = [sys.executable, str(_loader(arena)), run]
    else:
        flags = ["--quiet"]
        if door == "eval":
            flags = ["--num-episodes", "1", *(flag.replace("RUN", run) for flag in case.eval_flags)]
            run = str(Path(run) / case.eval_path)
        name = f"{'python -m' if program == MODULE else 'rl-training'} {door}"
        command = [*(program or CONSOLE), door, run, *flags]
    place = "inside" if inside else "outside"
    arena.changed()
    ended = (
        spawned(command, cwd)
        if program
        else forked(door, command[2:] if door == "load" else command[1:], cwd)
    )
    found = judge(case.name, arena, f"{name}, {place}{'' if program else ', forked'}", ended, code)
    shutil.rmtree(arena.folder, ignore_errors=True)
    return found


def _loader(arena: Arena) -> Path:
    script = arena.folder.parent / "loader" / "load.py"
    script.parent.mkdir()
    script.write_text(LOADER, encoding="utf-8")
    return script


@dataclass(frozen=True)
class Ended:
    """How a command ended; a code of -1 means that it did not."""

    code: int
    out: str
    err: str
    seconds: float = 0.0
    num_bytes: int = 0


def spawned(command: list[str], cwd: Path) -> Ended:
    """Run a command."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        ended = _waited_for(child.pid, out, err)
        child.returncode = ended.code  # it has been waited for
        return ended


def _waited_for(child: int, out: IO[bytes], err: IO[bytes], *, is_fork: bool = False) -> Ended:
    """Return how a child process ended, how long it took and how much memory; kill it if it does not end."""
    started, stuck, found, peak = time.monotonic(), False, 0, 0
    # a fork begins with the memory of this process, which is large where many tests have run
    inherited = max(peak_bytes("self", "VmRSS:") - IMPORTED_BYTES, 0)
    while not found:
        peak = max(peak, peak_bytes(child))
        found, status, used = os.wait4(child, os.WNOHANG)
        if not found and not stuck and time.monotonic() - started > SECONDS:
            os.kill(child, signal.SIGKILL)
            stuck = True
        time.sleep(0 if found else 0.01)
    for stream in (out, err):
        stream.seek(0)
    code = -1 if stuck else os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - started
    num_bytes = used.ru_maxrss * 1024 - inherited if is_fork else used_bytes(used.ru_maxrss, peak)
    return Ended(code, out.read().decode(), err.read().decode(), seconds, num_bytes)


def forked(door: str, arguments: list[str], cwd: Path) -> Ended:
    """Do in a fork of this process what a command would do."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            # the threads of this process are not in the fork, and would be waited for
            torch.set_num_threads(1)
            os.chdir(cwd)
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # a test may have replaced them
            code = 99
            try:
                code = load(arguments[0]) if door == "load" else cli.main(arguments)
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return _waited_for(child, out, err, is_fork=True)


def load(path: str) -> int:
    """Load an agent and let it play, as a script would; return what a command would exit with."""
    try:
        rl_training.load(path).evaluate(1)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def judge(case: str, arena: Arena, door: str, ended: Ended, code: int) -> Attempt:
    """Compare the arena and what was said with the promise."""
    problems = []
    if arena.canary.exists():
        problems.append("code was executed")
    if changed := arena.changed():
        problems.append(f"changed outside: {', '.join(changed)}")
    if "Traceback" in ended.err or "--debug" in ended.err:
        problems.append("a traceback")
    if not all(line.isprintable() for line in (ended.out + ended.err).split("\n")):
        problems.append("escape sequences")
    if ended.code != code:
        text = f"exit code {ended.code} instead of {code}"
        problems.append(text if ended.code != -1 else f"still running after {SECONDS} s")
    if ended.seconds > MAX_SECONDS:
        problems.append(f"took {ended.seconds:.0f} s")
    if ended.num_bytes > MAX_BYTES:
        problems.append(f"took {ended.num_bytes / 10**9:.1f} GB")
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    if code == 2 and len(errors) != 1:
        problems.append(f"{len(errors)} errors instead of one")
    said = errors[0] if errors else ended.err.strip()[-300:]
    said = said.replace(str(arena.run), "RUN").replace(str(arena.folder), "").removeprefix("error: ")
    used = ended.seconds, ended.num_bytes
    return Attempt(case, door, tuple(problems), said if code or problems else "", *used)
