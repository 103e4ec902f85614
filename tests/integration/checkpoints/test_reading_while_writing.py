"""A run that is being trained may be loaded at any instant, however fast its checkpoints come and go."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms import DQN
from rl_training.algorithms.ppo import PPOConfig
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.spaces.as_data import space_to_data
from rl_training.core.types import Progress
from rl_training.experiment import start
from rl_training.experiment.checkpoints import folders as checkpoint_folders
from rl_training.experiment.checkpoints.folders import open_checkpoint, prune, restore_backups, write_pointer
from rl_training.experiment.checkpoints.format import write_checkpoint
from rl_training.experiment.checkpoints.warm_start import WarmStart
from rl_training.experiment.files import refuse_special_files
from rl_training.experiment.resume import resume
from rl_training.experiment.start import evaluate_checkpoint, train
from support.callbacks import StopAtCollect

pytestmark = pytest.mark.fault

CONFIG = TrainConfig(
    algo="ppo", env_id="CartPole-v1", total_timesteps=10**9, algorithm=PPOConfig(hidden_sizes=(50,))
)
FACTS = {
    "spaces": {
        "observation_space": space_to_data(spaces.Box(-1, 1, (1,))),
        "action_space": space_to_data(spaces.Discrete(2)),
    }
}


def write(checkpoints: Path, step: int) -> None:
    state = {"model": {str(part): torch.full((50,), float(step)) for part in range(3)}}
    write_checkpoint(
        checkpoints / f"step_{step}", config=CONFIG, progress=Progress(step), state=state, facts=FACTS
    )
    write_pointer(checkpoints, "last", f"step_{step}")
    write_pointer(checkpoints, "best", f"step_{step}")


def new_steps(checkpoints: Path, step: int) -> None:
    """What a run with keep_checkpoints 1 does."""
    write(checkpoints, step)
    prune(checkpoints, keep=1)


def same_step(checkpoints: Path, step: int) -> None:
    """A checkpoint that is replaced by another of the same name."""
    write(checkpoints, 7)


@pytest.fixture
def being_written(tmp_path: Path) -> Iterator[Callable[[Any], Path]]:
    """Start a thread that writes checkpoints until the test is over; return the run's folder."""
    over = threading.Event()
    threads = []

    def start(save: Callable[[Path, int], None]) -> Path:
        checkpoints = tmp_path / "checkpoints"
        checkpoints.mkdir()
        save(checkpoints, 1)

        def work() -> None:
            step = 1
            while not over.is_set():
                step += 1
                save(checkpoints, step)

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        return tmp_path

    yield start
    over.set()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("save", [new_steps, same_step])
@pytest.mark.parametrize("name", ["", "last", "checkpoints/best"])
def test_no_read_fails_and_nothing_is_complained_about(
    being_written: Callable[[Any], Path], save: Any, name: str
) -> None:
    run_dir = being_written(save)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps = [open_checkpoint(run_dir / name).progress.timesteps for _ in range(30)]
    assert steps == sorted(steps)
    assert save is same_step or steps[-1] > steps[0]


def test_a_slow_reader_succeeds_at_its_first_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run writes and prunes faster than the reader reads."""
    checkpoints, steps, real = tmp_path / "checkpoints", [1], checkpoint_folders.read_checkpoint
    new_steps(checkpoints, 1)

    def slow(path: Path, *trust: Any) -> Any:
        steps.append(steps[-1] + 1)
        new_steps(checkpoints, steps[-1])
        return real(path, *trust)

    monkeypatch.setattr(checkpoint_folders, "read_checkpoint", slow)
    assert open_checkpoint(tmp_path).progress.timesteps == 1
    assert steps == [1, 2]
    new_steps(checkpoints, 3)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["best", "last", "step_3"]


def test_without_locks_a_reader_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unable)
    test_the_newest_is_found_after_a_prune(tmp_path, monkeypatch)


def test_the_newest_is_found_after_a_prune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is pruned between the look at the pointer and the read."""
    checkpoints, real = tmp_path / "checkpoints", checkpoint_folders.read_pointer
    new_steps(checkpoints, 1)
    looks = []

    def pruned_after(folder: Path, pointer: str) -> str | None:
        name = real(folder, pointer)
        if folder == checkpoints and pointer == "last":
            looks.append(name)
            if len(looks) == 2:  # the first is the one before the attempt
                monkeypatch.setattr(checkpoint_folders, "read_pointer", real)
                new_steps(checkpoints, 2)
        return name

    monkeypatch.setattr(checkpoint_folders, "read_pointer", pruned_after)
    assert open_checkpoint(tmp_path).progress.timesteps == 2
    assert len(looks) == 2


