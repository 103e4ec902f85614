"""What makes an environment slow or hard to learn from: remarks with remedies, found by playing random steps.

`check_env` and the start of a run make the same remarks.

Bounds of spaces are not used: many are infinite although the observations are small, as in CartPole.
"""

import contextlib
import math
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from gymnasium.vector import SyncVectorEnv

from rl_training.config import TrainConfig
from rl_training.core.cpu import usable_cores
from rl_training.core.games import Game
from rl_training.core.one_thread import one_thread
from rl_training.core.seeding import callers_generators_kept
from rl_training.core.spaces.images import channel_axis, height_and_width, is_image
from rl_training.core.spaces.layout import observation_leaves
from rl_training.envs.determinism import random_action
from rl_training.envs.factory import EnvFactory, make_vector_env
from rl_training.envs.games.building import game_of
from rl_training.envs.games.joint_env import leaf_entry, payments
from rl_training.envs.observations import nested_leaves
from rl_training.envs.workers import WorkerVectorEnv
from rl_training.models.cnn import AutoCNN

MAX_STEPS, MAX_SECONDS = 200, 0.5
"""How long random actions are played at the start of a run."""
LARGE = 100.0
"""Observations and rewards beyond this are remarked."""
LARGE_IMAGE, USUAL_SIDE = 100 * 100, 84
"""Pixels above which an image is large, and the side of an image that is not."""
MAX_MEASURED = 512 * 512 * 3
"""Numbers of an image above which no network is timed: it would take gigabytes."""
SLOW_STEP = 5e-3
"""Seconds per step above which an environment is slow."""
BATCH, FEATURES = 4, 256
"""Size of the network and of the batch with which images are timed."""


class Observed:
    """The largest numbers and the usual time of some steps in an environment."""

    def __init__(self, space: Space[Any], channels: Any = "auto", *, atari: bool = False) -> None:
        """`atari` games without preprocessing have a remark of their own, so their images get none."""
        self.game = game_of(space)
        leaves = dict(observation_leaves(space)) if self.game is None else _leaves_of_teams(self.game)
        self.images = {
            key: height_and_width(leaf.shape, channels)
            for key, leaf in leaves.items()
            if isinstance(leaf, spaces.Box) and is_image(leaf, channels) and not atari
        }
        self.channels = {key: _num_channels(leaves[key], channels) for key in self.images}
        plain = (
            key
            for key, leaf in leaves.items()
            if isinstance(leaf, spaces.Box) and not is_image(leaf, channels)
        )
        self.observations = dict.fromkeys(plain, 0.0)
        self.reward = 0.0
        self.seconds: list[float] = []

    def add(self, obs: Any, reward: float, seconds: float) -> None:
        """Record one step."""
        for key, leaf in nested_leaves(obs):
            if key in self.observations and np.size(leaf):
                self.observations[key] = max(self.observations[key], float(np.abs(leaf).max()))
        self.reward = max(self.reward, abs(reward))
        self.seconds.append(seconds)

    def _name(self, key: str) -> str:
        """Return an entry as the user knows it: where one policy plays a game, without its name."""
        if self.game is None or len(self.game.teams) > 1:
            return key
        return key.removeprefix(self.game.teams[0].name).removeprefix("/")

    def remarks(self, config: TrainConfig) -> list[str]:
        """Return what will hurt a run with these settings, each with its remedy."""
        shown = config.preprocessing == "none" and config.algorithm.encoder == "auto"
        found = [
            _image_remark(self._name(key), *sides, self.channels[key])
            for key, sides in self.images.items()
            if shown and _large(sides)
        ]
        if not config.normalize_obs:
            found += [
                f"{_entry(self._name(key))} reach {value:.3g}, and networks learn better from small numbers: "
                "--normalize-obs scales them"
                for key, value in self.observations.items()
                if value > LARGE
            ]
        clipped = config.preprocessing == "atari" and config.clip_reward
        if self.reward > LARGE and not config.normalize_reward and not clipped:
            found.append(f"rewards reach {self.reward:.3g}: --normalize-reward scales them for learning")
        usual = statistics.median(self.seconds) if self.seconds else 0.0
        cores = usable_cores()
        if usual > SLOW_STEP and config.env_backend == "sync" and cores > 1:
            found.append(
                f"a step takes {usual * 1e3:.0f} ms, so one process makes about {1 / usual:,.0f} steps per second: "
                f"--env-backend async --num-envs {max(cores, config.num_envs)} uses all cores"
            )
        return found


