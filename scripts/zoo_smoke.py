"""Train every preset for a few steps: each must start, learn, evaluate and save.

`make zoo-smoke` can be interrupted and restarted, and lists failures; `python scripts/zoo_smoke.py ppo/cartpole`
tries some. Delete `runs/zoo_smoke` to try all of them again. Presets of datasets are left out until `make datasets`
has made their data.
"""

import sys
from dataclasses import fields
from pathlib import Path

from rl_training.cli.launching import run_jobs
from rl_training.config import TrainConfig, load_config
from rl_training.config.presets import presets
from rl_training.lab.jobs import Job

FOLDER = Path(__file__).resolve().parents[1] / "runs" / "zoo_smoke"
OFFLINE_UPDATES = 8
"""The budget of presets that learn from a dataset alone."""
BUDGET = {
    "num_envs": 2,
    "num_eval_episodes": 1,
    "max_eval_episode_steps": 50,
    "eval_every_timesteps": 0,
    "checkpoint_every_timesteps": 0,
}
LEARNING = {
    "num_steps": 32,
    "batch_size": 16,
    "update_epochs": 1,
    "learning_starts": 32,
    "buffer_size": 1000,
    "train_freq": 16,
    "gradient_steps": 1,
}
"""Where an algorithm has them: settings that make it learn within the budget."""


def smoke_config(name: str) -> TrainConfig:
    """Return a preset with its own networks and environments, and a tiny budget."""
    config = load_config(name)
    own = {item.name for item in fields(config.algorithm)}
    budget = BUDGET | ({"total_updates": OFFLINE_UPDATES} if config.offline else {"total_timesteps": 128})
    return config.with_overrides(**budget, **{key: value for key, value in LEARNING.items() if key in own})


def main(names: list[str], folder: Path = FOLDER, processes: int = 2) -> int:
    """Train them, and return 1 if one fails."""
    jobs = []
    for name in names or presets():
        config = smoke_config(name)
        if config.dataset is not None and not Path(config.dataset).exists():
            print(f"left out: {name} needs {config.dataset}: run make datasets")
            continue
        jobs.append(Job(name, config))
    again = "make zoo-smoke"
    return run_jobs(
        jobs, folder, launching={"processes": processes, "retry_failed": True}, again=again, retry=again
    )[1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
