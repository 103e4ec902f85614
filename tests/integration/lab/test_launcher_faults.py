"""An environment that breaks in a launched run: named, kept apart, and gone on with when it is mended."""

import os

import pytest

from rl_training.experiment.files import read_json
from rl_training.lab.jobs import Job, JobFolder
from rl_training.lab.launcher import launch
from support.configs import tiny_config

pytestmark = pytest.mark.fault

MODULE = """
import os
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class Fragile(CartPoleEnv):
    steps = 0

    def step(self, action):
        Fragile.steps += 1
        if Fragile.steps > 300 and os.path.exists("{broken}"):
            raise RuntimeError("the cart fell off the table")
        return super().step(action)


gymnasium.register("Fragile-v0", Fragile, max_episode_steps=50)
"""


def test_it_is_named_and_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    broken.touch()
    (tmp_path / "fragile_envs.py").write_text(MODULE.format(broken=broken))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    settings = {"total_timesteps": 640, "checkpoint_every_timesteps": 32, "rebuild_envs": "off"}
    job = Job(
        "mine",
        tiny_config("ppo", "unused", env_id="fragile_envs:Fragile-v0", use_action_masks="off", **settings),
    )
    (failed,) = launch([job], tmp_path / "D").states
    assert failed.status == "failed"
    assert "the cart fell off the table" in failed.error
    assert "last good checkpoint" in failed.error
    run_dir = JobFolder(tmp_path / "D").run_dir(job)
    assert run_dir is not None
    assert (run_dir / "error.txt").is_file()
    broken.unlink()
    (mended,) = launch([job], tmp_path / "D", retry_failed=True).states
    assert mended.status == "finished"
    assert JobFolder(tmp_path / "D").run_dir(job) == run_dir
    (resumed,) = read_json(run_dir / "metadata.json")["resumes"]
    assert resumed["timesteps"] > 0
