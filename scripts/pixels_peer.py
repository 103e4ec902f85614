"""Curves of stable-baselines3 on Atari games from pixels, for comparison: `results/pixels_peer.json`.

Run once (`make pixels-peer`; needs the extras bench and atari); existing results are kept. Settings are of the presets
`ppo/breakout_atari` and `dqn/breakout_atari`, but for a budget of 200k and 100k steps and `learning_starts` of 10k, and
of `ppo/pong_42` with its small network. A point of a curve is the mean raw score of the last 100 finished games of
training, as both libraries log it.
"""

import json
import sys
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import numpy as np
import stable_baselines3 as sb3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecFrameStack

RESULTS = Path(__file__).resolve().parents[1] / "results" / "pixels_peer.json"
EVERY = 10_000
BREAKOUT, PONG = "BreakoutNoFrameskip-v4", "PongNoFrameskip-v4"


class Scores(BaseCallback):
    """Logs the mean score of the last 100 games at regular intervals."""

    def __init__(self) -> None:
        super().__init__()
        self.curve: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        done = len(self.curve) * EVERY
        if self.num_timesteps >= done + EVERY and self.model.ep_info_buffer:
            scores = [game["r"] for game in self.model.ep_info_buffer]
            self.curve.append((self.num_timesteps, float(np.mean(scores))))
        return True


class SmallCNN(BaseFeaturesExtractor):
    """The same two convolutions as our encoder `small` has for images of 42 x 42."""

    def __init__(self, observation_space: Any, features_dim: int = 256) -> None:
        super().__init__(observation_space, features_dim)
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(observation_space.shape[0], 16, 3, stride=2, padding=1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(16, 32, 3, stride=2, padding=1),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(32 * 11 * 11, features_dim),
            torch.nn.ReLU(),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return features [B, features_dim]."""
        features: torch.Tensor = self.layers(images)
        return features


def falling(start: float) -> Any:
    """Return a schedule that falls linearly from `start` to 0."""
    return lambda left: left * start


def ppo(env: Any, seed: int, *, learning_rate: float = 2.5e-4, **others: Any) -> Any:
    """Return the peer's PPO with the usual settings for Atari."""
    return sb3.PPO(
        "CnnPolicy",
        env,
        n_steps=128,
        batch_size=256,
        n_epochs=4,
        learning_rate=falling(learning_rate),
        clip_range=falling(0.1),
        ent_coef=0.01,
        seed=seed,
        **others,
    )


def small_ppo(env: Any, seed: int) -> Any:
    """Return the same with the small network and the settings of `ppo/pong_42`."""
    network = {"features_extractor_class": SmallCNN, "net_arch": []}
    return ppo(env, seed, learning_rate=5e-4, policy_kwargs=network)


def dqn(env: Any, seed: int) -> Any:
    """Return the peer's DQN with the usual settings for Atari, learning early."""
    return sb3.DQN(
        "CnnPolicy",
        env,
        learning_rate=1e-4,
        buffer_size=100_000,
        learning_starts=10_000,
        batch_size=32,
        train_freq=4,
        target_update_interval=1_000,
        exploration_fraction=0.1,
        exploration_final_eps=0.01,
        seed=seed,
    )


CASES = {
    "ppo_breakout_start": (ppo, BREAKOUT, 84, 8, 200_000, (1, 2, 3)),
    "dqn_breakout_start": (dqn, BREAKOUT, 84, 1, 100_000, (1,)),
    "ppo_pong_42": (small_ppo, PONG, 42, 8, 1_000_000, (1,)),
}
"""Algorithm, game, size of its frames, environments, steps, seeds."""


def main(names: list[str]) -> None:
    """Train what is missing, and write each curve when it is done."""
    gymnasium.register_envs(ale_py)
    torch.set_num_threads(1)
    for name in names or list(CASES):
        for seed in CASES[name][-1]:
            if str(seed) not in known().get(name, {}).get("curves", {}):
                curve = train(name, seed)
                case = {"version": sb3.__version__, "curves": {}} | known().get(name, {})
                case["curves"] |= {str(seed): curve}
                RESULTS.write_text(json.dumps(known() | {name: case}) + "\n")
                print(name, seed, curve[-1])


def known() -> dict[str, Any]:
    """Return what is stored so far."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def train(name: str, seed: int) -> list[tuple[int, float]]:
    """Return the curve of one run."""
    make, env_id, size, num_envs, steps, _ = CASES[name]
    games = make_atari_env(env_id, n_envs=num_envs, seed=seed, wrapper_kwargs={"screen_size": size})
    scores = Scores()
    model = make(VecFrameStack(games, n_stack=4), seed=seed).learn(steps, callback=scores)
    last = float(np.mean([game["r"] for game in model.ep_info_buffer]))
    return [*scores.curve, (model.num_timesteps, last)]


if __name__ == "__main__":
    main(sys.argv[1:])
