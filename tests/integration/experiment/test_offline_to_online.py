"""Runs that collect and learn from a dataset as well, and runs that continue online from an agent learned offline."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, UserError
from rl_training.data.dataset_source import DatasetRows
from rl_training.data.replay_buffer import Transitions
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
