"""A bad day costs at most one interval: the fault is named, the run says so, and its last checkpoint is whole."""

import contextlib
import errno
import json
import multiprocessing
import warnings
from pathlib import Path

import pytest
import torch

import rl_training
from rl_training.config import TrainConfig, load_config
from rl_training.core.errors import EnvironmentFault
from rl_training.core.state import split_state
from rl_training.experiment.checkpoints import tensor_files
from rl_training.experiment.checkpoints.format import read_checkpoint
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train

pytestmark = pytest.mark.fault


def only_run(folder: Path) -> Path:
    (run_dir,) = folder.iterdir()
    return run_dir


def metadata(run_dir: Path) -> dict:
    return json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))


@pytest.fixture
def settings(tiny, tmp_path):
    """Checkpoints every 16 steps of two environments; each works for 20 steps, so step_32 is the last good one."""

    def write(mode: str, **changes) -> Path:
        config = tiny(
            env_id="tiny_envs:Faulty-v0", env_kwargs={"mode": mode, "fail_after": 20}, num_steps=8,
            total_timesteps=320, checkpoint_every_timesteps=16,
        ).with_overrides(**changes)  # fmt: skip
        path = tmp_path / "settings.yaml"
        path.write_text(config.to_yaml(), encoding="utf-8")
        return path

    return write


def assert_last_checkpoint_is_whole(run_dir: Path) -> None:
    model = rl_training.load(run_dir)
    assert model.agent.timesteps == 32
    assert model.evaluate(2)["lengths"] == [8, 8]
    assert (run_dir / "checkpoints" / "last").read_text(encoding="utf-8") == "step_32\n"


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_an_environment_that_raises_is_named_with_its_step(settings, cli, tmp_path, backend):
    outcome = cli("train", "--config", settings("raise", env_backend=backend), "--quiet")
    assert outcome.code == 1
    assert outcome.out == ""
    run_dir = only_run(tmp_path / "runs")
    for fact in (
        "Faulty-v0", "ZeroDivisionError", "in step", "step 5 of its episode 2", "the motor is stuck",
        str(run_dir / "checkpoints" / "step_32"),
    ):  # fmt: skip
        assert fact in outcome.sentence
    assert "environment 0" in outcome.sentence or "environment 1" in outcome.sentence
    data = metadata(run_dir)
    assert data["status"] == "failed"
    assert "the motor is stuck" in data["error"]
    assert_last_checkpoint_is_whole(run_dir)


def test_a_worker_says_nothing_of_its_own(settings, cli):
    """Gymnasium warns with a page per worker, which a terminal shows; the sentence says it all."""
    path = settings("raise", env_backend="async")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcome = cli("train", "--config", path, "--quiet")
    assert "the motor is stuck" in outcome.sentence
    assert [str(warning.message) for warning in caught] == []


def test_a_worker_that_is_killed(settings, cli, tmp_path):
    outcome = cli("train", "--config", settings("die", env_backend="async"), "--quiet")
    assert outcome.code == 1
    assert "the worker of environment" in outcome.sentence
    assert "died (exit code 9)" in outcome.sentence
    run_dir = only_run(tmp_path / "runs")
    assert str(run_dir / "checkpoints" / "step_32") in outcome.sentence
    assert metadata(run_dir)["status"] == "failed"
    assert multiprocessing.active_children() == []
    assert_last_checkpoint_is_whole(run_dir)


def test_an_environment_that_raises_in_reset(settings, cli):
    outcome = cli("train", "--config", settings("raise_in_reset"), "--quiet")
    assert outcome.code == 1
    assert "in reset" in outcome.sentence
    assert "Faulty-v0" in outcome.sentence


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize(
    ("mode", "quantity", "value"),
    [
        ("nan_observation", "observation", "nan"),
        ("nan_reward", "reward", "nan"),
        ("inf_reward", "reward", "inf"),
    ],
)
def test_a_number_that_is_none_is_named(settings, cli, tmp_path, mode, quantity, value, backend):
    outcome = cli("train", "--config", settings(mode, env_backend=backend), "--quiet")
    assert outcome.code == 1
    for fact in ("environment 0", f"{quantity} that is {value}", "at step 21 of this run"):
        assert fact in outcome.sentence
    run_dir = only_run(tmp_path / "runs")
    assert metadata(run_dir)["status"] == "failed"
    assert_last_checkpoint_is_whole(run_dir)


