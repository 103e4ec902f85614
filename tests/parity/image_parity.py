"""A small game of pictures with lives, for the comparisons with the reference scripts that see."""

from typing import Any

import gymnasium
import torch
from gymnasium.wrappers import TimeLimit
from parity_harness import Driven
from torch import nn

from rl_training.config import AlgorithmConfig, TrainConfig
from rl_training.config.preprocessing import Frames
from rl_training.core.types import Array
from rl_training.envs.preprocessing.images import ImagePreprocessing
from rl_training.envs.tasks.catch import COLUMNS, Catch

BALL_STEPS = 9
STACK = 4
SHAPE = (STACK, 36, 36)
NUM_ACTIONS = 3


class LivesCatch(Catch):
    """Ball after ball, and a paddle of three columns. A miss costs one of two lives.

    A catch pays 3 and a miss takes 2, so that learning from signs is another thing. After two balls the clock stops the
    game: of 20 games about 5 are lost, 5 are stopped in the very step that lost a life, and 10 are just stopped.
    """

    lives = 2

    def reset(self, **settings: Any) -> tuple[Array, dict[str, Any]]:
        self.lives = 2
        return super().reset(**settings)

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        obs, _, fallen, _, _ = super().step(action)
        if not fallen:
            return obs, 0.0, False, False, {"life_lost": False, "cut_bootstrap": False}
        caught = abs(self.paddle - self.ball) <= 1
        self.lives -= not caught
        lost = not caught and self.lives > 0
        self.ball, self.row = int(self.np_random.integers(COLUMNS)), 0
        # one flag, by the name that each of the two implementations has for it
        flags = {"life_lost": lost, "cut_bootstrap": lost}
        return self._picture(), 3.0 if caught else -2.0, self.lives == 0, False, flags


def limited() -> gymnasium.Env[Any, Any]:
    return TimeLimit(LivesCatch(), 2 * BALL_STEPS)


def stacked() -> gymnasium.Env[Any, Any]:
    """What a script plays; the package stacks the frames of `limited` itself."""
    return ImagePreprocessing(limited(), Frames(image_size=None, grayscale=False, stack=STACK))


class Seeing(Driven):
    """The package's parts for a script's settings, on the small game, with the network and rewards of Atari."""

    def __init__(self, algo: str, settings: AlgorithmConfig, args: Any) -> None:
        config = TrainConfig(
            algo=algo,
            env_id="lives of Catch",
            seed=args.seed,
            total_timesteps=args.total_timesteps,
            num_envs=getattr(args, "num_envs", 1),
            preprocessing="image",
            frame_stack=STACK,
            algorithm=settings,
        )
        super().__init__(config, factory=limited, clip_reward=True)


def copy_parameters(source: nn.Module, target: nn.Module) -> None:
    """Give `target` the weights of `source`, whose layers have the same order."""
    with torch.no_grad():
        for given, own in zip(source.parameters(), target.parameters(), strict=True):
            own.copy_(given)
