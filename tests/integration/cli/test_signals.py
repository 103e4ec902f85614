"""Real processes and real signals: a run told to stop writes a checkpoint, says how to go on, and loses nothing."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import rl_training
from rl_training.algorithms.ppo import PPOConfig
from rl_training.config import TrainConfig
from rl_training.experiment.logs.sinks import WALL_CLOCK
from rl_training.experiment.start import train

pytestmark = [pytest.mark.fault, pytest.mark.filterwarnings("always::UserWarning")]

MODULE = '''
"""CartPole that takes its time: SLOW seconds per step after SLOW_AFTER steps of its life. The results are the same."""
import os, time
import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

SLOW, AFTER = float(os.environ.get("SLOW", 0)), int(os.environ.get("SLOW_AFTER", 0))


class SlowPole(CartPoleEnv):
    life = 0

    def step(self, action):
        self.life += 1
        if SLOW and self.life > AFTER:
            time.sleep(SLOW)
        return super().step(action)


gymnasium.register("SlowPole-v0", entry_point=SlowPole, max_episode_steps=200)
'''
TOTAL = 1920
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Path]:
    """A folder with the environment's module, which both this process and its children find."""
    folder = tmp_path_factory.mktemp("signals")
    (folder / "slow_pole.py").write_text(MODULE, encoding="utf-8")
    sys.path.insert(0, str(folder))
    torch.set_num_threads(1)
    yield folder
    sys.path.remove(str(folder))


def config_for(folder: Path, **overrides: Any) -> TrainConfig:
    config = TrainConfig(
        algo="ppo", env_id="slow_pole:SlowPole-v0", seed=5, output_dir=str(folder), total_timesteps=TOTAL,
        num_envs=2, eval_every_timesteps=480, num_eval_episodes=2, checkpoint_every_timesteps=192,
        log_every_timesteps=96,
        algorithm=PPOConfig(num_steps=16, batch_size=16, update_epochs=2, hidden_sizes=(8,), learning_rate=1e-2),
    )  # fmt: skip
    return config.with_overrides(**overrides)


def leftovers(run_dir: Path) -> dict[str, Any]:
    """What must not depend on interruptions: the tensors, and every row but its times."""
    folder = run_dir / "checkpoints" / (run_dir / "checkpoints" / "last").read_text(encoding="utf-8").strip()
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "last": folder.name,
        "model": (folder / "model.safetensors").read_bytes(),
        "optimizer": (folder / "optimizer.safetensors").read_bytes(),
        "rows": [{key: value for key, value in row.items() if key not in WALL_CLOCK} for row in rows],
        "evaluations": (run_dir / "evaluations.jsonl").read_text(encoding="utf-8"),
    }


@pytest.fixture(scope="module")
def whole(place) -> dict[str, Any]:
    """The run that nobody interrupts."""
    found = leftovers(train(config_for(place / "whole")).run_dir)
    assert found["last"] == f"step_{TOTAL}"
    assert len(found["rows"]) == TOTAL // 96
    return found


class Run:
    """`rl-training train` as a process of its own, with a process group of its own."""

    def __init__(self, place: Path, folder: Path, backend: str, *, slow: float, after: int = 150) -> None:
        folder.mkdir()
        settings = folder / "settings.yaml"
        settings.write_text(config_for(folder / "runs", env_backend=backend).to_yaml(), encoding="utf-8")
        self.folder, self.place = folder, place
        self.process = subprocess.Popen(
            [BIN / "rl-training", "train", "--config", settings], cwd=place, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment() | {"SLOW": str(slow), "SLOW_AFTER": str(after)},
        )  # fmt: skip

    @property
    def run_dir(self) -> Path:
        (run_dir,) = (self.folder / "runs").iterdir()
        return run_dir

    def wait_for_rows(self, count: int = 3) -> Path:
        """Wait until so many rows are written, so that the run is in its middle; return its folder."""
        wait_until(lambda: self.process.poll() is not None or self._rows() >= count)
        assert self.process.poll() is None, self.process.communicate()
        return self.run_dir

    def _rows(self) -> int:
        return sum(path.read_text().count("\n") for path in self.folder.glob("runs/*/metrics.jsonl"))

    def workers(self) -> list[int]:
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="utf-8")
        return [int(pid) for pid in found.split()]

    def end(self, timeout: float = 15) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            stream.close()


def environment() -> dict[str, str]:
    return os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"}


def wait_until(condition: Callable[[], bool], seconds: float = 25) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def start(place, tmp_path) -> Iterator[Callable[..., Run]]:
    started: list[Run] = []

    def begin(backend: str = "sync", *, slow: float = 0.002, **options: Any) -> Run:
        started.append(Run(place, tmp_path / f"run{len(started)}", backend, slow=slow, **options))
        return started[-1]

    yield begin
    for run in started:
        run.kill()


def status(run_dir: Path) -> str:
    return json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))["status"]


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() and not zombie(pid) for pid in pids)


def zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("backend", "whom"), [("sync", "process"), ("async", "group")])
def test_a_signal_ends_the_run_with_a_checkpoint_and_nothing_is_lost(
    cli, start, whole, backend, whom, signum
):
    run = start(backend)
    run_dir = run.wait_for_rows()
    workers = run.workers()
    assert len(workers) == (2 if backend == "async" else 0)
    (os.killpg if whom == "group" else os.kill)(run.process.pid, signum)
    code, _, err = run.end()
    assert code == 128 + signum
    assert "Traceback" not in err
    acknowledged, told, command = (line for line in err.splitlines() if line)
    name = signal.Signals(signum).name
    assert acknowledged in (
        f"{name}: saving a checkpoint after this update; Ctrl-C again stops at once",
        f"{name}: stopping",  # during an evaluation
    )
    checkpoints = re.escape(str(run_dir / "checkpoints"))
    steps = re.fullmatch(
        rf"stopped by {name} at ([\d,]+) steps; checkpoint: {checkpoints}/step_\d+\. Resume it with:", told
    )[1]
    steps = int(steps.replace(",", ""))
    assert 0 < steps < TOTAL
    assert (run_dir / "checkpoints" / "last").read_text(encoding="utf-8") == f"step_{steps}\n"
    assert status(run_dir) == "paused"
    assert command == f"  rl-training resume {run_dir}"
    assert gone(workers)
    if (backend, signum) == ("sync", signal.SIGINT):  # once by the very command that was printed
        again = subprocess.run(
            shlex.split(command), cwd=run.place, env=environment(), capture_output=True, text=True, timeout=30
        )
        assert (again.returncode, again.stderr) == (0, "")
    else:
        again = cli("resume", run_dir, "--quiet")
        assert (again.code, again.err) == (0, "")
    assert leftovers(run_dir) == whole
    assert status(run_dir) == "finished"
    finished = cli("resume", run_dir)
    assert finished.code == 2
    assert f"is finished ({TOTAL:,} of {TOTAL:,} steps)" in finished.sentence


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_a_second_sigint_stops_at_once_and_the_checkpoint_before_it_is_good(cli, start, whole, backend):
    run = start(backend, slow=0.4, after=240)  # then one update takes several seconds
    run_dir = run.wait_for_rows(4)
    time.sleep(1.0)  # into the slow part
    workers = run.workers()
    os.killpg(run.process.pid, signal.SIGINT)
    time.sleep(0.4)
    assert run.process.poll() is None, "it should be finishing its update"
    told = run.process.stderr.readline() + run.process.stderr.readline()
    assert told == "\nSIGINT: saving a checkpoint after this update; Ctrl-C again stops at once\n"
    os.killpg(run.process.pid, signal.SIGINT)
    started = time.monotonic()
    code, _, err = run.end()
    assert time.monotonic() - started < 3
    assert code == 130
    kept = run_dir / "checkpoints" / (run_dir / "checkpoints" / "last").read_text().strip()
    assert err.strip() == f"interrupted (last good checkpoint: {kept})"
    assert status(run_dir) == "interrupted"
    assert gone(workers)
    assert rl_training.load(run_dir).agent.path.name == (run_dir / "checkpoints" / "last").read_text().strip()
    again = cli("resume", run_dir, "--quiet")
    assert (again.code, again.err) == (0, "")
    assert leftovers(run_dir) == whole


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_two_processes_and_the_death_of_the_first(cli, start, whole, backend):
    """The second is refused while the first lives; after SIGKILL nothing is left in the way."""
    run = start(backend)
    run_dir = run.wait_for_rows()
    workers = run.workers()
    refused = cli("resume", run_dir, "--quiet")
    assert refused.code == 2
    assert refused.sentence == (
        f"error: {run_dir} is in use by process {run.process.pid}; wait for it to end, or stop it first"
    )
    assert cli("eval", run_dir, "--num-episodes", 1).code == 0, "looking is allowed"
    assert run.process.poll() is None
    run.process.kill()
    run.process.wait()
    again = cli("resume", run_dir, "--quiet")  # at once, whatever the workers do
    assert (again.code, again.err) == (0, "")
    assert leftovers(run_dir) == whole
    wait_until(lambda: gone(workers), 5)


def test_an_interrupt_before_anything_has_begun_is_no_page_of_traceback(tmp_path):
    """Importing torch takes seconds, in which people change their minds."""
    (tmp_path / "torch.py").write_text(
        "import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(30)\n", encoding="utf-8"
    )
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-m", "rl_training.cli", "train", "ppo", "--env-id", "CartPole-v1"],
        cwd=tmp_path, env=environment() | {"PYTHONPATH": os.pathsep.join(paths)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        # a job in the background inherits an ignored SIGINT, and Python then leaves it ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        wait_until(lambda: (tmp_path / "importing").exists())
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out, err.strip()) == (130, "", "interrupted")


def test_a_time_limit_pauses_and_nothing_is_lost(cli, place, tmp_path, monkeypatch, whole):
    monkeypatch.setattr(sys.modules["slow_pole"], "SLOW", 0.001)  # two seconds on the fastest machine
    settings = tmp_path / "settings.yaml"
    settings.write_text(config_for(tmp_path / "runs").to_yaml(), encoding="utf-8")
    paused = cli("train", "--config", settings, "--max-time", 0.15)
    assert (paused.code, paused.err) == (0, "")
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert f" resume {run_dir}" in paused.out
    assert "time limit of 0.15 s reached" in paused.out
    assert status(run_dir) == "paused"
    assert leftovers(run_dir)["last"] != f"step_{TOTAL}"
    again = cli("resume", run_dir, "--max-time", 0.1, "--quiet")
    assert (again.code, again.err) == (0, "")
    assert status(run_dir) == "paused"
    monkeypatch.setattr(sys.modules["slow_pole"], "SLOW", 0.0)
    while status(run_dir) == "paused":
        assert cli("resume", run_dir, "--quiet").code == 0
    assert leftovers(run_dir) == whole


def test_the_callers_handlers_come_back(place, tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    train(config_for(tmp_path / "runs", total_timesteps=64))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
