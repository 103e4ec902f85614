"""The table of faults: what a person sees, the exit code, and what is lost. docs/reliability.md shows it.

`UPDATE_DOCS=1 pytest tests/integration/experiment/test_crash_safety.py` rewrites the tables of the page.
"""

import contextlib
import ctypes
import io
import json
import os
import re
import shutil
import signal
import subprocess
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from tiny_envs import Clockwork

import rl_training
from loading import ROOT
from rl_training.algorithms.ppo import PPOConfig
from rl_training.cli import main
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.experiment.checkpoints import snapshot as snapshot_module
from rl_training.experiment.checkpoints.format import manifest_hash
from rl_training.experiment.checkpoints.locking import RunLock
from rl_training.experiment.logs.sinks import WALL_CLOCK
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from support.callbacks import StopAtCollect
from support.runs import paused_run

# the command prints warnings; here they are no errors
pytestmark = [pytest.mark.fault, pytest.mark.filterwarnings("always::UserWarning")]

PAGE = ROOT / "docs" / "reliability.md"
TOTAL, PAUSED, BEFORE = 160, 96, 64


class Hangs(Clockwork):
    """Stops answering after 20 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.life = 0

    def step(self, action: Any) -> Any:
        self.life += 1
        if self.life > 20:
            time.sleep(12)
        return super().step(action)


class FillsTheDisk(Clockwork):
    """Fills the disk after `after` steps, if the file `trigger` is there; only the first environment does."""

    def __init__(self, trigger: str = "", ballast: str = "", after: int = 40) -> None:
        super().__init__()
        self.trigger, self.ballast, self.after, self.life = Path(trigger), Path(ballast), after, 0

    def step(self, action: Any) -> Any:
        self.life += 1
        if self.life == self.after and self.trigger.exists():
            with contextlib.suppress(OSError), self.ballast.open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
        return super().step(action)


class Moody(Clockwork):
    """Not a function of its seed and actions."""

    moods = iter(range(10**9))

    def _obs(self) -> Any:
        return super()._obs() + next(self.moods) % 1000 / 1000


for _kind in (Hangs, FillsTheDisk, Moody):
    gymnasium.register(f"{_kind.__name__}-v0", entry_point=_kind, disable_env_checker=True)


def config_for(output_dir: Path, **overrides: Any) -> TrainConfig:
    config = TrainConfig(
        algo="ppo", env_id="tiny_envs:Lottery-v0", seed=1, output_dir=str(output_dir), total_timesteps=TOTAL,
        num_envs=2, eval_every_timesteps=64, num_eval_episodes=2, checkpoint_every_timesteps=32,
        log_every_timesteps=32,
        algorithm=PPOConfig(num_steps=16, batch_size=16, update_epochs=1, hidden_sizes=(8,), learning_rate=1e-2),
    )  # fmt: skip
    return config.with_overrides(**overrides)


def leftovers(run_dir: Path) -> dict[str, Any]:
    """What must be the same however often a run was interrupted: every tensor, and every row but its times."""
    folder = run_dir / "checkpoints" / (run_dir / "checkpoints" / "last").read_text(encoding="utf-8").strip()
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "last": folder.name,
        "tensors": {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))},
        "rows": [{key: value for key, value in row.items() if key not in WALL_CLOCK} for row in rows],
        "evaluations": (run_dir / "evaluations.jsonl").read_text(encoding="utf-8"),
        "hidden": sorted(p.name for p in (run_dir / "checkpoints").iterdir() if p.name.startswith(".")),
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, Any]:
    """What a run that nothing happened to leaves behind."""
    return leftovers(train(config_for(tmp_path_factory.mktemp("whole"))).run_dir)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    """A run that paused at 96 of 160 steps, with checkpoints at 32, 64 and 96."""
    return paused_run(config_for(tmp_path_factory.mktemp("pristine")), PAUSED)


@pytest.fixture
def paused(pristine, tmp_path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "run"))


def newest(run_dir: Path) -> Path:
    return run_dir / "checkpoints" / f"step_{PAUSED}"


# ---------------------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Fault:
    """One row: how the fault comes about (`cause` prepares the folder and returns the command), and what follows."""

    what: str
    command: str
    seen: tuple[str, ...]
    code: int
    lost: str
    cause: Callable[..., list[Any]] | None = None
    exact: bool = True
    """A command that exits with 0 leaves exactly what an uninterrupted run leaves."""


NOTHING = "nothing: the steps since {} are repeated, with the same result"
SINCE_BEFORE = NOTHING.format("`step_64`")
ENTIRELY_NOTHING = "nothing"
UP_TO = "the steps since the last good checkpoint; `resume` repeats them"


def harm(change: Callable[[Path], Any]) -> Callable[..., list[Any]]:
    def cause(run_dir: Path) -> list[Any]:
        change(run_dir)
        return ["resume", run_dir]

    return cause


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip_bit(path: Path, position: int = -5) -> None:
    blob = bytearray(path.read_bytes())
    blob[position] ^= 1
    path.write_bytes(blob)


def flip_bit_of_a_number(path: Path) -> None:
    """A digit becomes another digit: still perfect JSON, and another random stream."""
    blob = path.read_bytes()
    flip_bit(path, re.search(rb'"minibatch_rng": \{[^}]*"state": \{[^}]*"state": (\d)', blob).start(1))


def explicit(verb: str) -> Callable[[Path], list[Any]]:
    def cause(run_dir: Path) -> list[Any]:
        flip_bit(newest(run_dir) / "model.safetensors")
        return [verb, newest(run_dir)]

    return cause


def damage_all(run_dir: Path) -> list[Any]:
    for folder in (run_dir / "checkpoints").glob("step_*"):
        (folder / "model.safetensors").unlink()
    return ["resume", run_dir]


def change_surroundings(run_dir: Path) -> None:
    path = newest(run_dir) / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    facts = manifest["facts"]["surroundings"]
    facts["torch"] = f"0.{facts['torch']}"
    sealed = manifest | {"sha256": manifest_hash(manifest)}
    path.write_text(json.dumps(sealed), encoding="utf-8")


def extra_row(run_dir: Path) -> None:
    with (run_dir / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"time/total_timesteps": 128.0, "time/it')


def killed_before_the_pointer(run_dir: Path) -> list[Any]:
    """The folder `step_128` is whole, but `last` was not moved yet."""
    real = snapshot_module.write_pointer

    def point(checkpoints: Path, pointer: str, name: str) -> None:
        if name == "step_128":
            os.kill(os.getpid(), signal.SIGKILL)
        real(checkpoints, pointer, name)

    def killed() -> None:
        snapshot_module.write_pointer = point
        main(["resume", str(run_dir), "--quiet"])

    assert forked(killed).code == -signal.SIGKILL
    assert (run_dir / "checkpoints" / "step_128").is_dir()
    return ["resume", run_dir]


RESUMED = [
    Fault(
        "a file of the newest checkpoint is truncated",
        "resume RUN",
        ("warning: RUN/checkpoints/step_96/model.safetensors is damaged: it has N bytes instead of N; "
         "falling back to step_64",),
        0, SINCE_BEFORE,
        harm(lambda run: truncate(newest(run) / "model.safetensors")),
    ),
    Fault(
        "a bit of its weights is flipped",
        "resume RUN",
        ("warning: RUN/checkpoints/step_96/model.safetensors is damaged: its hash differs from the manifest's; "
         "falling back to step_64",),
        0, SINCE_BEFORE,
        harm(lambda run: flip_bit(newest(run) / "model.safetensors")),
    ),
    Fault(
        "a bit of its optimizer state is flipped",
        "resume RUN",
        ("warning: RUN/checkpoints/step_96/optimizer.safetensors is damaged: its hash differs from the manifest's; "
         "falling back to step_64",),
        0, SINCE_BEFORE,
        harm(lambda run: flip_bit(newest(run) / "optimizer.safetensors")),
    ),
    Fault(
        "a bit of its manifest is flipped",
        "resume RUN",
        ("warning: RUN/checkpoints/step_96/manifest.json is damaged: …; falling back to step_64",),
        0, SINCE_BEFORE,
        harm(lambda run: flip_bit(newest(run) / "manifest.json", 0)),
    ),
    Fault(
        "a bit of a number in its manifest is flipped; the JSON is still valid",
        "resume RUN",
        ("warning: RUN/checkpoints/step_96/manifest.json is damaged: …; falling back to step_64",),
        0, SINCE_BEFORE,
        harm(lambda run: flip_bit_of_a_number(newest(run) / "manifest.json")),
    ),
    Fault(
        "one of its files is missing",
        "resume RUN",
        ("warning: cannot read RUN/checkpoints/step_96/model.safetensors: No such file or directory; "
         "falling back to step_64",),
        0, SINCE_BEFORE,
        harm(lambda run: (newest(run) / "model.safetensors").unlink()),
    ),
    Fault(
        "its manifest is missing",
        "resume RUN",
        ("warning: cannot read RUN/checkpoints/step_96/manifest.json: No such file or directory; "
         "falling back to step_64",),
        0, SINCE_BEFORE,
        harm(lambda run: (newest(run) / "manifest.json").unlink()),
    ),
    Fault(
        "its folder is missing",
        "resume RUN",
        ("warning: RUN/checkpoints/last names 'step_96', which does not exist; using step_64",),
        0, SINCE_BEFORE,
        harm(lambda run: shutil.rmtree(newest(run))),
    ),
    Fault(
        "a killed process left a partial checkpoint",
        "resume RUN", (), 0, ENTIRELY_NOTHING + "; the partial checkpoint is deleted",
        harm(lambda run: shutil.copytree(newest(run), run / "checkpoints" / ".step_128.tmp")),
    ),
    Fault(
        "killed after the checkpoint was written, before `last` was updated",
        "resume RUN", (), 0, NOTHING.format("the previous checkpoint"),
        killed_before_the_pointer,
    ),
    Fault(
        "`last` is missing",
        "resume RUN",
        ("warning: RUN/checkpoints/last is missing or unreadable; using step_96",),
        0, ENTIRELY_NOTHING,
        harm(lambda run: (run / "checkpoints" / "last").unlink()),
    ),
    Fault(
        "`last` has invalid content",
        "resume RUN",
        ("warning: RUN/checkpoints/last names 'elsewhere', which does not exist; using step_96",),
        0, ENTIRELY_NOTHING,
        harm(lambda run: (run / "checkpoints" / "last").write_text("elsewhere\n", encoding="utf-8")),
    ),
    Fault(
        "the power failed in the middle of a row of `metrics.jsonl`",
        "resume RUN", (), 0, ENTIRELY_NOTHING + "; rows after the checkpoint are written again",
        harm(extra_row),
    ),
    Fault(
        "`metrics.jsonl` is shorter than it was",
        "resume RUN",
        ("warning: RUN/metrics.jsonl is shorter than when the checkpoint was written; rows are missing",),
        0, "the missing rows",
        harm(lambda run: (run / "metrics.jsonl").write_bytes(b"")), exact=False,
    ),
    Fault(
        "`metadata.json` is damaged",
        "resume RUN", (), 0, "the record of who started the run, and how",
        harm(lambda run: (run / "metadata.json").write_bytes(b"\xff\x00{")),
    ),
    Fault(
        "another version of torch is installed now",
        "resume RUN",
        ("warning: torch was 0.X when the checkpoint was written and is X: "
         "the resumed run may not be bit-for-bit identical",),
        0, "possibly bit-for-bit reproducibility",
        harm(change_surroundings), exact=False,
    ),
    Fault(
        "every checkpoint is damaged",
        "resume RUN",
        ("warning: cannot read RUN/checkpoints/step_96/model.safetensors: No such file or directory; "
         "falling back to step_64",
         "warning: cannot read RUN/checkpoints/step_64/model.safetensors: No such file or directory; "
         "falling back to step_32",
         "error: cannot read RUN/checkpoints/step_32/model.safetensors: No such file or directory"),
        2, "the run",
        damage_all,
    ),
    Fault(
        "all checkpoints are missing",
        "resume RUN",
        ("error: RUN has no checkpoint to resume from",),
        2, "the run",
        harm(lambda run: shutil.rmtree(run / "checkpoints")),
    ),
    Fault(
        "evaluating a damaged checkpoint by name",
        "eval RUN/checkpoints/step_96",
        ("error: RUN/checkpoints/step_96/model.safetensors is damaged: its hash differs from the manifest's",),
        2, "that checkpoint; the others are intact",
        explicit("eval"),
    ),
    Fault(
        "resuming from a damaged checkpoint by name",
        "resume RUN/checkpoints/step_96",
        ("error: RUN/checkpoints/step_96/model.safetensors is damaged: its hash differs from the manifest's",),
        2, "that checkpoint; `resume RUN` uses the previous one",
        explicit("resume"),
    ),
]  # fmt: skip


def broken_env(mode: str, **changes: Any) -> Callable[[Path], TrainConfig]:
    def build(output_dir: Path) -> TrainConfig:
        return config_for(
            output_dir, env_id="tiny_envs:Faulty-v0", env_kwargs={"mode": mode, "fail_after": 40},
            eval_every_timesteps=0, **changes,
        )  # fmt: skip

    return build


GOOD = "(last good checkpoint: RUN/checkpoints/step_64)"
TRAINED: list[tuple[Fault, Callable[[Path], TrainConfig]]] = [
    (
        Fault(
            "the environment raises",
            "train",
            ("error: environment N (Faulty-v0) raised ZeroDivisionError in step, step 1 of its episode 5: "
             f"the motor is stuck {GOOD}",),
            1, UP_TO,
        ),
        broken_env("raise"),
    ),
    (
        Fault(
            "the environment raises in a process of its own",
            "train --env-backend async",
            ("error: environment N (Faulty-v0) raised ZeroDivisionError in step, step 1 of its episode 5: "
             f"the motor is stuck {GOOD}",),
            1, UP_TO,
        ),
        broken_env("raise", env_backend="async"),
    ),
    (
        Fault(
            "it raises, and `max_restarts` allows a new start",
            "train --max-restarts 1",
            ("warning: environment N (Faulty-v0) raised ZeroDivisionError in step, step 1 of its episode 5: "
             f"the motor is stuck {GOOD}; restart 1 of 1",
             "error: environment N (Faulty-v0) raised ZeroDivisionError in step, step 1 of its episode 9: "
             "the motor is stuck (last good checkpoint: RUN/checkpoints/step_128)"),
            1, UP_TO,
        ),
        broken_env("raise", max_restarts=1),
    ),
    (
        Fault(
            "an observation is NaN",
            "train",
            ("error: environment N returned an observation that is nan at step 41 of this run; fix the environment, "
             f"or clip the quantity in a wrapper {GOOD}",),
            1, UP_TO,
        ),
        broken_env("nan_observation"),
    ),
    (
        Fault(
            "a reward is infinite",
            "train",
            ("error: environment N returned a reward that is inf at step 41 of this run; fix the environment, "
             f"or clip the quantity in a wrapper {GOOD}",),
            1, UP_TO,
        ),
        broken_env("inf_reward"),
    ),
    (
        Fault(
            "the process of an environment dies",
            "train --env-backend async",
            (f"error: the worker of environment N died (exit code 9) {GOOD}",),
            1, UP_TO,
        ),
        broken_env("die", env_backend="async"),
    ),
    (
        Fault(
            "the process of an environment hangs",
            "train --env-backend async --env-timeout 1",
            ("error: the worker of environment N did not answer for 1 s "
             "(last good checkpoint: RUN/checkpoints/step_32)",),
            1, UP_TO,
        ),
        lambda output_dir: config_for(
            output_dir, env_id="Hangs-v0", env_backend="async", env_timeout=1.0, eval_every_timesteps=0
        ),
    ),
    (
        Fault(
            "learning diverges",
            "train --learning-rate 1e38",
            ("error: loss is nan in update 1, after 32 steps; a smaller learning_rate or normalised observations and "
             "rewards may help (last good checkpoint: RUN/checkpoints/step_0)",),
            1, UP_TO,
        ),
        lambda output_dir: config_for(output_dir, learning_rate=1e38, eval_every_timesteps=0),
    ),
]  # fmt: skip

DISK = [
    Fault(
        "the disk is full when a checkpoint is due",
        "train",
        ("error: checkpoint step_96 could not be written: No space left on device "
         "(last good checkpoint: RUN/checkpoints/step_64)",),
        1, UP_TO,
    ),
    Fault(
        "the disk is full when a metric row is due",
        "train",
        ("error: metrics.jsonl could not be written: No space left on device "
         "(last good checkpoint: RUN/checkpoints/step_0)",),
        1, UP_TO,
    ),
    Fault(
        "the disk is full when an evaluation is recorded",
        "train",
        ("error: evaluations.jsonl could not be written: No space left on device "
         "(last good checkpoint: RUN/checkpoints/step_N)",),
        1, UP_TO,
    ),
    Fault(
        "the output folder cannot be written",
        "train --output-dir D",
        ("error: output_dir 'D' cannot be written: Read-only file system",),
        2, ENTIRELY_NOTHING,
    ),
    Fault(
        "the run folder is read-only",
        "resume RUN",
        ("error: RUN/.lock cannot be opened: Read-only file system",),
        2, ENTIRELY_NOTHING,
    ),
    Fault(
        "the run folder is read-only",
        "eval RUN", (), 0, "nothing",
    ),
]  # fmt: skip

OTHERS = {
    "two writers": Fault(
        "another process is using the run",
        "resume RUN",
        ("error: RUN is in use by process N; wait for it to end, or stop it first",),
        2, ENTIRELY_NOTHING + "; the lock is released when its process ends",
    ),
    "finished": Fault(
        "the run is finished",
        "resume RUN",
        ("error: RUN is finished (160 of 160 steps); extend it with --total-timesteps N",),
        2, ENTIRELY_NOTHING,
    ),
    "moody": Fault(
        "the environment is not a function of its seed and actions",
        "resume RUN",
        ("warning: environments [0, 1] are not deterministic: replaying their actions led to another state. They "
         "begin a new episode, so this run differs from an uninterrupted one",),
        0, "the unfinished episodes",
    ),
}  # fmt: skip


# -------------------------------------------------------------------------------------- how rows are checked


def shown(text: str, run_dir: Path | None) -> tuple[str, ...]:
    """Return what was printed, with placeholders for what differs from machine to machine."""
    if run_dir is not None:
        text = re.sub(rf"{re.escape(str(run_dir))}\b", "RUN", text)
    text = re.sub(r"has \d+ bytes instead of \d+", "has N bytes instead of N", text)
    text = re.sub(r"(process|environment) \d+(, \d+)*", r"\1 N", text)
    text = re.sub(r"(manifest.json is damaged: ).*(; falling back)", r"\1…\2", text)
    text = re.sub(r"torch was 0\.\S+ when the checkpoint was written and is \S+:",
                  "torch was 0.X when the checkpoint was written and is X:", text)  # fmt: skip
    assert "Traceback" not in text
    return tuple(text.strip().splitlines())


@pytest.mark.parametrize("fault", RESUMED, ids=lambda fault: f"{fault.what}: {fault.command}")
def test_resuming_after(cli, paused, whole, fault):
    command = fault.cause(paused)
    before = snapshot(paused)
    outcome = cli(*command, *(["--quiet"] if command[0] == "resume" else []))
    assert (shown(outcome.err, paused), outcome.code) == (fault.seen, fault.code)
    if fault.code:
        assert snapshot(paused) == before, "a refused command changes nothing"
        assert outcome.out == ""
    elif fault.exact:
        assert leftovers(paused) == whole
    else:
        assert (paused / "checkpoints" / "last").read_text(encoding="utf-8") == f"step_{TOTAL}\n"


def snapshot(run_dir: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(run_dir)): path.read_bytes()
        for path in sorted(run_dir.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.mark.parametrize(("fault", "build"), TRAINED, ids=[fault.what for fault, _ in TRAINED])
def test_training_with(cli, tmp_path, fault, build):
    settings = tmp_path / "settings.yaml"
    settings.write_text(build(tmp_path / "runs").to_yaml(), encoding="utf-8")
    started = time.monotonic()
    outcome = cli("train", "--config", settings, "--quiet")
    assert time.monotonic() - started < 8, "it waited for somebody who does not answer"
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert (shown(outcome.err, run_dir), outcome.code) == (fault.seen, fault.code)
    assert outcome.out == ""
    assert json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))["status"] == "failed"
    good = re.search(r"RUN/checkpoints/(step_\d+)\)", fault.seen[-1])
    assert rl_training.load(run_dir).agent.path.name == good[1]


def test_a_second_process(cli, paused, whole):
    reading, writing = os.pipe()

    def owner() -> None:
        with RunLock(paused):
            os.write(writing, b"held")
            time.sleep(60)

    process = forked(owner, wait=False)
    assert os.read(reading, 4) == b"held"
    fault, before = OTHERS["two writers"], snapshot(paused)
    try:
        outcome = cli("resume", paused, "--quiet")
        assert (shown(outcome.err, paused), outcome.code) == (fault.seen, fault.code)
        assert f"process {process.pid};" in outcome.sentence
        assert snapshot(paused) == before
    finally:
        os.kill(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)
        os.close(reading)
        os.close(writing)
    assert (cli("resume", paused, "--quiet").code, leftovers(paused)) == (0, whole)


def test_a_finished_run(cli, paused):
    cli("resume", paused, "--quiet")
    fault, before = OTHERS["finished"], snapshot(paused)
    outcome = cli("resume", paused, "--quiet")
    assert (shown(outcome.err, paused), outcome.code) == (fault.seen, fault.code)
    assert snapshot(paused) == before


def test_an_environment_that_is_not_a_function_of_its_seed(cli, tmp_path):
    run_dir = train(config_for(tmp_path, env_id="Moody-v0"), callbacks=[StopAtCollect(PAUSED)]).run_dir
    outcome, fault = cli("resume", run_dir, "--quiet"), OTHERS["moody"]
    assert (shown(outcome.err, run_dir), outcome.code) == (fault.seen, fault.code)


# ------------------------------------------------------------------------------------------------- real disks


@dataclass(frozen=True)
class Child:
    pid: int
    code: int | None
    result: Any


def forked(function: Callable[[], Any], *, wait: bool = True) -> Child:
    """Call `function` in a copy of this process, which has torch already; return its exit code and its result."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.close(reading)
            torch.set_num_threads(1)  # a pool of threads does not survive a fork
            result = json.dumps(function()).encode()
            with os.fdopen(writing, "wb") as stream:
                stream.write(result)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    if not wait:
        os.close(reading)
        return Child(pid, None, None)
    with os.fdopen(reading, "rb") as stream:
        content = stream.read()
    status = os.waitpid(pid, 0)[1]
    return Child(pid, os.waitstatus_to_exitcode(status), json.loads(content) if content else None)


CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000


def own_mounts() -> bool:
    """Give this process mounts of its own, which end with it; tell whether that is allowed."""
    libc, user = ctypes.CDLL(None, use_errno=True), os.getuid()
    if libc.unshare(CLONE_NEWNS) != 0:
        if libc.unshare(CLONE_NEWNS | CLONE_NEWUSER) != 0:
            return False
        with contextlib.suppress(OSError):
            Path("/proc/self/uid_map").write_text(f"0 {user} 1", encoding="utf-8")
    return subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True).returncode == 0


def mounted(folder: Path, options: str) -> bool:
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True).returncode == 0


def command(*arguments: Any) -> dict[str, Any]:
    """Run a command in this (forked) process and return what came of it."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def only_run(folder: Path) -> Path:
    (run_dir,) = [path for path in folder.iterdir() if path.is_dir()]
    return run_dir


def full_disk(folder: Path, **overrides: Any) -> dict[str, Any]:
    """Train until the disk is full, make room again, resume; tell what was seen and what the run left."""
    if not (own_mounts() and mounted(disk := folder / "disk", "size=4m")):
        return {"skipped": True}
    trigger = folder / "trigger"
    trigger.touch()
    kwargs = {"trigger": str(trigger), "ballast": str(disk / "ballast"), "after": 40}
    config = config_for(disk, env_id="FillsTheDisk-v0", env_kwargs=kwargs).with_overrides(**overrides)
    (folder / "settings.yaml").write_text(config.to_yaml(), encoding="utf-8")
    found = command("train", "--config", folder / "settings.yaml", "--quiet")
    run_dir = only_run(disk)
    trigger.unlink()
    (disk / "ballast").unlink()
    resumed = command("resume", run_dir, "--quiet")
    return found | {"run": str(run_dir), "resumed": resumed, "leftovers": plain(leftovers(run_dir))}


def plain(found: dict[str, Any]) -> dict[str, Any]:
    return found | {"tensors": {name: blob.hex() for name, blob in found["tensors"].items()}}


FULL = {
    0: {"log_every_timesteps": 10_000, "eval_every_timesteps": 0},
    1: {"log_every_timesteps": 1, "eval_every_timesteps": 0, "checkpoint_every_timesteps": 0,
        "num_steps": 4, "batch_size": 8, "total_timesteps": 480},
    2: {"log_every_timesteps": 10_000, "eval_every_timesteps": 8, "checkpoint_every_timesteps": 0,
        "num_steps": 4, "batch_size": 8, "total_timesteps": 480, "num_eval_episodes": 200, "learning_rate": 1e-9},
}  # fmt: skip


@pytest.mark.parametrize("row", FULL, ids=lambda row: DISK[row].what)
def test_a_full_disk(tmp_path, row):
    fault = DISK[row]
    child = forked(lambda: full_disk(tmp_path, **FULL[row]))
    assert child.code == 0
    if child.result.get("skipped"):
        pytest.skip("mounting is not permitted here")
    found = child.result
    seen = tuple(re.sub(r"step_\d+\)", "step_N)", line) if "step_N)" in fault.seen[0] else line
                 for line in shown(found["err"], Path(found["run"])))  # fmt: skip
    assert (seen, found["code"]) == (fault.seen, fault.code)
    assert (found["resumed"]["code"], found["resumed"]["err"]) == (0, "")
    overrides = FULL[row] | {"env_id": "FillsTheDisk-v0"}
    undisturbed = train(config_for(tmp_path / "undisturbed", **overrides)).run_dir
    assert found["leftovers"] == plain(leftovers(undisturbed))


def read_only(folder: Path, pristine: Path) -> dict[str, Any]:
    if not (own_mounts() and mounted(disk := folder / "disk", "size=16m")):
        return {"skipped": True}
    run_dir = Path(shutil.copytree(pristine, disk / "run"))
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    train_flags = ["--env-id", "tiny_envs:Lottery-v0", "--output-dir", disk / "runs", "--quiet"]
    return {
        "disk": str(disk), "run": str(run_dir),
        "train": command("train", "ppo", *train_flags),
        "resume": command("resume", run_dir, "--quiet"),
        "eval": command("eval", run_dir, "--num-episodes", 1),
    }  # fmt: skip


def test_a_read_only_disk(tmp_path, pristine):
    found = forked(lambda: read_only(tmp_path, pristine)).result
    if found.get("skipped"):
        pytest.skip("mounting is not permitted here")
    for verb, fault in zip(("train", "resume", "eval"), DISK[3:], strict=True):
        seen = tuple(line.replace(found["disk"] + "/runs", "D") for line in
                     shown(found[verb]["err"], Path(found["run"])))  # fmt: skip
        assert (verb, seen, found[verb]["code"]) == (verb, fault.seen, fault.code)


def test_no_disk_space_at_the_very_start(tmp_path):
    """The run folder can be made, its files cannot: a sentence, too."""

    def start() -> dict[str, Any]:
        if not (own_mounts() and mounted(disk := tmp_path / "disk", "size=4k")):
            return {"skipped": True}
        (disk / "ballast").write_bytes(bytes(4096))
        return command("train", "ppo", "--env-id", "CartPole-v1", "--output-dir", disk, "--quiet")

    found = forked(start).result
    if found.get("skipped"):
        pytest.skip("mounting is not permitted here")
    assert found["code"] in (1, 2)
    (line,) = shown(found["err"], None)
    assert "No space left on device" in line
    assert "--debug" not in line, "an error nobody foresaw"
    assert str(tmp_path / "disk") in line


# --------------------------------------------------------------------------------- killed at any instant


def count_or_kill(limit: int) -> list[int]:
    """Count the calls that change files; at call number `limit` the process is killed, before the call is made."""
    calls = [0]

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls[0] += 1
            if calls[0] == limit:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **options)

        return call

    for name in ("replace", "fsync", "truncate", "mkdir", "unlink", "rmdir"):
        setattr(os, name, counted(getattr(os, name)))
    shutil.rmtree = counted(shutil.rmtree)
    return calls


def test_killed_at_any_change_of_any_file_a_run_goes_on_as_if_nothing_had_happened(tmp_path, whole):
    """Points are spread over the whole life of a run; in the second life it is killed again."""

    def life(limit: int, *arguments: Any) -> int:
        calls = count_or_kill(limit)
        assert main([str(argument) for argument in arguments]) == 0
        return calls[0]

    def train_flags(name: str) -> list[Any]:
        (tmp_path / f"{name}.yaml").write_text(config_for(tmp_path / name).to_yaml(), encoding="utf-8")
        return ["train", "--config", tmp_path / f"{name}.yaml", "--quiet"]

    total = forked(lambda: life(10**9, *train_flags("count"))).result
    assert total > 100
    survived = 0
    for number, limit in enumerate(range(2, total, max(1, total // 9))):
        flags = train_flags(f"kill{number}")
        assert forked(lambda limit=limit, flags=flags: life(limit, *flags)).code == -signal.SIGKILL
        runs = list((tmp_path / f"kill{number}").glob("*"))
        if not runs or not (runs[0] / "checkpoints" / "last").exists():
            continue  # there is nothing to go on from yet, and nothing was promised
        run_dir = runs[0]
        forked(lambda limit=limit, run=run_dir: life(limit // 2, "resume", run, "--quiet"))
        with contextlib.suppress(UserError):  # the second life may have reached the end
            resume(run_dir)
        assert leftovers(run_dir) == whole, f"killed before change {limit} of {total}"
        survived += 1
    assert survived >= 6


# --------------------------------------------------------------------------------------------------- the page

TABLES = "## Injected faults"
"""The prose of the page is written by hand; what follows this heading, but for its paragraph, is generated."""


def rendered() -> str:
    """Return the tables of the page."""
    sections = {
        "Resuming and evaluating": [*RESUMED, *OTHERS.values(), *DISK[4:]],
        "During training": [*(fault for fault, _ in TRAINED), *DISK[:4]],
    }
    lines = []
    for title, faults in sections.items():
        lines += [
            f"### {title}\n",
            "| fault | command | message | exit code | lost |",
            "|---|---|---|---|---|",
        ]
        for fault in faults:
            seen = "<br>".join(f"`{line}`" for line in fault.seen) or "none"
            lines.append(f"| {fault.what} | `{fault.command}` | {seen} | {fault.code} | {fault.lost} |")
        lines.append("")
    return "\n".join(lines)


def test_the_page_says_what_the_tests_say():
    prose, heading, rest = PAGE.read_text(encoding="utf-8").partition(TABLES)
    assert heading
    paragraph, first, tables = rest.partition("### ")
    if os.environ.get("UPDATE_DOCS"):
        tables = rendered().removeprefix(first)
        PAGE.write_text(prose + heading + paragraph + first + tables, encoding="utf-8")
    assert first + tables == rendered(), "run this test with UPDATE_DOCS=1"
    assert f"train for {TOTAL} steps" in paragraph
    assert f"interrupted at step {PAUSED}" in " ".join(paragraph.split())
