"""Run folders written by hand: what a run leaves, without a run."""

import json
from pathlib import Path
from typing import Any

CONFIG = """algo: ppo
env_id: CartPole-v1
seed: 3
output_dir: runs
total_timesteps: 1000
num_envs: 2
env_kwargs:
  gravity: 9.8
algorithm:
  learning_rate: 0.001
  hidden_sizes:
  - 8
"""


def evaluation(timesteps: int, mean: float) -> dict[str, Any]:
    """Return a row of `evaluations.jsonl`."""
    return {
        "timesteps": timesteps,
        "mean_reward": mean,
        "std_reward": 1.0,
        "mean_ep_length": 5.0,
        "num_episodes": 2,
        "returns": [mean - 1, mean + 1],
        "lengths": [4, 6],
    }


def run_folder(
    parent: Path, name: str = "one", means: tuple[float, ...] = (1.0, 3.0), **changes: Any
) -> Path:
    """Return a finished run's folder; `changes` go into its metadata."""
    folder = parent / name
    (folder / "checkpoints" / "step_1000").mkdir(parents=True)
    (folder / "checkpoints" / "step_1000" / "manifest.json").write_text("{}", encoding="utf-8")
    for pointer in ("last", "best"):
        (folder / "checkpoints" / pointer).write_text("step_1000\n", encoding="utf-8")
    metadata = {
        "status": "finished",
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "seed": 3,
        "arguments": ["rl-training", "train", "ppo"],
        "started": "2026-01-02T03:04:05+00:00",
        "finished": "2026-01-02T03:05:05+00:00",
        "git_commit": "abc",
        "versions": {"python": "3.11.7", "rl_training": "0.1.0", "torch": "2.4"},
        "machine": {"processor": "a processor"},
        "resumes": [],
        "update_path": "explicit",
        "stop_reason": None,
        "metrics": {"global_step": 1000},
    }
    (folder / "metadata.json").write_text(json.dumps(metadata | changes), encoding="utf-8")
    seed = (metadata | changes)["seed"]
    (folder / "config.yaml").write_text(CONFIG.replace("seed: 3", f"seed: {seed}"), encoding="utf-8")
    (folder / ".origin.json").write_text("{}", encoding="utf-8")
    (folder / ".lock").write_text("1\n", encoding="utf-8")
    (folder / "metrics.jsonl").write_text('{"time/total_timesteps": 900.0}\n', encoding="utf-8")
    rows = [json.dumps(evaluation(500 * (k + 1), mean)) + "\n" for k, mean in enumerate(means)]
    (folder / "evaluations.jsonl").write_text("".join(rows), encoding="utf-8")
    return folder