def test_the_lock_of_a_reader_is_not_kept_by_its_workers(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    new_steps(checkpoints, 1)
    reading, writing = os.pipe()
    with checkpoint_folders.keep_checkpoint(tmp_path):
        worker = os.fork()
        if worker == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
    try:
        new_steps(checkpoints, 2)
        assert sorted(path.name for path in checkpoints.glob("step_*")) == ["step_2"]
    finally:
        os.close(reading)
        os.close(writing)
        os.waitpid(worker, 0)


def test_a_warm_start_does_not_read_the_folder_again(being_written: Callable[[Any], Path]) -> None:
    run_dir = being_written(new_steps)
    for _ in range(20):
        learned = open_checkpoint(run_dir)
        time.sleep(0.01)
        assert len(WarmStart.from_checkpoint(learned).record["sha256"]) == 64


class Continued:
    """Trains another run for a while at a point of this one."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.times = 0

    def __call__(self, *arguments: Any) -> None:
        self.times += 1
        resume(self.run_dir, callbacks=[StopAtCollect(40 + 60 * self.times)])


@pytest.fixture
def in_training(tiny: Any) -> Path:
    """A paused DQN run that keeps one checkpoint and, once resumed, replaces all replay data."""
    settings = {"keep_checkpoints": 1, "checkpoint_every_timesteps": 8, "buffer_size": 20}
    return train(tiny("dqn", total_timesteps=500, **settings), callbacks=[StopAtCollect(40)]).run_dir


def test_replay_data_stays_until_a_new_run_has_loaded_it(
    in_training: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that it starts from goes on between the reading of the checkpoint and that of the replay data."""
    go_on = Continued(in_training)
    monkeypatch.setattr(start, "check_tracker", go_on)
    before = (in_training / "checkpoints" / "last").read_text()
    assert train(tiny("dqn", buffer_size=20), start_from=in_training).metrics["global_step"] == 64
    assert go_on.times == 1
    checkpoints = in_training / "checkpoints"
    assert (checkpoints / "last").read_text() != before
    monkeypatch.undo()
    go_on()
    assert len(list(checkpoints.glob("step_*"))) == 1, "what was kept for the reader is pruned afterwards"


@pytest.mark.parametrize("anew", [False, True])
def test_a_loaded_model_goes_on_learning_though_its_checkpoint_is_pruned(
    in_training: Path, monkeypatch: pytest.MonkeyPatch, anew: bool
) -> None:
    model = DQN.start_from(in_training) if anew else DQN.load(in_training)
    go_on, real = Continued(in_training), Path.exists

    def pruned_after(path: Path, **settings: Any) -> bool:
        found = real(path, **settings)
        if path == model.agent.path and not go_on.times:
            go_on()
        return found

    monkeypatch.setattr(Path, "exists", pruned_after)
    model.learn(32, progress=False)
    assert go_on.times == 1


WRITER = """
import sys
from rl_training.config import load_config
from rl_training.experiment.start import train
print(flush=True)
train(load_config(sys.argv[1]))
"""


@pytest.mark.slow
def test_every_door_opens_while_another_process_trains(tiny: Any, tmp_path: Path) -> None:
    """It writes a checkpoint and prunes the one before at every fourth step."""
    settings = {"keep_checkpoints": 1, "checkpoint_every_timesteps": 4, "buffer_size": 20}
    config = tiny("dqn", env_id="CartPole-v1", total_timesteps=10**7, **settings)
    (tmp_path / "config.yaml").write_text(config.with_overrides(output_dir=str(tmp_path)).to_yaml())
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "config.yaml")], text=True)
    try:
        until = time.monotonic() + 60
        while not (found := list(tmp_path.glob("dqn*/checkpoints/last"))) and time.monotonic() < until:
            time.sleep(0.05)
        run_dir, steps = found[0].parent.parent, list[int]()
        short = tiny("dqn", env_id="CartPole-v1", total_timesteps=16, buffer_size=20)
        for _ in range(3):
            learned = open_checkpoint(run_dir)
            steps.append(learned.progress.timesteps)
            train(short, learned=learned)
            DQN.load(run_dir).predict([0.0] * 4)
            evaluate_checkpoint(run_dir, num_episodes=1)
            train(short.with_overrides(total_timesteps=10**7, max_time=0.001), start_from=run_dir)
        assert writer.poll() is None
        assert steps[-1] > steps[0]
    finally:
        writer.kill()
        writer.wait()


