"""Configs of every algorithm that train in a tenth of a second."""

from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig

CONTINUOUS = ("sac", "td3")
REPLAY: dict[str, Any] = {"buffer_size": 100, "learning_starts": 16, "batch_size": 8}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"num_steps": 16, "batch_size": 16, "update_epochs": 2},
    "a2c": {"num_steps": 8},
    "dqn": REPLAY | {"target_update_every_updates": 4},
    "sac": REPLAY,
    "td3": REPLAY,
    "recurrent_ppo": {
        "num_steps": 16,
        "batch_size": 16,
        "update_epochs": 2,
        "sequence_length": 4,
        "core_size": 6,
    },
}


def tiny_config(algo: str, output_dir: Path | str, **overrides: Any) -> TrainConfig:
    """Return a config of 64 steps in two environments; keywords override settings of either level."""
    config = TrainConfig(
        algo=algo,
        env_id="Pendulum-v1" if algo in CONTINUOUS else "tiny_envs:Clockwork-v0",
        seed=1,
        output_dir=str(output_dir),
        total_timesteps=64,
        num_envs=2,
        eval_every_timesteps=0,
        num_eval_episodes=2,
        checkpoint_every_timesteps=0,
        log_every_timesteps=32,
    )
    return config.with_overrides(**{"hidden_sizes": (8,)} | SETTINGS[algo] | overrides)