def _leaves_of_teams(game: Game) -> dict[str, Space[Any]]:
    """Return the leaves of what the policies of a game see, by entry of the joint observation."""
    return {
        leaf_entry(team.name, key): leaf
        for team in game.teams
        for key, leaf in observation_leaves(team.observation_space).items()
    }


def environment_remarks(
    config: TrainConfig, factory: EnvFactory | None, max_seconds: float | None = MAX_SECONDS
) -> list[str]:
    """Play some random steps and return the remarks; none if the environment fails, which the run will report."""
    if config.native_backend:
        return []
    try:
        with (
            callers_generators_kept(),
            contextlib.closing(make_vector_env(config, 1, factory=factory)) as env,
        ):
            assert isinstance(env, SyncVectorEnv | WorkerVectorEnv)
            atari = any(env.call("is_raw_atari_game")) and config.preprocessing == "none"
            seen = Observed(env.single_observation_space, config.algorithm.image_channels, atari=atari)
            for step in _random_steps(env, max_seconds, masked=config.use_action_masks == "on"):
                seen.add(*step)
            return seen.remarks(config)
    except Exception:  # training will raise the same error
        return []


def _random_steps(
    env: SyncVectorEnv | WorkerVectorEnv, max_seconds: float | None, *, masked: bool
) -> Iterator[tuple[Any, float, float]]:
    """Yield observation, reward and seconds of steps with random actions."""
    env.action_space.seed(0)
    env.single_action_space.seed(0)
    last = math.inf if max_seconds is None else time.monotonic() + max_seconds
    game = game_of(env.single_observation_space)
    obs, info = env.reset()
    for _ in range(MAX_STEPS):
        action = random_action(env, obs, info, masked=masked)
        before = time.perf_counter()
        obs, reward, _, _, info = env.step(action)
        seconds = time.perf_counter() - before
        yield obs, float(reward[0]) if game is None else _largest_payment(obs, info), seconds
        if time.monotonic() > last:
            return


def _largest_payment(obs: Any, info: Any) -> float:
    """Return what the agent was paid that got or lost most in a step of a game; of its last step if it is over."""
    if "final_obs" not in info:
        return float(np.abs(payments(obs)).max())
    final = info["final_obs"]
    return float(np.abs(payments(final if isinstance(final, dict) else final[0])).max())


def _large(sides: tuple[int, int]) -> bool:
    return sides[0] * sides[1] > LARGE_IMAGE


def _image_remark(key: str, height: int, width: int, channels: int) -> str:
    what = f"images of {height}x{width}" + (f" (entry '{key}')" if key else "")
    remedy = f"--preprocessing image --image-size {USUAL_SIDE} --grayscale shrinks them"
    if height * width * channels > MAX_MEASURED:
        return f"{what} are large: {remedy}"
    here, small = images_per_second(channels, height, width), images_per_second(1, USUAL_SIDE, USUAL_SIDE)
    return (
        f"{what} are large: a network learns from about {here:,.0f} of them per second here, and from about "
        f"{small:,.0f} gray ones of {USUAL_SIDE}x{USUAL_SIDE}: {remedy}"
    )


def images_per_second(channels: int, height: int, width: int) -> float:
    """Return how many images the usual network reads and learns from in a second with one thread, measured now."""
    with callers_generators_kept(), one_thread():
        network = AutoCNN(spaces.Box(0, 255, (channels, height, width), np.uint8), FEATURES)
        images = torch.zeros(BATCH, channels, height, width)
        times = []
        for _ in range(2):  # the first call is slower
            before = time.perf_counter()
            network(images).sum().backward()
            times.append(time.perf_counter() - before)
    return BATCH / min(times)


def _num_channels(space: Space[Any], channels: Any) -> int:
    axis = channel_axis(space.shape or (), channels)
    return 1 if axis is None else int((space.shape or ())[axis])


def _entry(key: str) -> str:
    return f"observations (entry '{key}')" if key else "observations"
