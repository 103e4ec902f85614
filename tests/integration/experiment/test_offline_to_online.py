"""Runs that collect and learn from a dataset as well, and runs that continue online from an agent learned offline."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import IQL, SAC
from rl_training.algorithms import ALGORITHMS
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, UserError
from rl_training.data.dataset_source import DatasetRows
from rl_training.data.replay_buffer import Transitions
from rl_training.experiment.checkpoints.taking_over import TAKES_OVER
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import Callback, PauseTraining
from support.configs import CONTINUOUS, SETTINGS
from support.datasets import tiny_dataset

MIXING = ["dqn", "sac", "td3"]


class PauseAt(Callback):
    def __init__(self, timesteps: int) -> None:
        self.timesteps = timesteps

    def on_collect(self, progress: Any) -> None:
        if progress.timesteps >= self.timesteps:
            raise PauseTraining("for a test")


class Batches(Callback):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_rollout(self, batch: Any) -> None:
        self.seen.append(batch)


def config_of(algo: str, folder: Path, **changes: Any) -> TrainConfig:
    env_id = "Pendulum-v1" if algo in CONTINUOUS else "CartPole-v1"
    own = {"hidden_sizes": (8,)} | SETTINGS[algo]
    shared = {"seed": 1, "num_eval_episodes": 2, "log_every_timesteps": 32, "checkpoint_every_timesteps": 0}
    shared |= {"eval_every_timesteps": 0, "total_timesteps": 128, "dataset_fraction": 0.5, "num_envs": 2}
    first = TrainConfig(algo=algo, dataset=tiny_dataset(env_id), output_dir=str(folder))
    return first.with_overrides(env_id=env_id, **shared | own | changes)


def files_of(checkpoint: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in checkpoint.glob("*.safetensors")}


@pytest.mark.parametrize("algo", MIXING)
def test_interrupted_or_not_it_ends_with_the_same_bytes(algo, tmp_path):
    whole = train(config_of(algo, tmp_path, n_step=3)).checkpoint_path
    for timesteps in (3, 70):
        paused = train(config_of(algo, tmp_path, n_step=3), callbacks=[PauseAt(timesteps)])
        assert paused.paused
        done = resume(paused.run_dir).checkpoint_path
        assert files_of(done) == files_of(whole), timesteps
        assert files_of(done)


@pytest.mark.parametrize("changes", [{"env_groups": 2}, {"env_groups": 2, "lag": 1}])
def test_processes_collect_to_the_same_bytes(changes, tmp_path):
    here = train(config_of("sac", tmp_path, **changes)).checkpoint_path
    there = train(config_of("sac", tmp_path, engine="process", **changes)).checkpoint_path
    assert files_of(here) == files_of(there)


@pytest.mark.parametrize(("fraction", "rows"), [(0.5, 8), (0.01, 1), (0.25, 4), (0.99, 15)])
def test_every_batch_has_its_rows_of_both(fraction, rows, tmp_path, monkeypatch):
    unmarked = DatasetRows.transitions

    def marked(self: DatasetRows, steps: Any, episodes: Any) -> Transitions:
        found = unmarked(self, steps, episodes)
        return replace(found, rewards=torch.full_like(found.rewards, 777.0))

    monkeypatch.setattr(DatasetRows, "transitions", marked)
    batches = Batches()
    settings = {"batch_size": 16, "gradient_steps": 2, "train_freq": 2}
    train(config_of("td3", tmp_path, dataset_fraction=fraction, **settings), callbacks=[batches])
    parts = [part for batch in batches.seen for part in batch.split(16)]
    assert len(parts) > 20
    for part in parts:
        assert (part.rewards == 777.0).tolist() == [False] * (16 - rows) + [True] * rows


def test_nothing_is_learned_before_learning_starts(tmp_path):
    result = train(config_of("sac", tmp_path, learning_starts=1_000))
    assert result.metrics["updates"] == 0


def test_settings_that_do_not_fit_are_errors(tmp_path):
    with pytest.raises(ConfigError, match="no episodes are held out"):
        config_of("sac", tmp_path, held_out_fraction=0.2)
    with pytest.raises(UserError, match="drawn uniformly"):
        train(config_of("dqn", tmp_path, prioritized=True))
    with pytest.raises(UserError, match="batch_size is 1"):
        train(config_of("sac", tmp_path, batch_size=1))
    assert not list(tmp_path.iterdir())


def test_another_dataset_at_resume_is_an_error(tmp_path):
    copy = shutil.copytree(tiny_dataset("Pendulum-v1"), tmp_path / "data")
    paused = train(config_of("sac", tmp_path, dataset=str(copy)), callbacks=[PauseAt(70)])
    shutil.rmtree(copy)
    shutil.copytree(tiny_dataset("CartPole-v1"), copy)
    with pytest.raises(UserError, match="is not the one that this run has learned from"):
        resume(paused.run_dir)


def test_kinds_of_data_change_with_their_settings(tmp_path):
    mixed = config_of("sac", tmp_path)
    offline = mixed.with_overrides(dataset_fraction=1.0, total_updates=7, held_out_fraction=0.2)
    assert offline.offline
    assert offline.total_timesteps == TrainConfig(algo="sac", env_id="x").total_timesteps
    again = offline.with_overrides(dataset_fraction=0.5)
    assert (again.total_updates, again.held_out_fraction) == (100_000, 0.05)
    assert offline.with_overrides(dataset=None).dataset_fraction == 1.0


def learned_offline(algo: str, folder: Path) -> Path:
    """Return a short run from a dataset alone, with settings that fit to the other algorithm only by themselves."""
    settings = {"dataset": tiny_dataset("Pendulum-v1"), "hidden_sizes": (8, 8), "normalize_obs": True}
    config = TrainConfig(algo=algo, dataset=settings["dataset"], output_dir=str(folder), total_updates=10)
    return train(
        config.with_overrides(seed=1, held_out_fraction=0.2, num_eval_episodes=1, **settings)
    ).run_dir


def some_observations() -> np.ndarray:
    angles = np.linspace(-3.0, 3.0, 40)
    return np.stack([np.cos(angles), np.sin(angles), angles], 1).astype(np.float32)


PAIRS = [(there, here) for here, sources in TAKES_OVER.items() for there in sources if there in ALGORITHMS]


@pytest.mark.parametrize(("there", "here"), [*PAIRS, ("sac", "sac"), ("td3", "td3")])
def test_an_agent_goes_on_online(there, here, tmp_path):
    old = learned_offline(there, tmp_path)
    before = ALGORITHMS[there].load(old)
    settings = {"total_timesteps": 150, "num_envs": 2, "learning_starts": 20, "batch_size": 8}
    model = ALGORITHMS[here].start_from(old, dataset_fraction=0.5, **settings)
    seen = some_observations()
    # a matrix product with one column rounds differently from one with two
    assert np.allclose(before.predict(seen)[0], model.predict(seen)[0], rtol=0, atol=1e-6)
    for name, weights in before.agent.state["model"].items():
        if weights.dim() and name != "head.log_std":
            assert torch.equal(model.agent.state["model"][name][: len(weights)], weights), name
    assert model.config.algorithm.hidden_sizes == (8, 8)
    model.learn()
    assert model.agent.timesteps == 150
    assert not np.array_equal(before.predict(seen)[0], model.predict(seen)[0])
    again = ALGORITHMS[here].load(model.run_dir)
    assert np.array_equal(again.predict(seen)[0], model.predict(seen)[0])


@pytest.mark.parametrize(("there", "here"), [("iql", "sac"), ("iql", "awac")])
def test_command_and_python_start_from_the_same_weights(there, here, tmp_path, cli):
    old = learned_offline(there, tmp_path)
    flags = ["--dataset-fraction", 0.5, "--total-timesteps", 40, "--num-envs", 2, "--learning-starts", 10]
    done = cli(
        "train", here, "--start-from", old, *flags, "--batch-size", 8, "--num-eval-episodes", 1, "--quiet"
    )
    assert done.code == 0, done.err
    started = Path(done.out.strip()) / "started_from"
    settings = {"dataset_fraction": 0.5, "total_timesteps": 40, "num_envs": 2, "learning_starts": 10}
    model = ALGORITHMS[here].start_from(old, **settings, batch_size=8, num_eval_episodes=1).learn()
    assert model.run_dir is not None
    assert files_of(started) == files_of(model.run_dir / "started_from")
    assert files_of(started)
    assert files_of(Path(done.out.strip()) / "checkpoints" / "step_40") == files_of(
        model.run_dir / "checkpoints" / "step_40"
    )


def test_the_squashed_normal_has_the_learned_deviation(tmp_path):
    old = learned_offline("iql", tmp_path)
    log_std = IQL.load(old).policy.head.log_std.detach()
    policy = SAC.start_from(old).policy
    outputs = policy.outputs(some_observations())
    assert np.allclose(outputs[:, 1:], log_std.numpy())


def test_others_are_refused(tmp_path, cli):
    old = learned_offline("bc", tmp_path)
    outcome = cli("train", "sac", "--start-from", old, "--dataset-fraction", 0.5)
    assert outcome.code == 2
    assert "is for bc, not for sac; start from a run of sac or cql or iql" in outcome.sentence
    with pytest.raises(UserError, match="holds a bc agent"):
        SAC.start_from(old)


def test_a_run_of_somebody_else_does_not_choose_the_dataset(tmp_path, cli, monkeypatch):
    old = learned_offline("iql", tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another_user"))
    outcome = cli("train", "--start-from", old, "--output-dir", tmp_path / "new")
    assert outcome.code == 2
    assert "would read the dataset" in outcome.sentence
    with pytest.raises(UserError, match="would read the dataset"):
        resume(old, total_updates=20)
    with pytest.raises(UserError, match="would read the dataset"):
        SAC.start_from(old, dataset_fraction=0.5).learn()
    assert not (tmp_path / "new").exists()
    IQL.load(old).predict(some_observations())  # acting reads none
    own = ["--dataset", tiny_dataset("Pendulum-v1"), "--total-updates", 5, "--output-dir", tmp_path / "new"]
    assert cli("train", "--start-from", old, *own).code == 0
    assert resume(old, total_updates=12, trust_modules=True).metrics["updates"] == 12


def test_a_count_of_updates_is_not_continued_as_one_of_steps(tmp_path):
    old = learned_offline("sac", tmp_path)
    with pytest.raises(UserError, match="another kind of data"):
        SAC.load(old, dataset_fraction=0.5).learn(total_timesteps=100)


@pytest.mark.parametrize("algo", ["bc", "rebrac"])
def test_algorithms_for_data_alone_do_not_collect(algo, tmp_path):
    config = TrainConfig(algo=algo, dataset=tiny_dataset("Pendulum-v1"), output_dir=str(tmp_path))
    with pytest.raises(UserError, match="learns from recorded data alone"):
        train(config.with_overrides(dataset_fraction=0.5))
    assert not list(tmp_path.iterdir())


def test_a_model_that_mixes_says_what_it_counts_and_shows_its_dataset():
    model = SAC(dataset="data", dataset_fraction=0.5)
    with pytest.raises(
        UserError, match=r"SAC with dataset_fraction 0.5 counts steps; use learn\(total_timesteps=N\)"
    ):
        model.learn(total_updates=3)
    assert repr(model) == "SAC(dataset='data', seed=0, timesteps=0)"
