"""Stable-Baselines3's own learning tests, with its budgets, its settings and its threshold, for our algorithms."""

import tempfile
from typing import Any

from world_cell import Place, config_of

from rl_training.algorithms import ALGORITHMS

SUITE = "stable-baselines3's learning tests"
THRESHOLD = 90.0
"""Of 100 in each of 20 episodes."""
PPO = {
    "num_steps": 2048,
    "batch_size": 64,
    "update_epochs": 10,
    "learning_rate": 3e-4,
    "total_timesteps": 4_096,
}
"""It asks for 3,000 steps, which are two rollouts there."""
RECURRENT = {
    "num_steps": 128,
    "batch_size": 32,
    "update_epochs": 10,
    "learning_rate": 1e-3,
    "total_timesteps": 3_000,
}
A2C = {"num_steps": 5, "learning_rate": 7e-4}
DISCRETE: dict[str, dict[str, Any]] = {
    "ppo": PPO,
    "a2c": A2C | {"total_timesteps": 3_000},
    "dqn": {"total_timesteps": 4_000, "learning_starts": 1, "batch_size": 32},
    "recurrent_ppo": RECURRENT,
}
CONTINUOUS: dict[str, dict[str, Any]] = {
    "ppo": PPO,
    "a2c": A2C | {"total_timesteps": 3_500},
    "sac": {"total_timesteps": 700, "learning_starts": 100, "batch_size": 256},
    "td3": {"total_timesteps": 500, "learning_starts": 100, "batch_size": 256},
    "recurrent_ppo": RECURRENT,
}


def learned(place: Place, algo: str) -> dict[str, Any]:
    """Return the mean return of 20 episodes after training, and whether it is enough."""
    continuous = "Box" in place.name
    settings = (CONTINUOUS if continuous else DISCRETE)[algo]
    shared = {"num_envs": 1, "gamma": 0.95 if continuous else 0.4, "seed": 0 if continuous else 1}
    shared |= {"buffer_size": 10_000} if "learning_starts" in settings else {}
    shared |= {"hidden_sizes": (64, 64)} if continuous else {}
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(place, algo, folder, **shared, **settings, max_eval_episode_steps=1_000)
        score = ALGORITHMS[algo](config, env=place.build).learn().evaluate(20)["mean_reward"]
    if score >= THRESHOLD:
        return {"outcome": "ok", "score": score}
    return {"outcome": "missed", "score": score} | _peer(place, algo, shared, settings)


def _peer(place: Place, algo: str, shared: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return what Stable-Baselines3 itself reaches with the same budget and seed, if it has the algorithm."""
    import stable_baselines3
    from stable_baselines3.common.evaluation import evaluate_policy

    face = getattr(stable_baselines3, algo.upper(), None)
    if face is None or place.build is None:
        return {}
    options = {"policy_kwargs": {"net_arch": [64, 64]}} if "hidden_sizes" in shared else {}
    options |= {"learning_starts": 0} if algo == "dqn" else {}
    env = place.build()
    model = face("MlpPolicy", env, gamma=shared["gamma"], seed=shared["seed"], **options)
    model.learn(settings["total_timesteps"])
    return {"peer": float(evaluate_policy(model, env, n_eval_episodes=20, warn=False)[0])}


def columns(place: Place) -> tuple[str, ...]:
    """Return the algorithms that are tested in an identity environment."""
    if "Box" in place.name:
        return tuple(CONTINUOUS)
    return tuple(algo for algo in DISCRETE if algo != "dqn" or "Multi" not in place.name)
