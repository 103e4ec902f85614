"""The environments of `make world`: Gymnasium's own, those that Stable-Baselines3 tests with, and other packages'."""

import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from world_cell import Place

FOLDERS = Path(sys.prefix) / "mujoco"
"""Where other versions of MuJoCo are installed beside the one of the venv, each in a folder of its name."""
GRIDS = "rl_training.envs.tasks:rl_training/"


def all_places() -> list[Place]:
    """Return every environment that is tried."""
    own = gymnasiums_own()
    return [
        *(place for place in own if place.suite == "gymnasium"),
        *spaces_that_are_refused(),
        *stable_baselines3(),
        *small_pictures(),
        *named("highway-env", "highway_env", HIGHWAY, kwargs=COARSE),
        *named("popgym", "popgym", (f"popgym-{name}-v0" for name in POPGYM)),
        *mo_gymnasium(),
        *named("gymnasium-robotics", "gymnasium_robotics", ROBOTICS),
        *named("dm_control", "shimmy", DM_CONTROL),
        *several_agents(),
        *atari(),
        *(place for place in own if place.suite != "gymnasium"),  # slow: every instance is compiled again
    ]


HIGHWAY = ("highway-fast-v0", "intersection-v2", "racetrack-v1", "parking-v0", "intersection-multi-agent-v2")
COARSE = {"config": {"simulation_frequency": 5, "vehicles_count": 4}}
"""A step of highway-env takes many milliseconds otherwise."""
POPGYM = (
    "RepeatPreviousEasy", "AutoencodeEasy", "ConcentrationEasy", "BattleshipEasy",
    "MineSweeperEasy", "HigherLowerEasy", "MultiarmedBanditEasy", "PositionOnlyCartPoleEasy",
    "NoisyPositionOnlyPendulumEasy",
)  # fmt: skip
ROBOTICS = (
    "FetchReach-v4", "HandReach-v3", "FrankaKitchen-v1", "AdroitHandDoor-v1", "FetchPush-v4",
    "HandManipulateBlock_BooleanTouchSensors-v1", "PointMaze_UMaze-v3", "AntMaze_UMaze-v5",
)  # fmt: skip
DM_CONTROL = tuple(
    f"dm_control/{name}-v0" for name in ("cartpole-swingup", "finger-spin", "cheetah-run", "humanoid-stand")
)


def named(suite: str, module: str, ids: Iterable[str], kwargs: dict[str, Any] | None = None) -> list[Place]:
    """Return environments that their package registers when it is imported."""
    return [Place(suite, f"{module}:{env_id}", kwargs or {}, label=env_id) for env_id in ids]


def gymnasiums_own() -> list[Place]:
    """Return the latest version of each id that Gymnasium registers itself; it must not have met other packages yet."""
    latest: dict[tuple[str | None, str], Any] = {}
    for spec in gymnasium.registry.values():
        known = latest.get((spec.namespace, spec.name))
        if known is None or (spec.version or -1) > (known.version or -1):
            latest[spec.namespace, spec.name] = spec
    return [
        Place("gymnasium, in jax" if spec.namespace else "gymnasium", spec.id) for spec in latest.values()
    ]


