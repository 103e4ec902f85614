"""Atari preprocessing of many games that are stepped by one call, such as those of ale-py's vector environment."""

import importlib
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.seeding import EPISODES, derived_seed
from rl_training.core.types import Array, Info
from rl_training.envs.info_keys import CUT
from rl_training.envs.preprocessing.atari import single_frames

OF_THE_GAME = ("repeat_action_probability", "full_action_space")
OF_THE_THREADS = ("num_threads", "thread_affinity_offset")
UNDERSTOOD = (*OF_THE_GAME, *OF_THE_THREADS, "max_num_frames_per_episode", "frameskip")
"""Supported `env_kwargs`; `frameskip` may only be 1."""
NO_LIMIT = 2**31 - 1


@dataclass(frozen=True)
class Played:
    """One step of N games; `frames`, `lives` and `played` of a finished game belong to the next one already."""

    frames: Array
    """The newest frame of each game [N, C, H, W]."""
    score: Array
    terminated: Array
    final_frames: Array | None
    """The last frame of each finished game, in the rows of `terminated`; None if no game has ended."""
    lives: Array
    played: Array
    """Frames of each game since its start."""


class Games(Protocol):
    """N games that skip, pool and resize frames, without stacks, limits and clipped rewards."""

    meanings: list[str]
    """The name of each action."""
    sticky: bool
    """Whether actions are sometimes repeated (sticky actions)."""
    frame_limit: int
    """Frames after which a game is truncated."""

    def reset(self, seeds: Array | None) -> tuple[Array, Array]:
        """Start all games; return their frames [N, C, H, W] and lives [N]. Seeds have 31 bits."""
        ...

    def restart(self, rows: Array) -> tuple[Array, Array]:
        """Start the games in the mask `rows` [N]; return frames and lives of all [N], only `rows` are read."""
        ...

    def step(self, actions: Array) -> Played: ...

    def close(self) -> None: ...


