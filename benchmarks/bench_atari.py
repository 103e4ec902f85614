"""Speed on Atari Breakout side by side with stable-baselines3: part of `make bench`; needs the extras bench and atari.

Same wrappers and settings: ours in one process (`sync`) against theirs in one process (DummyVecEnv). Runs alternate on
one thread; the figure is the median of the rounds' ratios. Writes `results/bench_atari.md`.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import stable_baselines3
import torch
from side_by_side import Rounds, alternated, our_speed, surroundings_line, table_rows, timed
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

from rl_training.config import load_config
from rl_training.experiment.files import write_text

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 5
SHORT: dict[str, Any] = {"max_eval_episode_steps": 10, "log_every_timesteps": 500, "rebuild_envs": "off"}
PPO_STEPS, DQN_STEPS, DQN_STARTS = 2_048, 2_000, 500


def our_ppo() -> float:
    """PPO with 8 games in this process, the Nature CNN, 4 epochs of batches of 256."""
    return our_speed(load_config("ppo/breakout_atari").with_overrides(total_timesteps=PPO_STEPS, **SHORT))


def our_native_ppo() -> float:
    """The same with ale-py's own vector environment, on one thread as well."""
    config = load_config("ppo/breakout_atari").with_overrides(total_timesteps=PPO_STEPS, **SHORT)
    return our_speed(
        config.with_overrides(env_id="ALE/Breakout-v5", env_backend="native", env_kwargs={"num_threads": 1})
    )


def our_dqn() -> float:
    """DQN with batches of 32, one update per four steps."""
    config = load_config("dqn/breakout_atari").with_overrides(total_timesteps=DQN_STEPS, **SHORT)
    return our_speed(config.with_overrides(learning_starts=DQN_STARTS))


def games(num_envs: int) -> Any:
    """Return the peer's games with its usual wrappers, in this process."""
    env = make_atari_env("BreakoutNoFrameskip-v4", n_envs=num_envs, seed=1, vec_env_cls=DummyVecEnv)
    return VecFrameStack(env, n_stack=4)


def peer_ppo() -> float:
    """The same in stable-baselines3."""
    model = stable_baselines3.PPO(
        "CnnPolicy",
        games(8),
        n_steps=128,
        batch_size=256,
        n_epochs=4,
        learning_rate=2.5e-4,
        clip_range=0.1,
        ent_coef=0.01,
        seed=1,
        device="cpu",
    )
    return timed(lambda: model.learn(PPO_STEPS), PPO_STEPS)


def peer_dqn() -> float:
    """The same in stable-baselines3."""
    model = stable_baselines3.DQN(
        "CnnPolicy",
        games(1),
        learning_rate=1e-4,
        batch_size=32,
        buffer_size=10_000,
        learning_starts=DQN_STARTS,
        train_freq=4,
        target_update_interval=1_000,
        exploration_final_eps=0.01,
        seed=1,
        device="cpu",
    )
    return timed(lambda: model.learn(DQN_STEPS), DQN_STEPS)


CASES = {
    "PPO, 8 games": (our_ppo, peer_ppo),
    "DQN, 1 game": (our_dqn, peer_dqn),
    "PPO, 8 games, our `native` backend": (our_native_ppo, peer_ppo),
}


def main() -> None:
    """Measure and write the report."""
    warnings.filterwarnings("ignore")
    gymnasium.register_envs(ale_py)
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    measured = alternated(CASES, rounds)
    if rounds >= ROUNDS:
        write_text(ROOT / "results" / "bench_atari.md", report(measured))


def report(measured: dict[str, Rounds]) -> str:
    """Return the Markdown report."""
    lines = [
        "# Speed on Atari",
        "",
        "Made by `make bench`: Breakout in 84 x 84 x 4 with the Nature CNN, one core. Whole runs alternate in one "
        f"process; ours writes its metric files meanwhile. PPO: 128 steps, 4 epochs, batch 256, {PPO_STEPS:,} steps. "
        f"DQN: batch 32, an update per 4 steps after {DQN_STARTS}, {DQN_STEPS:,} steps. `native` plays the v5 id, "
        "with sticky actions; all others BreakoutNoFrameskip-v4.",
        "",
        "| | ours, steps/s | stable-baselines3, steps/s | ratio by round | median ratio |",
        "|---|---|---|---|---|",
        *table_rows(measured),
        "",
        surroundings_line(),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
