"""Locks that open by the highest or lowest allowed choice: learned in seconds by everything that heeds masks.

Chance among the allowed choices comes to 0.36 with six of them; the best is 1.
"""

from pathlib import Path
from typing import Any

import pytest

from rl_training.algorithms import ALGORITHMS
from rl_training.config import TrainConfig

ON_POLICY: dict[str, Any] = {"num_steps": 32, "batch_size": 128, "update_epochs": 4, "learning_rate": 5e-3}
MEMORY: dict[str, Any] = {"core_size": 32, "sequence_length": 8, "hidden_sizes": (32,)}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", ON_POLICY),
    "a2c": ("a2c", {"num_steps": 8, "learning_rate": 5e-3}),
    "dqn": (
        "dqn",
        {"learning_rate": 2e-3, "learning_starts": 500, "target_update_every_timesteps": 500, "gamma": 0.5,
         "exploration_fraction": 0.3, "hidden_sizes": (64,)},
    ),
    "recurrent_ppo": ("recurrent_ppo", ON_POLICY | MEMORY),
    "several parts": ("ppo", ON_POLICY | {"env_kwargs": {"choices": [3, 5]}}),
    "a mask and a memory": ("recurrent_ppo", ON_POLICY | MEMORY | {"env_kwargs": {"hint_steps": 1}}),
}  # fmt: skip


def score(folder: Path, algo: str, **settings: Any) -> float:
    """Train for 8,192 steps; seeds 1 to 3 then were at 0.95 or more in all cases."""
    config = TrainConfig(
        algo=algo,
        env_id="rl_training.envs.tasks:rl_training/Locks-v0",
        seed=1,
        total_timesteps=8_192,
        eval_every_timesteps=0,
        rebuild_envs="off",
        output_dir=str(folder),
    )
    return float(ALGORITHMS[algo](config.with_overrides(**settings)).learn().evaluate(50)["mean_reward"])


@pytest.mark.parametrize("case", CASES)
def test_the_best_of_what_is_allowed_is_learned(case: str, tmp_path: Path) -> None:
    algo, settings = CASES[case]
    assert score(tmp_path, algo, **settings) >= 0.85


def test_whoever_has_no_memory_does_not_open_what_was_told_once(tmp_path: Path) -> None:
    assert score(tmp_path, "ppo", **ON_POLICY, env_kwargs={"hint_steps": 1}) <= 0.7
