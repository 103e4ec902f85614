"""Atari games of EnvPool."""

from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.types import Array, Info
from rl_training.envs.envpool import Pool
from rl_training.envs.preprocessing.atari_native import (
    NO_LIMIT,
    OF_THE_GAME,
    Played,
    arguments_of_game,
    not_a_game,
)


class EnvPoolGames:
    """Games in EnvPool's threads; their frames are those of `AtariPreprocessing`, to the byte.

    The time limit in frames does not count the no-ops at the start of a game, which EnvPool does not report.
    """

    def __init__(self, config: TrainConfig, spec: EnvSpec, meanings: list[str], num_envs: int) -> None:
        """`meanings` are the names of the game's actions."""
        if "game" not in spec.kwargs:
            raise not_a_game(config)
        arguments = arguments_of_game(config, spec, "env_backend 'envpool'")
        _refuse_unsupported(config)
        frames = config.frames
        self._pool = Pool(
            config,
            "".join(part.capitalize() for part in arguments["game"].split("_")) + "-v5",
            num_envs,
            stack_num=1,
            img_height=frames.image_size,
            img_width=frames.image_size,
            gray_scale=frames.grayscale,
            frame_skip=config.frame_skip,
            noop_max=config.noop_max,
            use_fire_reset=config.fire_reset,
            **{name: arguments[name] for name in OF_THE_GAME if name in arguments},
        )
        theirs: Any = self._pool.action_space
        if theirs.n != len(meanings):
            raise UserError(
                f"EnvPool's environment '{config.env_id}' has {theirs.n} actions, but ale-py's has {len(meanings)}; "
                "use env_backend 'sync' or 'async'"
            )
        self.meanings = meanings
        self.sticky = arguments["repeat_action_probability"] > 0
        self.frame_limit: int = arguments.get("max_num_frames_per_episode") or NO_LIMIT
        self._skip = config.frame_skip
        self._played = np.zeros(num_envs, np.int64)

    def reset(self, seeds: Array | None) -> tuple[Array, Array]:
        frames, info = self._pool.reset(seeds)
        self._played[:] = 0
        return frames, info["lives"]

    def restart(self, rows: Array) -> tuple[Array, Array]:
        first, info = self._pool.restart(rows)
        frames = np.zeros((len(rows), *first.shape[1:]), first.dtype)
        lives = np.zeros(len(rows), info["lives"].dtype)
        self._begin(rows, first, info, frames, lives)
        return frames, lives

    def step(self, actions: Array) -> Played:
        frames, score, terminated, info = self._pool.step(actions)
        lives, final = info["lives"], None
        self._played += self._skip
        if terminated.any():
            final, frames, lives = frames, frames.copy(), lives.copy()
            self._begin(terminated, *self._pool.restart(terminated), frames, lives)
        return Played(frames, score, terminated, final, lives, self._played)

    def close(self) -> None:
        self._pool.close()

    def _begin(self, rows: Array, first: Array, info: Info, frames: Array, lives: Array) -> None:
        """Write the first frames and the lives of new games to `rows` of `frames` and `lives`."""
        frames[rows], lives[rows], self._played[rows] = first, info["lives"], 0


def _refuse_unsupported(config: TrainConfig) -> None:
    """Raise for settings that EnvPool does not have; it ends the process if there are no no-ops."""
    if config.noop_max < 1:
        raise UserError("noop_max is 0, but EnvPool needs 1 or more; use env_backend 'sync' or 'async'")
    if not config.max_pool and config.frame_skip > 1:
        raise UserError(
            "max_pool is false, but EnvPool always takes the maximum of the last two frames; set max_pool, or use "
            "env_backend 'sync' or 'async'"
        )
