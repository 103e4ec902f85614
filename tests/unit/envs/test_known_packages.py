"""Ids of well-known environments that are not found: what to install, and what to write."""

import re
import sys
from types import SimpleNamespace

import pytest

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.envs import known_packages
from rl_training.envs.factory import make_env
from rl_training.envs.known_packages import PACKAGES, package_hint


@pytest.mark.parametrize(
    ("env_id", "install", "written"),
    [
        ("FetchReach-v4", "gymnasium-robotics", "gymnasium_robotics:FetchReach-v4"),
        ("MiniGrid-Empty-5x5-v0", "minigrid", "minigrid:MiniGrid-Empty-5x5-v0"),
        ("highway-fast-v0", "highway-env", "highway_env:highway-fast-v0"),
        ("PandaReach-v3", "panda-gym", "panda_gym:PandaReach-v3"),
        ("Meta-World/MT1", "metaworld", "metaworld:Meta-World/MT1"),
        ("VizdoomBasic-v0", "vizdoom", "vizdoom.gymnasium_wrapper:VizdoomBasic-v0"),
        ("ALE/Pong-v5", "'rl-training[atari]'", None),
        ("BreakoutNoFrameskip-v4", "'rl-training[atari]'", None),
        ("HalfCheetah-v5", "'rl-training[mujoco]'", None),
        ("LunarLander-v3", "'rl-training[box2d]'", None),
    ],
)
def test_what_to_install_and_what_to_write(env_id, install, written, monkeypatch):
    monkeypatch.setattr(known_packages, "_installed", lambda module: False)
    hint = package_hint(env_id)
    then = "" if written is None else f" and write env_id {written}"
    assert hint == f"it needs a package that is not installed: pip install {install}{then}"
    if written is not None:
        assert package_hint(written) == f"it needs a package that is not installed: pip install {install}"
        monkeypatch.setattr(known_packages, "_installed", lambda module: True)
        assert package_hint(env_id) == f"write env_id {written}"
        assert package_hint(written) is None


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", "Pendulum-v1", "MyOwn-v0", "my_module:MyOwn-v0", "Antarctica-v0"]
)
def test_other_ids_get_no_hint(env_id, monkeypatch):
    monkeypatch.setattr(known_packages, "_installed", lambda module: False)
    assert package_hint(env_id) is None


def test_each_pattern_is_of_one_package():
    samples = ["ALE/Pong-v5", "Ant-v5", "AntMaze_UMaze-v5", "CarRacing-v3", "mo-lunar-lander-v3", "merge-v0"]
    for sample in samples:
        assert sum(re.match(package.pattern, sample) is not None for package in PACKAGES) == 1, sample


def test_the_error_carries_it(monkeypatch):
    monkeypatch.setattr(known_packages, "_installed", lambda module: False)
    with pytest.raises(UserError, match=r"pip install panda-gym and write env_id panda_gym:PandaPush-v3"):
        make_env(TrainConfig(algo="ppo", env_id="PandaPush-v3"), 0)()
    with pytest.raises(UserError, match=r"module 'panda_gym' is not installed.*pip install panda-gym"):
        make_env(TrainConfig(algo="ppo", env_id="panda_gym:PandaPush-v3"), 0)()


@pytest.mark.parametrize("inside", [False, True])
def test_an_id_of_old_gym_is_named_as_such(inside, monkeypatch):
    """Newer versions keep the ids in a mapping, older ones in an object around it."""
    known = {"Ancient-v0": object()}
    registry = SimpleNamespace(env_specs=known) if inside else known
    monkeypatch.setitem(sys.modules, "gym", SimpleNamespace(envs=SimpleNamespace(registry=registry)))
    with pytest.raises(
        UserError, match=r"of old gym, not of Gymnasium.*GymV21CompatibilityV0.*--env-factory"
    ):
        make_env(TrainConfig(algo="ppo", env_id="Ancient-v0"), 0)()


def test_crafter_is_of_old_gym_even_if_it_is_not_there():
    assert "old gym" in package_hint("CrafterReward-v1")