OFF_POLICY = {
    "buffer_size": 500,
    "learning_starts": 8,
    "train_freq": 8,
    "hidden_sizes": (8,),
    "batch_size": 8,
}


@pytest.mark.parametrize(
    ("algo", "mode", "changes", "facts"),
    [
        (
            "ppo",
            "huge_reward",
            {"num_steps": 4, "batch_size": 8},
            ("reward of 1e+39 at step 21 of this run",),
        ),
        ("dqn", "huge_reward", OFF_POLICY, ("reward of 1e+39 at step 21 of this run",)),
        ("dqn", "large_rewards", OFF_POLICY | {"n_step": 3}, ("sum over 3 steps", "step 6 of its episode")),
    ],
)
def test_a_reward_that_does_not_fit_what_it_is_stored_in_is_refused(
    cli, tmp_path, algo, mode, changes, facts
):
    """Finite where it was paid and infinite where it is remembered: nothing after it could be learned."""
    config = TrainConfig(
        algo=algo, env_id="tiny_envs:Faulty-v0", env_kwargs={"mode": mode, "fail_after": 20}, num_envs=2,
        output_dir=str(tmp_path / "runs"), total_timesteps=320, checkpoint_every_timesteps=16, num_eval_episodes=2,
        eval_every_timesteps=0, seed=1, rebuild_envs="off",
    ).with_overrides(**changes)  # fmt: skip
    path = tmp_path / "settings.yaml"
    path.write_text(config.to_yaml(), encoding="utf-8")
    outcome = cli("train", "--config", path, "--quiet")
    assert outcome.code == 1
    run_dir = only_run(tmp_path / "runs")
    for fact in ("environment 0 returned", "float32", str(run_dir / "checkpoints" / "step_32"), *facts):
        assert fact in outcome.sentence
    last = read_checkpoint(run_dir / "checkpoints" / "step_32")
    for name, tensor in split_state(last.state)[0].items():
        assert not tensor.is_floating_point() or torch.isfinite(tensor).all(), name
    result = resume(run_dir, total_timesteps=64)  # mended: a new process counts its environments' lives anew
    assert result.metrics["global_step"] == 64


def test_a_last_observation_that_is_none_is_named(tiny):
    """The observation of the step that ends an episode never shows in the next row: it has a check of its own."""
    config = tiny(
        env_id="tiny_envs:Faulty-v0", env_kwargs={"mode": "nan_observation", "fail_after": 7}, num_envs=1
    )
    with pytest.raises(EnvironmentFault, match="final observation that is nan"):
        train(config)


