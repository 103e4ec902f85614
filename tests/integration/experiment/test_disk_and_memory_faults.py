"""Files that vanish, disks that fail, memory that is short: the sentence names it, and the run goes on later."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rl_training.core.errors import NO_MEMORY, EnvironmentFault, RunFault, UserError, is_out_of_memory
from rl_training.experiment.faults import disk_fault, last_checkpoint_text
from rl_training.experiment.files import write_text
from rl_training.experiment.loading import load_agent
from rl_training.experiment.logs import metadata
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import Callback

pytestmark = pytest.mark.fault

EVENTS = "tensorboard/events.out.tfevents.scalars"


class At64(Callback):
    """Does something to the run's folder when 64 steps are made, once."""

    def __init__(self, harm: Callable[[Path], Any]) -> None:
        self.harm, self.done = harm, False

    def on_start(self, context: Any) -> None:
        self.run_dir = context.run_dir

    def on_collect(self, progress: Any) -> None:
        if progress.timesteps >= 64 and not self.done:
            self.done = True
            self.harm(self.run_dir)


def deleted(name: str) -> Callable[[Path], None]:
    def harm(run_dir: Path) -> None:
        path = run_dir / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return harm


@pytest.fixture
def config(tiny) -> Any:
    return tiny(
        total_timesteps=160, checkpoint_every_timesteps=32, eval_every_timesteps=64, num_eval_episodes=1
    )


def only_run(folder: Path) -> Path:
    (run_dir,) = folder.iterdir()
    return run_dir


def weights(run_dir: Path) -> bytes:
    return (run_dir / "checkpoints" / "step_160" / "model.safetensors").read_bytes()


@pytest.fixture
def undisturbed(config, tmp_path) -> bytes:
    return weights(train(config.with_overrides(output_dir=str(tmp_path / "undisturbed"))).run_dir)


@pytest.mark.parametrize("name", ["metrics.jsonl", "metrics.csv", "evaluations.jsonl", EVENTS, "tensorboard"])
@pytest.mark.filterwarnings("ignore:.*is shorter than when the checkpoint was written")
def test_a_log_that_is_deleted_is_named_and_the_run_goes_on(config, tmp_path, undisturbed, name):
    with pytest.raises(RunFault) as fault:
        train(config, callbacks=[At64(deleted(name))])
    run_dir = only_run(tmp_path / "runs")
    missing = "tensorboard" if name == "tensorboard" else name
    assert f"{run_dir / missing} was deleted during training; resume" in str(fault.value)
    assert "last good checkpoint: " in str(fault.value)
    resume(run_dir)
    assert weights(run_dir) == undisturbed


def test_checkpoints_that_are_deleted_are_followed_by_others(config, undisturbed):
    assert weights(train(config, callbacks=[At64(deleted("checkpoints"))]).run_dir) == undisturbed


def test_checkpoints_that_are_deleted_while_one_is_written_are_not_promised(tmp_path):
    gone = tmp_path / "checkpoints"
    error = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(gone / "last"))
    assert str(disk_fault(error, "checkpoint step_64", tmp_path)) == (
        f"{gone} was deleted during training; restore it, or start a new run"
    )
    assert last_checkpoint_text(gone / "step_32") == "no checkpoint is left"


def test_a_run_that_is_moved_is_told_and_goes_on_where_it_is(config, tmp_path, undisturbed):
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(RunFault) as fault:
        train(config, callbacks=[At64(lambda run_dir: run_dir.rename(elsewhere))])
    assert "was moved or deleted during training; if it was moved, resume it" in str(fault.value)
    assert "(last good checkpoint: step_32)" in str(fault.value)
    assert list((tmp_path / "runs").iterdir()) == []
    resume(elsewhere)
    assert weights(elsewhere) == undisturbed


def failing_fsync(monkeypatch: pytest.MonkeyPatch, part: str, after: int = 0) -> None:
    """Let the disk fail for one file."""
    count = 0

    def fsync(descriptor: int) -> None:
        nonlocal count
        if part in os.readlink(f"/proc/self/fd/{descriptor}"):
            count += 1
            if count > after:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize(
    ("part", "after", "words"),
    [
        ("metrics.jsonl", 1, "metrics.jsonl could not be written: Input/output error (last good"),
        ("step_64", 0, "checkpoint step_64 could not be written: Input/output error (last good"),
        ("metadata.json", 2, "metadata.json could not be written: Input/output error (last good"),
    ],
)
def test_a_broken_disk_is_named_by_its_file(
    config, cli, tmp_path, monkeypatch, undisturbed, part, after, words
):
    path = tmp_path / "settings.yaml"
    path.write_text(config.to_yaml(), encoding="utf-8")
    with monkeypatch.context() as patch:
        failing_fsync(patch, part, after)
        outcome = cli("train", "--config", path, "--quiet")
    assert outcome.code == 1
    assert words in outcome.sentence
    run_dir = only_run(tmp_path / "runs")
    resume(run_dir)
    assert weights(run_dir) == undisturbed


