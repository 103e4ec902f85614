"""Recordings that are interrupted at the worst moments, in this process and by SIGKILL."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import rl_training
from rl_training.cli import main as command
from rl_training.core.errors import UserError
from rl_training.datasets.opening import open_dataset
from rl_training.experiment.checkpoints.locking import RunLock
from rl_training.experiment.recording import folder as folder_module
from rl_training.experiment.recording import record as record_module
from rl_training.experiment.recording.playing import Player
from support.configs import tiny_config

pytestmark = pytest.mark.fault
EPISODES = 6


class Killed(BaseException):
    """In place of a kill."""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agent")
    rl_training.PPO(tiny_config("ppo", folder, env_id="CartPole-v1")).save(folder / "agent")
    return folder / "agent"


@pytest.fixture(scope="module")
def whole(agent: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return content(made(agent, tmp_path_factory.mktemp("whole") / "d"))


@pytest.fixture(autouse=True)
def _files_of_one_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_module, "SECONDS_PER_FILE", -1.0)


def made(agent: Path, folder: Path) -> Path:
    return rl_training.record(agent, folder, num_episodes=EPISODES, random_fraction=0.3)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "data").iterdir()}


def dying_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, *, before: bool) -> None:
    """Let call number `call` of a function end in a kill, before or after its work."""
    real, calls = getattr(owner, name), iter(range(1, 1000))

    def call_it(*arguments: Any, **options: Any) -> Any:
        now = next(calls) == call
        if now and before:
            raise Killed
        found = real(*arguments, **options)
        if now:
            raise Killed
        return found

    monkeypatch.setattr(owner, name, call_it)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (Player, "play", 3),
        (folder_module, "write_json", 1),
        (folder_module, "write_bytes", 2),
        (folder_module, "_sync_files", 1),
        (record_module, "write_episodes", 1),
        (folder_module.os, "replace", EPISODES + 2),  # after the settings and the files: the dataset itself
        (folder_module.RecordingFolder, "tidy", 1),
    ],
)
def test_whenever_it_dies_the_same_call_writes_the_same_dataset(
    owner, name, call, before, agent, whole, tmp_path
):
    with pytest.MonkeyPatch.context() as patch:
        dying_at(patch, owner, name, call, before=before)
        with pytest.raises(Killed):
            made(agent, tmp_path / "d")
    assert content(made(agent, tmp_path / "d")) == whole
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == [".lock", "data", "recording.json"]


def test_written_episodes_are_not_played_again(agent, tmp_path, monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        dying_at(patch, Player, "play", 4, before=True)
        with pytest.raises(Killed):
            made(agent, tmp_path / "d")
    played = []
    real = Player.play
    monkeypatch.setattr(Player, "play", lambda self, number: played.append(number) or real(self, number))
    made(agent, tmp_path / "d")
    assert played == [3, 4, 5]


def test_a_half_written_file_or_one_after_a_gap_does_not_count(agent, whole, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        dying_at(patch, record_module, "write_episodes", 1, before=True)
        with pytest.raises(Killed):
            made(agent, tmp_path / "d")
    episodes = tmp_path / "d" / "episodes"
    parts = sorted(episodes.iterdir())
    shutil.copy(parts[0], episodes / f".{parts[0].name}.tmp")
    parts[2].unlink()
    assert content(made(agent, tmp_path / "d")) == whole


def test_a_damaged_file_is_named_with_its_remedy(agent, whole, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        dying_at(patch, record_module, "write_episodes", 1, before=True)
        with pytest.raises(Killed):
            made(agent, tmp_path / "d")
    part = sorted((tmp_path / "d" / "episodes").iterdir())[1]
    part.write_bytes(part.read_bytes()[:50])
    with pytest.raises(UserError, match=f"{part.name} is damaged.*delete it"):
        made(agent, tmp_path / "d")
    part.unlink()
    assert content(made(agent, tmp_path / "d")) == whole


def test_a_second_command_is_refused_and_harms_nothing(agent, whole, tmp_path):
    (tmp_path / "d").mkdir()
    with RunLock(tmp_path / "d"), pytest.raises(UserError, match="is in use"):
        made(agent, tmp_path / "d")
    assert content(made(agent, tmp_path / "d")) == whole


def test_a_real_kill(agent, tmp_path):
    words = [str(agent), "--episodes", "400", "--random-fraction", "0.3", "--to"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def start(folder: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "rl_training.cli", "record", *words, str(folder)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)

    process = start(tmp_path / "killed")
    while not (tmp_path / "killed" / "recording.json").exists():
        time.sleep(0.005)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "data").exists()
    for name in ("killed", "whole"):
        assert start(tmp_path / name).wait() == 0
    killed, undisturbed = (open_dataset(str(tmp_path / name)) for name in ("killed", "whole"))
    assert killed.digest == undisturbed.digest


def test_an_interrupted_command_says_how_to_go_on(monkeypatch, tmp_path, capsys):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rl_training.cli.record.record", interrupted)
    assert command(["record", "run", "--to", str(tmp_path / "data")]) == 130
    assert "repeat the same command to go on" in capsys.readouterr().err
