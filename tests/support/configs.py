"""Configs of every algorithm that train in a tenth of a second."""

from pathlib import Path
from typing import Any

from rl_training.algorithms import ALGORITHMS
from rl_training.config import TrainConfig
from support.datasets import tiny_dataset

CONTINUOUS = ("sac", "td3", "iql", "awac", "td3_bc", "rebrac", "cql")
OFFLINE = tuple(name for name, face in ALGORITHMS.items() if face.config_class.needs_dataset)
CENTRAL = tuple(name for name, face in ALGORITHMS.items() if face.needs_critic_space)
"""Those that need something that only critics read, and so do not train in every environment."""
ONLINE = tuple(name for name in ALGORITHMS if name not in (*OFFLINE, *CENTRAL))
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
    "mappo": {"num_steps": 16, "batch_size": 16, "update_epochs": 2},
    "bc": {"batch_size": 8},
    "iql": {"batch_size": 8},
    "awac": {"batch_size": 8},
    "td3_bc": {"batch_size": 8},
    "cql": {"batch_size": 8, "num_sampled_actions": 3},
    "rebrac": {"batch_size": 8},
}


def tiny_config(algo: str, output_dir: Path | str, **overrides: Any) -> TrainConfig:
    """Return a config of 64 steps in two environments, or of 16 updates; keywords override settings of either level."""
    env_id = overrides.pop("env_id", "Pendulum-v1" if algo in CONTINUOUS else "tiny_envs:Clockwork-v0")
    if algo in CENTRAL and "critic_obs" not in overrides:
        env_id, overrides = "tiny_envs:Privileged-v0", overrides | {"critic_obs": ("phase", "shift")}
    budget: dict[str, Any] = {"total_timesteps": 64}
    if algo in OFFLINE:
        budget = {"dataset": tiny_dataset(env_id), "total_updates": 16}
    config = TrainConfig(
        algo=algo,
        env_id=env_id,
        seed=1,
        output_dir=str(output_dir),
        **budget,
        num_envs=2,
        eval_every_timesteps=0,
        num_eval_episodes=2,
        checkpoint_every_timesteps=0,
        log_every_timesteps=32,
    )
    return config.with_overrides(**{"hidden_sizes": (8,)} | SETTINGS[algo] | overrides)
