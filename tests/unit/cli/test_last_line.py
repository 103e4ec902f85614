"""The last line of `train`: a diagnosis, and nothing where none is possible or the run is good enough."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from rl_training.cli.train import print_diagnosis
from rl_training.config import TrainConfig
from rl_training.experiment.run import TrainResult

CONFIG = TrainConfig(algo="ppo", env_id="Pendulum-v1")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """The folder of a run whose return was -100 all the time."""
    rows = [
        {"time/total_timesteps": 1e3 * n, "time/episodes": 50.0 * n, "rollout/ep_rew_mean": -100.0}
        for n in range(1, 7)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluation = {"timesteps": 6000, "mean_reward": -105.0, "returns": [-105.0]}
    (tmp_path / "evaluations.jsonl").write_text(json.dumps(evaluation) + "\n")
    return tmp_path


def printed(run_dir: Path, config: TrainConfig, capsys: Any) -> str:
    (run_dir / "config.yaml").write_text(config.to_yaml())
    print_diagnosis(TrainResult(run_dir, run_dir))
    return str(capsys.readouterr().out)


def test_a_run_that_did_badly(run_dir: Path, capsys: Any) -> None:
    assert "the return did not rise" in printed(run_dir, CONFIG, capsys)
    higher = CONFIG.with_overrides(stop_at_reward=-50.0)
    assert "the return did not rise" in printed(run_dir, higher, capsys)


def test_a_run_that_reached_its_reward(run_dir: Path, capsys: Any) -> None:
    assert printed(run_dir, CONFIG.with_overrides(stop_at_reward=-105.0), capsys) == ""


def test_a_run_that_reached_the_threshold_of_its_environment(run_dir: Path, capsys: Any) -> None:
    assert gymnasium.spec("MountainCar-v0").reward_threshold == -110.0
    assert printed(run_dir, CONFIG.with_overrides(env_id="MountainCar-v0"), capsys) == ""


def test_a_log_that_is_too_large_to_read(run_dir: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr("rl_training.experiment.logs.rows.MAX_LOG_BYTES", 10)
    assert printed(run_dir, CONFIG, capsys) == ""
