"""Speed of SAC and DQN side by side with stable-baselines3: part of `make bench`.

Ours and theirs alternate in one process on one thread; the figure is the median of the rounds' ratios, as a machine's
speed drifts by more than the difference one wants to see. Writes `results/bench_off_policy.md`.
"""

import sys
import warnings
from pathlib import Path

import gymnasium
import stable_baselines3
import torch
from side_by_side import Rounds, alternated, median_ratio, our_speed, surroundings_line, timed
from stable_baselines3.common.monitor import Monitor

from rl_training.config import load_config
from rl_training.experiment.files import write_text

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 7
SAC_STEPS, DQN_STEPS = 700, 10_240


def our_sac() -> float:
    """SAC with batches of 256 and two layers of 256; uniform actions for the first 100 steps."""
    config = load_config("configs/sac/half_cheetah.yaml")
    return our_speed(config.with_overrides(total_timesteps=SAC_STEPS, learning_starts=100))


def peer_sac() -> float:
    """The same in stable-baselines3, which has these settings by default."""
    env = Monitor(gymnasium.make("HalfCheetah-v5"))
    model = stable_baselines3.SAC("MlpPolicy", env, seed=1, device="cpu", learning_starts=100)
    return timed(lambda: model.learn(SAC_STEPS), SAC_STEPS)


def our_dqn() -> float:
    """DQN with the settings of RL Zoo, as in the preset."""
    return our_speed(load_config("configs/dqn/cartpole.yaml").with_overrides(total_timesteps=DQN_STEPS))


def peer_dqn() -> float:
    """The same in stable-baselines3."""
    model = stable_baselines3.DQN(
        "MlpPolicy",
        Monitor(gymnasium.make("CartPole-v1")),
        learning_rate=2.3e-3,
        batch_size=64,
        buffer_size=100_000,
        learning_starts=1_000,
        gamma=0.99,
        target_update_interval=10,
        train_freq=256,
        gradient_steps=128,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [256, 256]},
        seed=1,
        device="cpu",
    )
    return timed(lambda: model.learn(DQN_STEPS), DQN_STEPS)


CASES = {"SAC on HalfCheetah-v5": (our_sac, peer_sac), "DQN on CartPole-v1": (our_dqn, peer_dqn)}


def main() -> None:
    """Measure and write the report."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    measured = alternated(CASES, rounds)
    if rounds >= ROUNDS:
        write_text(ROOT / "results" / "bench_off_policy.md", report(measured))


def report(measured: dict[str, Rounds]) -> str:
    """Return the Markdown report."""
    lines = [
        "# Speed of SAC and DQN",
        "",
        "Made by `make bench`: one environment, one thread, eager. Whole runs alternate in one process; ours writes "
        "its metric files meanwhile. SAC: batch 256, layers 256 x 256, one update per step after 100 steps, "
        f"{SAC_STEPS:,} steps. DQN: RL Zoo's settings for CartPole (batch 64, layers 256 x 256, 128 updates per 256 "
        f"steps), {DQN_STEPS:,} steps.",
    ]
    for name, rounds in measured.items():
        lines += [
            "",
            f"## {name}",
            "",
            "| round | ours, steps/s | stable-baselines3, steps/s | ratio |",
            "|---|---|---|---|",
            *[f"| {i + 1} | {a:,.0f} | {b:,.0f} | {a / b:.2f} |" for i, (a, b) in enumerate(rounds)],
            f"| **median** | | | **{median_ratio(rounds):.2f}** |",
        ]
    lines += ["", surroundings_line(), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