def test_files_that_vanish_during_the_look_for_strange_ones_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    real = os.walk
    monkeypatch.setattr(os, "walk", lambda folder: [(p, d, [*f, "gone"]) for p, d, f in real(folder)])
    refuse_special_files(tmp_path)
    (tmp_path / "link").symlink_to("elsewhere")
    with pytest.raises(UserError, match="link is a link"):
        refuse_special_files(tmp_path)


def test_what_is_really_missing_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_folders, "PAUSE", 60)
    write(tmp_path / "checkpoints", 3)
    (tmp_path / "checkpoints" / "step_3" / "model.safetensors").unlink()
    for name in ("", "last", "checkpoints/step_3"):
        with pytest.raises(UserError, match=r"cannot read .*model.safetensors: No such file"):
            open_checkpoint(tmp_path / name)
    with pytest.raises(UserError, match="does not exist"):
        open_checkpoint(tmp_path / "checkpoints" / "step_4")


def test_a_folder_that_changes_all_the_time_is_given_up_after_some_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_folders, "PAUSE", 0)
    write(tmp_path / "checkpoints", 3)
    tries = []

    def vanishes(path: Path, *trust: Any) -> Any:
        tries.append(path)
        os.utime(path)
        raise FileNotFoundError(2, "No such file or directory", "model.safetensors")

    monkeypatch.setattr(checkpoint_folders, "read_checkpoint", vanishes)
    with pytest.raises(UserError, match=r"cannot read model\.safetensors: No such file"):
        open_checkpoint(tmp_path)
    assert len(tries) == checkpoint_folders.TRIES


@pytest.mark.parametrize(("name", "waited"), [("", 3), ("last", 0), ("checkpoints/step_3", 0)])
def test_a_reader_waits_while_a_checkpoint_is_being_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, waited: int
) -> None:
    """Between the two renames neither folder has the name; one that is asked for by name is read where it was put."""
    checkpoints = tmp_path / "checkpoints"
    write(checkpoints, 3)
    (checkpoints / "step_3").rename(checkpoints / ".step_3.old")
    waits = []

    def second_rename(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            (checkpoints / ".step_3.old").rename(checkpoints / "step_3")

    monkeypatch.setattr(checkpoint_folders.time, "sleep", second_rename)
    assert open_checkpoint(tmp_path / name).progress.timesteps == 3
    assert len(waits) == waited


class Killed(Exception):
    pass


def test_a_kill_between_the_two_renames_loses_nothing(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one checkpoint kept, the one that was put aside is all there is."""
    config = tiny(total_timesteps=64, keep_checkpoints=1)
    whole = train(config)
    run_dir = Path(shutil.copytree(whole.run_dir, tmp_path / "killed"))
    checkpoints = run_dir / "checkpoints"
    kept = [folder for folder in checkpoints.glob("step_*") if folder.name != "step_64"]
    for folder in kept:
        shutil.rmtree(folder)
    real = os.replace

    def killed(source: Any, target: Any) -> None:
        if Path(target).name == "step_64":
            raise Killed
        real(source, target)

    read = checkpoint_folders.read_checkpoint(checkpoints / "step_64")
    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(Killed):
        write_checkpoint(read.path, config=config, progress=read.progress, state=read.state, facts=read.facts)
    monkeypatch.setattr(os, "replace", real)
    assert not list(checkpoints.glob("step_*"))
    result = resume(run_dir, total_timesteps=96)
    assert result.metrics["global_step"] == 96
    expected = resume(whole.run_dir, total_timesteps=96)
    models = [(each.checkpoint_path / "model.safetensors").read_bytes() for each in (result, expected)]
    assert models[0] == models[1]
    assert not list(checkpoints.glob(".*"))


def test_what_was_put_aside_stays_so_if_its_successor_is_there(tmp_path: Path) -> None:
    for name in ("step_1", ".step_1.old", ".step_2.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(name)
    restore_backups(tmp_path)
    restore_backups(tmp_path / "nowhere")
    found = {path.name: (path / "manifest.json").read_text() for path in tmp_path.iterdir()}
    assert found == {"step_1": "step_1", ".step_1.old": ".step_1.old", "step_2": ".step_2.old"}


def test_a_pruned_checkpoint_loses_its_name_before_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        write(tmp_path, step)
    seen = []
    real = shutil.rmtree

    def watching(folder: Path, *arguments: Any, **settings: Any) -> None:
        seen.append(sorted(path.name for path in tmp_path.glob("step_*")))
        real(folder, *arguments, **settings)

    monkeypatch.setattr(shutil, "rmtree", watching)
    prune(tmp_path, keep=1)
    assert seen[-1] == ["step_2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "last", "step_2"]
