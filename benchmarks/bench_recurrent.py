"""Speed of PPO with an LSTM side by side with sb3-contrib: part of `make bench`; needs the extra bench.

CartPole with RL Zoo's settings for its task without velocities, on one core. Runs alternate; the figure is the median
of the rounds' ratios. Writes `results/bench_recurrent.md`.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import sb3_contrib
import torch
from side_by_side import Rounds, alternated, our_speed, surroundings_line, table_rows, timed
from stable_baselines3.common.env_util import make_vec_env

from rl_training.config import TrainConfig
from rl_training.experiment.files import write_text

ROOT = Path(__file__).resolve().parents[1]
ROUNDS, STEPS = 5, 20_480


def ours(**settings: Any) -> float:
    """PPO with an LSTM for the actor and one for the critic."""
    config = TrainConfig(
        algo="recurrent_ppo",
        env_id="CartPole-v1",
        seed=1,
        total_timesteps=STEPS,
        num_envs=8,
        rebuild_envs="off",
    )
    return our_speed(
        config.with_overrides(
            num_steps=32,
            batch_size=256,
            update_epochs=20,
            gamma=0.98,
            gae_lambda=0.8,
            learning_rate=1e-3,
            activation="relu",
            share_core=False,
            sequence_length=16,
            **settings,
        )
    )


def peers() -> float:
    """The same in sb3-contrib."""
    model = sb3_contrib.RecurrentPPO(
        "MlpLstmPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=1),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        learning_rate=1e-3,
        seed=1,
        device="cpu",
        policy_kwargs={
            "enable_critic_lstm": True,
            "lstm_hidden_size": 64,
            "net_arch": {"pi": [64], "vf": [64]},
            "activation_fn": torch.nn.ReLU,
            "ortho_init": False,
        },
    )
    return timed(lambda: model.learn(STEPS), STEPS)


CASES = {"LSTM, sequences of 16": (ours, peers), "GRU, sequences of 16": (lambda: ours(core="gru"), peers)}


def main() -> None:
    """Measure and write the report."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    measured = alternated(CASES, rounds)
    if rounds >= ROUNDS:
        write_text(ROOT / "results" / "bench_recurrent.md", report(measured))


def report(measured: dict[str, Rounds]) -> str:
    """Return the Markdown report."""
    lines = [
        "# Speed of PPO with a memory",
        "",
        "Made by `make bench`: CartPole-v1, 8 environments x 32 steps, 20 epochs, batch 256, cores of 64 for actor and "
        f"critic each, one core of the machine, {STEPS:,} steps. Whole runs alternate in one process; ours writes its "
        "metric files meanwhile. The peer is RecurrentPPO of sb3-contrib, which has an LSTM only.",
        "",
        "| ours | ours, steps/s | sb3-contrib, steps/s | ratio by round | median ratio |",
        "|---|---|---|---|---|",
        *table_rows(measured),
        "",
        surroundings_line(),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