class NativeAtari(VectorEnv[Array, Array, Array]):
    """N games with the preprocessing of `AtariPreprocessing`; observations are [N, K * C, H, W], oldest frame first.

    `Games` skip, pool and resize frames. The rest is implemented here. A stack is filled with the first frame. A lost
    life sets `cut_bootstrap`, and the next step presses FIRE. Limits are counted here, because ale-py mixes the frame
    at a time limit with an old one.

    Remaining differences to `AtariPreprocessing`:

    - The final observation of a finished game may repeat an earlier frame. Training does not use it. After a time
      limit, where it does, the final observation is correct.
    - The step that reaches the time limit plays all its frames.
    - With FIRE at the start, a game starts with 0 to `noop_max - 1` no-ops; ale-py plays one fewer without it, too.
    - With sticky actions, the FIRE at the start of a game may be lost, and one in four games of Breakout would have no
      ball. So the first step presses it again, whatever the policy chose.
    - Randomness is that of the games, and their state cannot be set, so a run cannot be resumed within a game.

    Autoreset is same-step. The observations returned are overwritten by the next step.
    """

    def __init__(self, config: TrainConfig, spec: EnvSpec, num_envs: int, games: Games) -> None:
        frames = config.frames
        assert frames.image_size is not None
        self._games: Games | None = games
        self.spec, self.num_envs = spec, num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self._cuts_at_life_loss = config.terminal_on_life_loss
        self._step_limit = config.max_episode_steps or NO_LIMIT
        self._steps = np.zeros(num_envs, np.int64)
        self._presses_fire = config.fire_reset and "FIRE" in games.meanings
        self._fire = games.meanings.index("FIRE") if self._presses_fire else 0
        self._fires_twice = self._presses_fire and games.sticky
        self._channels = 1 if frames.grayscale else 3
        shape = (frames.stack * self._channels, frames.image_size, frames.image_size)
        self.single_observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.single_action_space = spaces.Discrete(len(games.meanings))
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._stacks = np.zeros((num_envs, *shape), np.uint8)
        self._lives = np.zeros(num_envs, np.int32)
        self._fire_is_due = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start new games; with a seed, all following games are a function of it and the actions."""
        super().reset(seed=seed)
        assert self._games is not None
        frames, lives = self._games.reset(None if seed is None else seeds_of_games(seed, self.num_envs))
        self._begin(np.ones(self.num_envs, np.bool_), frames, lives)
        return self._stacks, {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Play `frame_skip` frames of every game; a finished game restarts at once."""
        assert self._games is not None
        if self._fire_is_due.any():
            actions = np.where(self._fire_is_due, self._fire, actions)
        now = self._games.step(actions)
        frames, terminated, lives = now.frames, now.terminated, now.lives
        self._steps += 1
        truncated = (now.played >= self._games.frame_limit) | (
            (self._steps >= self._step_limit) & ~terminated
        )
        ended = terminated | truncated
        lost = (lives < self._lives) & ~terminated
        self._push(frames)
        if now.final_frames is not None:
            self._stacks[terminated, -self._channels :] = now.final_frames[terminated]
        self._lives[:] = lives
        self._fire_is_due[:] = lost & self._presses_fire
        info: dict[str, Any] = {}
        if self._cuts_at_life_loss and lost.any():
            info = {CUT: lost & ~ended, "final_info": {CUT: lost & ended}}
        if ended.any():
            info["final_obs"] = self._stacks.copy()
            if truncated.any():
                restarted, its_lives = self._games.restart(truncated)
                rows = truncated[:, None, None, None]
                frames, lives = np.where(rows, restarted, frames), np.where(truncated, its_lives, lives)
            self._begin(ended, frames, lives)
        return self._stacks, now.score.astype(np.float64), terminated, truncated, info

    def close_extras(self, **kwargs: Any) -> None:
        if self._games is not None:
            self._games.close()
        self._games = None

    def _begin(self, rows: Array, frames: Array, lives: Array) -> None:
        """Fill the stacks of `rows` [N] with their first frames [N, C, H, W]."""
        self._stacks[rows] = np.tile(frames[rows], (1, self._stacks.shape[1] // self._channels, 1, 1))
        self._lives[rows] = lives[rows]
        self._steps[rows] = 0
        self._fire_is_due[rows] = self._fires_twice

    def _push(self, frames: Array) -> None:
        """Add the newest frames to the stacks and drop the oldest."""
        self._stacks[:, : -self._channels] = self._stacks[:, self._channels :]
        self._stacks[:, -self._channels :] = frames


def seeds_of_games(seed: int, num_envs: int) -> Array:
    """Return a seed of 31 bits for each environment, as ALE and EnvPool need them."""
    return np.array([derived_seed(seed, EPISODES, index) >> 1 for index in range(num_envs)])


class AleGames:
    """Games in the threads of ale-py's vector environment."""

    def __init__(self, config: TrainConfig, spec: EnvSpec, num_envs: int) -> None:
        if not str(spec.vector_entry_point).startswith("ale_py"):
            raise not_a_game(config)
        kwargs = arguments_of_game(config, spec, "ale-py's vector environment")
        frames = config.frames
        self._games: Any = importlib.import_module("ale_py.vector_env").AtariVectorEnv(
            kwargs["game"],
            num_envs,
            img_height=frames.image_size,
            img_width=frames.image_size,
            grayscale=frames.grayscale,
            stack_num=1,
            frameskip=config.frame_skip,
            maxpool=config.max_pool,
            noop_max=config.noop_max,
            use_fire_reset=config.fire_reset,
            reward_clipping=False,
            max_num_frames_per_episode=NO_LIMIT,
            autoreset_mode=AutoresetMode.SAME_STEP,
            **{name: kwargs[name] for name in (*OF_THE_GAME, *OF_THE_THREADS) if name in kwargs},
        )
        self.meanings = [action.name for action in self._games.ale.get_action_set()]
        self.sticky = kwargs["repeat_action_probability"] > 0
        self.frame_limit: int = kwargs.get("max_num_frames_per_episode") or NO_LIMIT
        self._grayscale = frames.grayscale

    def reset(self, seeds: Array | None) -> tuple[Array, Array]:
        frames, said = self._games.reset(seed=seeds)
        return self._channels_first(frames), said["lives"]

    def restart(self, rows: Array) -> tuple[Array, Array]:
        frames, said = self._games.reset(options={"reset_mask": rows})
        return self._channels_first(frames), said["lives"]

    def step(self, actions: Array) -> Played:
        frames, score, terminated, _, said = self._games.step(actions)
        final = self._channels_first(said["final_obs"]) if terminated.any() else None
        lives, played = said["lives"], said["episode_frame_number"]
        return Played(self._channels_first(frames), score, terminated, final, lives, played)

    def close(self) -> None:
        self._games = None

    def _channels_first(self, frames: Array) -> Array:
        return frames if self._grayscale else np.moveaxis(frames[:, 0], 3, 1)


def not_a_game(config: TrainConfig) -> UserError:
    """Return the error for an environment that is not an Atari game."""
    return UserError(
        f"preprocessing is 'atari', but environment '{config.env_id}' is not an Atari game; use preprocessing "
        "image, or none"
    )


def arguments_of_game(config: TrainConfig, spec: EnvSpec, who: str) -> dict[str, Any]:
    """Return the arguments of the game; raise if `env_kwargs` has one that `who` does not support."""
    if others := sorted(config.env_kwargs.keys() - set(UNDERSTOOD)):
        raise UserError(
            f"env_kwargs has '{others[0]}', which {who} does not support; leave it out, or use env_backend 'sync' or "
            "'async'"
        )
    return {**spec.kwargs, **single_frames(config.env_id, config.env_kwargs)}
