"""Around our sentences on the command line there is nobody else's noise, and a user's own warnings are there."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

MINE = """
import warnings

import gymnasium
import numpy as np


class Talkative(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        warnings.warn("the battery is low")
        warnings.warn("say recharge() instead", DeprecationWarning)
        return np.full(2, 3, np.float32), {}

    def step(self, action):
        return np.full(2, 3, np.float32), 1, bool(self.np_random.random() < 0.2), False, {}


gymnasium.register("Talkative-v0", entry_point=Talkative, max_episode_steps=50)
"""
TRAIN = [
    "train",
    "ppo",
    "--total-timesteps",
    "64",
    "--num-envs",
    "2",
    "--num-steps",
    "32",
    "--num-eval-episodes",
    "1",
]


def spoken(folder: Path, *arguments: str) -> list[str]:
    """Run a command in a process of its own; return the lines on its error stream."""
    environment = os.environ | {"PYTHONWARNINGS": ""}
    done = subprocess.run(
        [sys.executable, "-m", "rl_training", *arguments], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize("command", [TRAIN, ["check-env"]])
def test_an_outdated_id_is_told_once_in_one_line(tmp_path, command):
    flag = ["--env-id"] if command is TRAIN else []
    said = spoken(tmp_path, *command, *flag, "CartPole-v0")
    assert said == [
        "warning: The environment CartPole-v0 is out of date. You should consider upgrading to version `v1`."
    ]


@pytest.mark.skipif(importlib.util.find_spec("mujoco") is None, reason="needs MuJoCo")
@pytest.mark.parametrize("backend", ["sync", "async"])
def test_a_simulator_neither_prints_nor_writes_a_log(tmp_path, backend):
    limit = ["--max-eval-episode-steps", "1001"]
    said = spoken(tmp_path, *TRAIN, "--env-id", "HalfCheetah-v5", "--env-backend", backend, *limit)
    assert said == []
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_what_an_environment_of_ones_own_warns_of_is_shown(tmp_path):
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    said = "\n".join(spoken(tmp_path, *TRAIN, "--env-id", "mine:Talkative-v0", "--use-action-masks", "off"))
    assert "mine.py:14: UserWarning: the battery is low" in said
    assert "passive_env_checker" not in said
    assert "WARN" not in said
    assert "\x1b" not in said


def test_what_a_simulator_warns_of_while_it_runs_is_heard(monkeypatch):
    from rl_training.envs import factory

    with pytest.warns(UserWarning, match="MuJoCo: Nan, Inf or huge value in QACC"):
        factory._warn("Nan, Inf or huge value in QACC at DOF 0")
    factory._warn("compiler attribute 'x' is deprecated")  # an error in this process, if it were a warning
