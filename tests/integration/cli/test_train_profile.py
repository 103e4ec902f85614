"""`rl-training train --profile`: told, kept in the run folder, and nothing is learned otherwise for it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CARTPOLE = ("--env-id", "CartPole-v1", "--seed", "3", "--total-timesteps", "256", "--num-eval-episodes", "1")
DQN = ("--learning-starts", "32", "--batch-size", "8", "--num-envs", "2", "--train-freq", "4")
PPO = ("--num-envs", "2", "--num-steps", "32", "--batch-size", "32", "--update-epochs", "2")


def find_run_dir(folder: Path) -> Path:
    [run] = folder.iterdir()
    return run


@pytest.mark.parametrize(("algo", "flags"), [("ppo", PPO), ("dqn", DQN)])
def test_the_profile_is_told_and_kept_and_learns_the_same(
    cli: Callable[..., Any], tmp_path: Path, algo: str, flags: tuple[str, ...]
):
    plain = cli("train", algo, *CARTPOLE, *flags, "--output-dir", tmp_path / "plain")
    profiled = cli("train", algo, *CARTPOLE, *flags, "--output-dir", tmp_path / "profiled", "--profile")
    assert (plain.code, profiled.code) == (0, 0)
    assert "Where the time went" not in plain.out
    assert "Where the time went" in profiled.out
    assert not (find_run_dir(tmp_path / "plain") / "profile.json").exists()
    told = json.loads((find_run_dir(tmp_path / "profiled") / "profile.json").read_text())
    assert told["timesteps"] == 256
    sections = told["sections"]
    assert {"env", "act", "store", "sample", "update", "log", "evaluate", "checkpoint", "other"} <= set(
        sections
    )
    assert sections["env"]["calls"] == 128
    assert all(found["seconds"] > 0 for found in sections.values())
    parts = sum(found["seconds"] for name, found in sections.items() if "/" not in name)
    assert parts == pytest.approx(told["seconds"])
    weights = [
        (find_run_dir(tmp_path / name) / "checkpoints" / "step_256" / "model.safetensors").read_bytes()
        for name in ("plain", "profiled")
    ]
    assert weights[0] == weights[1]


def test_quiet_prints_the_folder_alone_and_keeps_the_profile(cli: Callable[..., Any], tmp_path: Path):
    done = cli("train", "ppo", *CARTPOLE, *PPO, "--output-dir", tmp_path, "--profile", "--quiet")
    assert done.out.strip() == str(find_run_dir(tmp_path))
    assert (find_run_dir(tmp_path) / "profile.json").exists()