def test_a_full_disk_at_the_first_file(config, cli, tmp_path, monkeypatch):
    def full(path: Path, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    path = tmp_path / "settings.yaml"
    path.write_text(config.to_yaml(), encoding="utf-8")
    monkeypatch.setattr(metadata, "write_json", full)
    outcome = cli("train", "--config", path, "--quiet")
    assert outcome.code == 2
    assert "metadata.json cannot be written: No space left on device" in outcome.sentence


@pytest.mark.filterwarnings("default")
def test_a_full_disk_at_the_curve_is_a_warning(config, cli, tmp_path, monkeypatch):
    from rl_training.experiment.logs import curves

    def full(path: Path, picture: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    path = tmp_path / "settings.yaml"
    path.write_text(config.to_yaml(), encoding="utf-8")
    monkeypatch.setattr(curves, "write_bytes", full)
    outcome = cli("train", "--config", path, "--quiet")
    assert outcome.code == 0
    run_dir = only_run(tmp_path / "runs")
    assert outcome.warnings == [
        f"warning: {run_dir / 'learning_curve.png'} was not drawn: No space left on device"
    ]
    assert json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))["status"] == "finished"


def test_an_error_names_the_file_that_a_person_knows(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        write_text(tmp_path / "nowhere" / "notes.txt", "x")
    assert error.value.filename == str(tmp_path / "nowhere" / "notes.txt")


class TestMemory:
    @pytest.mark.parametrize(
        "error",
        [
            MemoryError(),
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried"
            ),
            ImportError("libtorch_cpu.so: failed to map segment from shared object"),
            OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
            RuntimeError("can't start new thread"),
        ],
    )
    def test_is_told_in_many_ways(self, error):
        assert is_out_of_memory(error)

    def test_not_by_other_errors(self):
        assert not is_out_of_memory(RuntimeError("shapes do not fit"))
        assert not is_out_of_memory(ValueError("can't allocate memory"))

    def test_is_a_sentence_of_the_run(self, config):
        class Greedy(Callback):
            def on_collect(self, progress: Any) -> None:
                raise MemoryError

        with pytest.raises(RunFault, match=r"not enough memory; use fewer num_envs.*last good checkpoint"):
            train(config, callbacks=[Greedy()])

    def test_is_bad_input_before_the_run(self, cli, monkeypatch, tmp_path):
        from rl_training.cli import train as command

        def short(*args: Any, **kwargs: Any) -> None:
            raise MemoryError

        monkeypatch.setattr(command, "train", short)
        outcome = cli("train", "ppo", "--env-id", "CartPole-v1", "--output-dir", tmp_path)
        assert (outcome.code, outcome.sentence) == (2, f"error: {NO_MEMORY}")


def test_a_fault_of_many_words_leaves_room_for_what_is_kept(config, tmp_path):
    class Talkative(Callback):
        def on_collect(self, progress: Any) -> None:
            raise RunFault("x " * 5000)

    with pytest.raises(RunFault) as fault:
        train(config, callbacks=[Talkative()])
    first = only_run(tmp_path / "runs") / "checkpoints" / "step_0"
    assert str(fault.value).endswith(f"… (last good checkpoint: {first})")


class Untold(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class RaisesUntold(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        raise Untold


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_an_exception_that_cannot_be_told_is_named_all_the_same(tiny, backend):
    settings = {"env_id": "Untold", "env_backend": backend, "rebuild_envs": "off", "use_action_masks": "off"}
    with pytest.raises(
        EnvironmentFault, match=r"raised Untold in step, .*error text unavailable: ValueError"
    ):
        train(tiny(**settings), factory=RaisesUntold)


@pytest.mark.parametrize("use", [load_agent, resume])
@pytest.mark.parametrize(
    ("path", "words"), [("x" * 5000, "File name too long"), ("a\0b", "null byte"), ("loop", "symbolic links")]
)
def test_a_path_that_leads_nowhere(use, path, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match=f"cannot be read: .*{words}.*; give a run folder"):
        use(path)


@pytest.mark.parametrize("text", ["&a {a: *a}", "{a: 2020-13-45}", "{? {b: 1} : 2}", "{a: !!int x}"])
def test_a_flag_that_is_no_map_of_yaml(cli, tmp_path, text):
    outcome = cli(
        "train", "ppo", "--env-id", "CartPole-v1", "--env-kwargs", text, "--output-dir", tmp_path / "r"
    )
    assert outcome.code == 2
    assert f"--env-kwargs is {text!r}; that is not a YAML map" in outcome.sentence


def test_an_argument_the_environment_does_not_take(tiny):
    with pytest.raises(
        UserError, match=r"Clockwork-v0' .*cannot be built: the environment takes no argument 'lenth'"
    ):
        train(tiny(env_kwargs={"lenth": 4}))


def test_a_module_that_ends_the_process(cli, tmp_path, monkeypatch):
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(3)\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    commands = [
        ("train", "ppo", "--env-id", "leaving:X-v0"),
        ("check-env", "--env-factory", "leaving:build"),
    ]
    for command in commands:
        outcome = cli(*command)
        assert outcome.code == 2
        assert "leaving" in outcome.sentence
        assert "SystemExit: 3" in outcome.sentence


def test_a_process_without_any_output_trains_all_the_same(tmp_path):
    """Its descriptors 1 and 2 must not become files of the run."""
    words = [
        "train",
        "ppo",
        "--env-id",
        "CartPole-v1",
        "--total-timesteps",
        "64",
        "--num-envs",
        "2",
        "--num-steps",
    ]
    words += ["16", "--batch-size", "16", "--num-eval-episodes", "1", "--output-dir", str(tmp_path / "runs")]
    script = 'exec "$@" >&- 2>&- <&-'
    command = ["sh", "-c", script, "sh", sys.executable, "-m", "rl_training", *words]
    assert subprocess.run(command, check=False).returncode == 0
    run_dir = only_run(tmp_path / "runs")
    assert json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))["status"] == "finished"


def test_nobody_can_be_told_and_the_code_is_right(tmp_path):
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "rl_training", "trian"], stderr=full, check=False)
    assert done.returncode == 2