class Said(gymnasium.Env[Any, Any]):
    """An environment of any spaces, which shows samples of them."""

    def __init__(self, observations: spaces.Space[Any], actions: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observations, actions

    def reset(self, **kwargs: Any) -> Any:
        """Show something."""
        super().reset(**kwargs)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        """Show something else."""
        return self.observation_space.sample(), 0.0, False, False, {}


def spaces_that_are_refused() -> list[Place]:
    """Return one environment for each of Gymnasium's spaces that nothing can be learned from, or acted in."""
    two, box = spaces.Discrete(2), spaces.Box(-1, 1, (2,), np.float32)
    strange: dict[str, spaces.Space[Any]] = {
        "Text": spaces.Text(5),
        "Sequence": spaces.Sequence(spaces.Box(0, 1, (2,), np.float32)),
        "Graph": spaces.Graph(node_space=spaces.Box(0, 1, (2,), np.float32), edge_space=None),
        "OneOf": spaces.OneOf((two, box)),
    }
    seen = [(f"{name} observations", space, two) for name, space in strange.items()]
    inside = [("Dict with a Text", spaces.Dict({"mission": spaces.Text(5), "x": box}), two)]
    containers = {"Tuple": spaces.Tuple((two, box)), "Dict": spaces.Dict({"a": two, "b": box})}
    done = [(f"{name} actions", box, space) for name, space in (strange | containers).items()]
    no_bounds = [("Box actions without bounds", box, spaces.Box(-np.inf, np.inf, (2,), np.float32))]
    return [
        factory("spaces", name, Said, seen, done) for name, seen, done in (*seen, *inside, *done, *no_bounds)
    ]


def factory(suite: str, label: str, build: Callable[..., Any], *arguments: Any, **options: Any) -> Place:
    """Return an environment that a function builds."""

    def built(**kwargs: Any) -> Any:
        return build(*arguments, **options)

    built.__name__ = name = label.replace(" ", "-")
    return Place(suite, name, build=built, label=label)


def imported(module: str, name: str) -> Callable[..., Any]:
    """Return a function that is imported when it is called, which is in the process of a cell."""
    return lambda *arguments, **options: getattr(importlib.import_module(module), name)(*arguments, **options)


def stable_baselines3() -> list[Place]:
    """Return the environments that Stable-Baselines3 is tested with, in their variants."""
    suite, module = "stable-baselines3's own", "stable_baselines3.common.envs"
    identity, flips = imported(module, "IdentityEnv"), imported(module, "BitFlippingEnv")
    pictures, several = imported(module, "FakeImageEnv"), imported(module, "SimpleMultiObsEnv")
    return [
        factory(suite, "IdentityEnv", identity, 4),
        factory(suite, "IdentityEnvBox", imported(module, "IdentityEnvBox"), eps=0.5),
        factory(suite, "IdentityEnvMultiDiscrete", imported(module, "IdentityEnvMultiDiscrete"), 4),
        factory(suite, "IdentityEnvMultiBinary", imported(module, "IdentityEnvMultiBinary"), 4),
        factory(suite, "BitFlippingEnv", flips),
        factory(suite, "BitFlippingEnv, continuous", flips, continuous=True),
        factory(suite, "BitFlippingEnv, Discrete observations", flips, discrete_obs_space=True),
        factory(suite, "BitFlippingEnv, images", flips, image_obs_space=True),
        factory(suite, "SimpleMultiObsEnv", several),
        factory(suite, "SimpleMultiObsEnv, channels first", several, channel_last=False),
        factory(suite, "SimpleMultiObsEnv, continuous", several, discrete_actions=False),
        factory(suite, "FakeImageEnv", pictures, screen_height=40, screen_width=40),
        factory(
            suite, "FakeImageEnv, continuous", pictures, discrete=False, screen_height=40, screen_width=40
        ),
        factory(suite, "FakeImageEnv, channels first", pictures, channel_first=True, n_channels=3),
    ]


def small_pictures() -> list[Place]:
    """Return MiniGrid as it is and by the ids of rl_training, and MinAtar."""
    rooms = ("MiniGrid-Empty-5x5-v0", "MiniGrid-DoorKey-5x5-v0", "MiniGrid-MemoryS7-v0", "BabyAI-GoToObj-v0")
    games = ("breakout", "seaquest", "space_invaders")
    text = "with mission text"
    return [
        Place("minigrid", f"minigrid:{rooms[0]}", label=f"{rooms[0]}, {text}"),
        *(Place("minigrid", f"{GRIDS}MiniGrid-v0", {"game": room}, label=room) for room in rooms),
        *(Place("minatar", f"{GRIDS}MinAtar-v0", {"game": game}, label=game) for game in games),
    ]


def linear(env_id: str, count: int) -> gymnasium.Env[Any, Any]:
    """Return an environment of mo-gymnasium whose rewards are one number."""
    package = importlib.import_module("mo_gymnasium")
    wrapped: gymnasium.Env[Any, Any] = importlib.import_module("mo_gymnasium.wrappers").LinearReward(
        package.make(env_id), weight=np.full(count, 1 / count)
    )
    return wrapped


def mo_gymnasium() -> list[Place]:
    """Return environments with vectors of rewards, as they are and with a weight for each."""
    rewards = {
        "deep-sea-treasure-v0": 2,
        "minecart-v0": 3,
        "four-room-v0": 3,
        "mo-mountaincarcontinuous-v0": 2,
        "mo-halfcheetah-v5": 2,
    }
    plain = named("mo-gymnasium", "mo_gymnasium", ("deep-sea-treasure-v0", "mo-mountaincarcontinuous-v0"))
    return [
        *plain,
        *(
            factory("mo-gymnasium", f"{name}, LinearReward", linear, name, count)
            for name, count in rewards.items()
        ),
    ]


def several_agents() -> list[Place]:
    """Return environments of PettingZoo, by turns and at once, and a robot of several agents."""
    games = {"tictactoe_v3": "env", "connect_four_v3": "env", "rps_v2": "parallel_env"}
    return [
        *(
            factory("pettingzoo", name, imported(f"pettingzoo.classic.{name}", way))
            for name, way in games.items()
        ),
        factory("pettingzoo", "multiwalker_v9", imported("pettingzoo.sisl.multiwalker_v9", "parallel_env")),
        factory(
            "pettingzoo",
            "MaMuJoCo Ant of gymnasium-robotics",
            imported("gymnasium_robotics.envs.multiagent_mujoco.mamujoco_v1", "parallel_env"),
            scenario="Ant",
            agent_conf="2x4",
        ),
    ]


def atari() -> list[Place]:
    """Return games by the console's memory, by raw pictures, and by the usual frames."""
    ram: dict[str, Any] = {"obs_type": "ram"}
    frames: dict[str, Any] = {"preprocessing": "atari"}
    games = ("Pong", "Breakout", "MontezumaRevenge")
    return [
        *(Place("ale-py", f"ALE/{game}-v5", ram, label=f"ALE/{game}-v5, memory") for game in games),
        Place("ale-py", "ALE/Pong-v5", ram | {"continuous": True}, label="ALE/Pong-v5, memory, continuous"),
        Place("ale-py", "ALE/Pong-v5", label="ALE/Pong-v5, raw pictures"),
        Place("ale-py", "ALE/Pong-v5", settings=frames, label="ALE/Pong-v5, preprocessing atari"),
        Place(
            "ale-py", "PongNoFrameskip-v4", settings=frames, label="PongNoFrameskip-v4, preprocessing atari"
        ),
    ]
