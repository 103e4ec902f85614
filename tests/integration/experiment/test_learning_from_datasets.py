"""Runs that learn from a dataset alone: the same bytes, interrupted or not, and what a run leaves."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import rl_training
from rl_training.algorithms import ALGORITHMS
from rl_training.core.errors import UserError
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import Callback, PauseTraining
from support.configs import CONTINUOUS, OFFLINE, SETTINGS, tiny_config
from support.datasets import tiny_dataset

FROM_DATASETS = [*OFFLINE, "dqn", "sac", "td3"]


class PauseAt(Callback):
    def __init__(self, updates: int) -> None:
        self.updates = updates

    def on_update(self, progress: Any, result: Any) -> None:
        if progress.updates == self.updates:
            raise PauseTraining("for a test")


def config_of(algo: str, folder: Path, **changes: Any) -> Any:
    env_id = "Pendulum-v1" if algo in CONTINUOUS else "CartPole-v1"
    settings = {"dataset": tiny_dataset(env_id), "total_updates": 24, "eval_every_timesteps": 10} | changes
    if algo in OFFLINE:
        return tiny_config(algo, folder, env_id=env_id, held_out_fraction=0.2, **settings)
    own = {"hidden_sizes": (8,)} | SETTINGS[algo]
    shared = {"seed": 1, "num_eval_episodes": 2, "log_every_timesteps": 8, "checkpoint_every_timesteps": 0}
    first = rl_training.config.TrainConfig(algo=algo, dataset=settings["dataset"], output_dir=str(folder))
    return first.with_overrides(env_id=env_id, held_out_fraction=0.2, **shared | own | settings)


def files_of(checkpoint: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in checkpoint.glob("*.safetensors")}


@pytest.mark.parametrize("algo", FROM_DATASETS)
def test_interrupted_or_not_it_ends_with_the_same_bytes(algo, tmp_path):
    whole = train(config_of(algo, tmp_path)).checkpoint_path
    for updates in (5, 16):
        paused = train(config_of(algo, tmp_path), callbacks=[PauseAt(updates)])
        assert paused.paused
        done = resume(paused.run_dir).checkpoint_path
        assert files_of(done) == files_of(whole), updates
        assert files_of(done)


@pytest.mark.parametrize("algo", OFFLINE)
def test_learn_predict_evaluate_save_load_and_learn_on(algo, tmp_path):
    model = ALGORITHMS[algo](config_of(algo, tmp_path)).learn(total_updates=8)
    assert model.agent.timesteps == 8
    model.save(tmp_path / "agent")
    again = rl_training.load(tmp_path / "agent")
    assert again.evaluate(2) == model.evaluate(2)
    assert again.learn(total_updates=4).agent.timesteps == 12


def test_another_dataset_at_resume_is_an_error_and_nothing_is_lost(tmp_path):
    copy = shutil.copytree(tiny_dataset("CartPole-v1"), tmp_path / "data")
    paused = train(config_of("bc", tmp_path, dataset=str(copy)), callbacks=[PauseAt(5)])
    before = files_of(paused.checkpoint_path)
    shutil.rmtree(copy)
    with pytest.raises(UserError, match="does not exist"):
        resume(paused.run_dir)
    shutil.copytree(tiny_dataset("Acrobot-v1"), copy)
    with pytest.raises(UserError, match="is not the one that this run has learned from"):
        resume(paused.run_dir)
    shutil.rmtree(copy)
    shutil.copytree(tiny_dataset("CartPole-v1"), copy)
    assert files_of(paused.checkpoint_path) == before
    assert not resume(paused.run_dir).paused


def test_held_out_losses_are_in_the_metrics_and_change_nothing(tmp_path):
    told = train(config_of("bc", tmp_path, log_every_timesteps=4))
    rows = (told.run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    told_at = [row["time/iterations"] for row in map(json.loads, rows) if "held_out/loss" in row]
    assert told_at == [4, 8, 12, 16, 20, 24]
    rarely = train(config_of("bc", tmp_path, log_every_timesteps=24))
    assert files_of(told.checkpoint_path) == files_of(rarely.checkpoint_path)
