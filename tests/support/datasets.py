"""Small datasets for tests, recorded with random actions."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np


def episodes_of(env: gymnasium.Env[Any, Any], num_episodes: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return episodes of random actions: T + 1 observations, T of everything else."""
    env.action_space.seed(seed)
    found = []
    for number in range(num_episodes):
        obs, _ = env.reset(seed=seed + number)
        episode: dict[str, list[Any]] = {"observations": [obs]}
        over = False
        while not over:
            action = env.action_space.sample()
            obs, reward, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
            episode["observations"].append(obs)
            step = {"actions": action, "rewards": float(reward), "terminations": terminated}
            for name, value in (step | {"truncations": truncated}).items():
                episode.setdefault(name, []).append(value)
        found.append(episode)
    return found


def write_minari(
    folder: Path, env: gymnasium.Env[Any, Any], episodes: list[dict[str, Any]], data_format: str = "hdf5"
) -> Path:
    """Write episodes as a Minari dataset."""
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    (folder / "data").mkdir(parents=True)
    storage = MinariStorage.new(
        folder / "data", env.observation_space, env.action_space, env.spec, data_format, jpeg_encoding=False
    )
    storage.update_episodes(
        EpisodeBuffer(
            id=number,
            observations=np.array(each["observations"]),
            actions=np.array(each["actions"]),
            rewards=each["rewards"],
            terminations=each["terminations"],
            truncations=each["truncations"],
            infos={},
        )
        for number, each in enumerate(episodes)
    )
    return folder


@cache
def tiny_dataset(env_id: str) -> str:
    """Return the folder of a dataset of 12 short episodes, which is made once per process."""
    folder = Path(tempfile.mkdtemp(prefix="rl_training_tiny_dataset_"))
    env = gymnasium.make(env_id, max_episode_steps=20)
    return str(write_minari(folder / "data_of_random_actions", env, episodes_of(env, 12)))
