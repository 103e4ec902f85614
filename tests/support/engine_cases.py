"""Runs that every engine must collect alike, and what must be the same in them."""

from pathlib import Path
from typing import Any

from support.compared_runs import tensors, without_clock

LOCKS = "rl_training.envs.tasks:rl_training/Locks-v0"
REPLAY = {"buffer_size": 200, "learning_starts": 24, "batch_size": 8, "total_timesteps": 96}
CASES: dict[str, dict[str, Any]] = {
    "ppo, statistics": {
        "algo": "ppo", "env_id": "tiny_envs:Lottery-v0", "normalize_obs": True, "normalize_reward": True,
        "env_wrappers": ("gymnasium.wrappers:NormalizeObservation",),
    },
    "recurrent ppo, masks": {"algo": "recurrent_ppo", "env_id": LOCKS},
    "a2c, gSDE": {"algo": "a2c", "env_id": "Pendulum-v1", "use_sde": True, "sde_sample_freq": 3},
    "dqn, priorities": {
        "algo": "dqn", "env_id": "tiny_envs:Lottery-v0", "prioritized": True, "n_step": 3, "train_freq": 8,
        "normalize_obs": True, **REPLAY,
    },
    "sac, gSDE": {"algo": "sac", "use_sde": True, "train_freq": 8, "gradient_steps": 4, **REPLAY},
    "td3, noise": {"algo": "td3", "action_noise": "ornstein_uhlenbeck", **REPLAY},
    "ppo, critic entries": {
        "algo": "ppo", "env_id": "tiny_envs:Privileged-v0", "critic_obs": ("phase", "shift"), "normalize_obs": True,
    },
    "recurrent ppo, critic entries": {
        "algo": "recurrent_ppo", "env_id": "tiny_envs:Privileged-v0", "critic_obs": ("shift",),
    },
    "pixels": {"algo": "ppo", "env_id": "rl_training.envs.tasks:rl_training/Catch-v0", "features_dim": 16},
}  # fmt: skip


def settings_of(name: str, **overrides: Any) -> dict[str, Any]:
    """Return the settings of a case with four environments, `algo` among them; keywords override settings."""
    return {"num_envs": 4, "total_timesteps": 192} | CASES[name] | overrides


def last(run_dir: Path) -> Path:
    return run_dir / "checkpoints" / (run_dir / "checkpoints" / "last").read_text(encoding="utf-8").strip()


def assert_same_files(ours: Path, theirs: Path, rows: Any) -> None:
    """All but the settings of the machine is the same."""
    assert tensors(last(ours)) == tensors(last(theirs))
    tables = [without_clock(rows(run / "metrics.jsonl")) for run in (ours, theirs)]
    assert tables[0] == tables[1]
    assert (ours / "evaluations.jsonl").read_bytes() == (theirs / "evaluations.jsonl").read_bytes()
