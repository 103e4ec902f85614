"""A small Catch: whoever sees catches every ball, whoever is shown black pictures does not."""

from pathlib import Path

import pytest

from rl_training.algorithms import PPO
from rl_training.config import load_config


def score(folder: Path, image_scale: float | None) -> float:
    """Train for 8,192 steps; three seeds of three then caught all of 100 balls, and blind ones a fifth of them."""
    config = load_config("ppo/catch").with_overrides(
        total_timesteps=8_192,
        output_dir=str(folder),
        eval_every_timesteps=0,
        rebuild_envs="off",
        num_envs=16,
        num_steps=32,
        batch_size=128,
        learning_rate=2e-3,
        features_dim=32,
        hidden_sizes=(32,),
        image_scale=image_scale,
    )
    return float(PPO(config).learn().evaluate(100)["mean_reward"])


@pytest.mark.parametrize(("image_scale", "low", "high"), [(None, 0.9, 1.0), (1e-12, -1.0, 0.0)])
def test_catch_is_learned_by_seeing(
    tmp_path: Path, image_scale: float | None, low: float, high: float
) -> None:
    assert low <= score(tmp_path, image_scale) <= high
