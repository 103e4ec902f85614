"""Packages that provide well-known environments: what to install and what to write if an id is not found."""

import importlib
import importlib.util
import re
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Package:
    """A package whose environments have ids that match `pattern`."""

    pattern: str
    module: str
    """The module without which its environments cannot be built."""
    install: str
    """What to give to pip."""
    registers: str | None = None
    """The module whose import registers the ids; None for ids that Gymnasium or rl_training registers."""


PACKAGES = (
    Package(r"ALE/|.*NoFrameskip-v\d", "ale_py", "'rl-training[atari]'"),
    Package(
        r"(HalfCheetah|Ant|Hopper|Humanoid|HumanoidStandup|Inverted(Double)?Pendulum|Pusher|Reacher|Swimmer|Walker2d)-v",
        "mujoco",
        "'rl-training[mujoco]'",
    ),
    Package(
        r"(LunarLander(Continuous)?|BipedalWalker(Hardcore)?|CarRacing)-v", "Box2D", "'rl-training[box2d]'"
    ),
    Package(
        r"Fetch|HandReach|HandManipulate|AdroitHand|FrankaKitchen|PointMaze|AntMaze",
        "gymnasium_robotics",
        "gymnasium-robotics",
        "gymnasium_robotics",
    ),
    Package(r"(MiniGrid|BabyAI)-", "minigrid", "minigrid", "minigrid"),
    Package(r"MiniWorld-", "miniworld", "miniworld", "miniworld"),
    Package(
        r"(highway|merge|roundabout|parking|intersection|racetrack|exit|lane-keeping|two-way|u-turn)(-\w+)*-v\d",
        "highway_env",
        "highway-env",
        "highway_env",
    ),
    Package(r"Panda", "panda_gym", "panda-gym", "panda_gym"),
    Package(r"Meta-World/", "metaworld", "metaworld", "metaworld"),
    Package(r"Vizdoom", "vizdoom", "vizdoom", "vizdoom.gymnasium_wrapper"),
    Package(r"dm_control/", "dm_control", "'shimmy[dm-control]'", "shimmy"),
    Package(r"mo-", "mo_gymnasium", "mo-gymnasium", "mo_gymnasium"),
    Package(r"FlappyBird-", "flappy_bird_gymnasium", "flappy-bird-gymnasium", "flappy_bird_gymnasium"),
)
OLD_GYM = re.compile(r"Crafter|procgen", re.IGNORECASE)
"""Ids of well-known environments that only old gym knows."""
CONVERT = (
    "in a function, convert it with shimmy.GymV21CompatibilityV0(env=...) (pip install 'shimmy[gym-v21]'), and give "
    "the function as --env-factory module:function"
)


def package_hint(env_id: str) -> str | None:
    """Return what to install or to write for the id of a well-known environment that was not found; None if unknown.

    >>> package_hint("Unheard-v0")
    """
    module, _, name = env_id.rpartition(":")
    if is_of_old_gym(name):
        return f"it is an environment of old gym, not of Gymnasium; {CONVERT}"
    package = next((known for known in PACKAGES if re.match(known.pattern, name)), None)
    if package is None:
        return None
    written = name if package.registers is None else f"{package.registers}:{name}"
    if not _installed(package.module):
        then = "" if written == env_id else f" and write env_id {written}"
        return f"it needs a package that is not installed: pip install {package.install}{then}"
    return None if written == env_id or module else f"write env_id {written}"


def is_of_old_gym(name: str) -> bool:
    """Return whether an id is registered in old gym, if that was imported, or known to be."""
    registration = getattr(sys.modules.get("gym"), "envs", None)
    registry: Any = getattr(registration, "registry", {})
    known = getattr(registry, "env_specs", registry)  # before gym 0.26, an object with the mapping inside
    return name in known or OLD_GYM.match(name) is not None


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # its parent is missing, or its import is blocked
        return False