def test_a_loss_that_is_no_number_is_named_and_the_environment_is_not_blamed(
    tiny, cli, tmp_path, monkeypatch
):
    from rl_training.algorithms.ppo import PPOLearner

    real = PPOLearner.update

    def diverging(self, batch, progress):
        result = real(self, batch, progress)
        if progress.updates >= 2:
            result.metrics["value_loss"] = result.metrics["value_loss"] * float("nan")
        return result

    path = tmp_path / "settings.yaml"
    path.write_text(tiny(total_timesteps=160, checkpoint_every_timesteps=32).to_yaml(), encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(PPOLearner, "update", diverging)
        outcome = cli("train", "--config", path, "--quiet")
    assert outcome.code == 1
    assert "value_loss is nan in update 3, after 96 steps" in outcome.sentence
    run_dir = only_run(tmp_path / "runs")
    assert str(run_dir / "checkpoints" / "step_64") in outcome.sentence
    assert metadata(run_dir)["status"] == "failed"
    assert resume(run_dir).metrics["global_step"] == 160


def test_the_traceback_is_shown_on_request_only(settings, cli):
    path = settings("raise")
    assert "Traceback" not in cli("train", "--config", path, "--quiet").err
    outcome = cli("train", "--config", path, "--quiet", "--debug")
    assert outcome.code == 1
    assert "Traceback" in outcome.err
    assert "tiny_envs.py" in outcome.err


def test_a_fault_before_the_first_interval_leaves_the_start_of_the_run(settings, cli, tmp_path, tiny):
    path = settings("raise", checkpoint_every_timesteps=0)
    outcome = cli("train", "--config", path, "--quiet")
    assert outcome.code == 1
    run_dir = only_run(tmp_path / "runs")
    assert f"last good checkpoint: {run_dir / 'checkpoints' / 'step_0'}" in outcome.sentence
    assert metadata(run_dir)["status"] == "failed"
    result = resume(run_dir, total_timesteps=32)  # 16 steps each, below the 20 that break it
    assert metadata(run_dir)["status"] == "finished"
    healthy = train(load_config(path).with_overrides(total_timesteps=32))
    models = [(each.checkpoint_path / "model.safetensors").read_bytes() for each in (result, healthy)]
    assert models[0] == models[1]


def test_a_fault_in_the_very_first_reset_leaves_no_checkpoint_and_says_so(tiny, cli, tmp_path):
    path = tmp_path / "settings.yaml"
    config = tiny(env_id="tiny_envs:Faulty-v0", env_kwargs={"mode": "raise_in_reset", "fail_after": -1})
    path.write_text(config.to_yaml(), encoding="utf-8")
    outcome = cli("train", "--config", path, "--quiet")
    assert outcome.code == 1
    assert "in reset" in outcome.sentence
    assert "no checkpoint was written" in outcome.sentence
    run_dir = only_run(tmp_path / "runs")
    assert metadata(run_dir)["status"] == "failed"
    again = cli("resume", run_dir, "--quiet")  # begins again, and meets the same fault
    assert again.code == 1
    assert "in reset" in again.sentence


def test_the_run_goes_on_once_the_environment_is_mended(settings, cli, tmp_path, rows):
    cli("train", "--config", settings("raise"), "--quiet")
    run_dir = only_run(tmp_path / "runs")
    result = resume(run_dir, total_timesteps=64)  # 32 more steps: 16 each, below the 20 that break it
    assert result.metrics["global_step"] == 64
    assert metadata(run_dir)["status"] == "finished"
    assert [row["time/total_timesteps"] for row in rows(run_dir / "metrics.jsonl")] == [32, 64]


def test_an_interrupt_leaves_a_loadable_checkpoint_and_says_so(settings, cli, tmp_path):
    path = settings("interrupt", rebuild_envs="off")  # otherwise the check before the run would meet it
    outcome = cli("train", "--config", path, "--quiet")
    assert outcome.code == 130
    run_dir = only_run(tmp_path / "runs")
    kept = run_dir / "checkpoints" / (run_dir / "checkpoints" / "last").read_text().strip()
    assert outcome.err.strip() == f"interrupted (last good checkpoint: {kept})"
    assert metadata(run_dir)["status"] == "interrupted"
    assert_last_checkpoint_is_whole(run_dir)


def test_a_full_disk_keeps_the_previous_checkpoint(tiny, cli, tmp_path, monkeypatch):
    path = tmp_path / "settings.yaml"
    path.write_text(tiny(total_timesteps=160, checkpoint_every_timesteps=32).to_yaml(), encoding="utf-8")
    real = tensor_files.replacing

    @contextlib.contextmanager
    def full(target):
        with real(target) as file:
            if "step_64" in str(target) and target.name.startswith("optimizer"):
                file.write(b"0123456789")
                raise OSError(errno.ENOSPC, "No space left on device", str(target))
            yield file

    with monkeypatch.context() as patch:
        patch.setattr(tensor_files, "replacing", full)
        outcome = cli("train", "--config", path, "--quiet")
    assert outcome.code == 1
    assert "No space left on device" in outcome.sentence
    run_dir = only_run(tmp_path / "runs")
    assert metadata(run_dir)["status"] == "failed"
    assert rl_training.load(run_dir).agent.timesteps == 32
    assert resume(run_dir).metrics["global_step"] == 160
    assert [p.name for p in (run_dir / "checkpoints").iterdir() if p.name.startswith(".")] == []


def test_being_killed_between_folder_and_pointer_leaves_the_previous_checkpoint(tiny, monkeypatch):
    """The new folder is complete but nobody points to it yet: the run goes on from the old one."""
    from rl_training.experiment.checkpoints import snapshot

    class Killed(BaseException):
        pass

    real = snapshot.write_pointer

    def point(checkpoints, pointer, name):
        if name == "step_64":
            raise Killed
        real(checkpoints, pointer, name)

    config = tiny(total_timesteps=160, checkpoint_every_timesteps=32)
    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "write_pointer", point)
        with pytest.raises(Killed):
            train(config)
    run_dir = only_run(Path(config.output_dir))
    assert rl_training.load(run_dir).agent.timesteps == 32
    result = resume(run_dir)
    assert result.metrics["global_step"] == 160
    whole = train(config)
    models = [(each.checkpoint_path / "model.safetensors").read_bytes() for each in (result, whole)]
    assert models[0] == models[1]
