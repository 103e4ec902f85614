"""Speed side by side with stable-baselines3: `make bench`.

Ours and theirs alternate in one process on one thread; the figure is the median of the rounds' ratios, as a machine's
speed drifts by more than the difference one wants to see. Writes `results/bench_ppo.md`.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import stable_baselines3
import torch
from stable_baselines3.common.env_util import make_vec_env

from rl_training.config import load_config
from rl_training.experiment.files import write_text
from rl_training.experiment.metadata import machine, versions
from rl_training.experiment.runs import train

ROOT = Path(__file__).resolve().parents[1]
STEPS, ROUNDS = 25_600, 7


def ours(folder: str) -> float:
    """Return environment steps per second of a whole run, metric files included, evaluation left out."""
    config = load_config(ROOT / "configs/ppo/cartpole.yaml").with_overrides(
        learning_rate=1e-3,
        total_timesteps=STEPS,
        output_dir=folder,
        eval_every_timesteps=0,
        checkpoint_every_timesteps=0,
        num_eval_episodes=1,
    )
    result = train(config)
    last = (result.run_dir / "metrics.jsonl").read_text().splitlines()[-1]
    return float(json.loads(last)["time/fps"])


def peer() -> float:
    """Return environment steps per second of stable-baselines3 with the same settings."""
    model = stable_baselines3.PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=1),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        learning_rate=lambda remaining: 1e-3 * remaining,
        clip_range=lambda remaining: 0.2 * remaining,
        ent_coef=0.0,
        device="cpu",
        seed=1,
    )
    started = time.perf_counter()
    model.learn(STEPS)
    return STEPS / (time.perf_counter() - started)


def seconds(command: list[str]) -> float:
    """Return the wall-clock time of a process."""
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


def imports() -> dict[str, list[float]]:
    """Time imports and the help text in fresh processes, alternating."""
    python = [sys.executable, "-c"]
    commands = {
        "import stable_baselines3": [*python, "import stable_baselines3"],
        "import rl_training": [*python, "import rl_training"],
        "from rl_training.algorithms import PPO": [*python, "from rl_training.algorithms import PPO"],
        "rl-training --help": [str(Path(sys.executable).parent / "rl-training"), "--help"],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, command in commands.items():
            times[name].append(seconds(command))
    return times


def main() -> None:
    """Measure and write the report."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    rounds: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        ours(folder), peer()  # warm up
        for _ in range(ROUNDS):
            rounds.append((ours(folder), peer()))
            print(f"ours {rounds[-1][0]:,.0f}  stable-baselines3 {rounds[-1][1]:,.0f} steps/s", flush=True)
    write_text(ROOT / "results" / "bench_ppo.md", report(rounds, imports()))
    print(f"median ratio {statistics.median(a / b for a, b in rounds):.2f}; see results/bench_ppo.md")


def report(rounds: list[tuple[float, float]], times: dict[str, list[float]]) -> str:
    """Return the Markdown report."""
    ratio = statistics.median(a / b for a, b in rounds)
    reference = statistics.median(times["import stable_baselines3"])
    hardware: dict[str, Any] = machine()
    lines = [
        "# Speed of PPO",
        "",
        "Made by `make bench`: CartPole-v1, 8 environments x 32 steps, batch 256, 20 epochs, one thread, eager. Whole "
        "runs alternate in one process; ours writes its metric files meanwhile.",
        "",
        "| round | ours, steps/s | stable-baselines3, steps/s | ratio |",
        "|---|---|---|---|",
        *[f"| {i + 1} | {a:,.0f} | {b:,.0f} | {a / b:.2f} |" for i, (a, b) in enumerate(rounds)],
        f"| **median** | | | **{ratio:.2f}** |",
        "",
        "| start-up | median seconds | part of stable-baselines3's import |",
        "|---|---|---|",
        *[
            f"| `{n}` | {statistics.median(t):.2f} | {statistics.median(t) / reference:.2f} |"
            for n, t in times.items()
        ],
        "",
        f"Machine: {hardware['processor']}, {hardware['cpu_count']} cores. "
        + ", ".join(f"{name} {number}" for name, number in versions().items())
        + ".",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
