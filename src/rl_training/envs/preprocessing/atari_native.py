"""Atari preprocessing with ale-py's vector environment, which runs all games in threads with one call."""

import importlib
from typing import Any

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


class NativeAtari(VectorEnv[Array, Array, Array]):
    """N games with the preprocessing of `AtariPreprocessing`; observations are [N, K * C, H, W], oldest frame first.

    ale-py skips, pools and resizes frames. The rest is implemented here, because ale-py does it differently: it fills a
    stack with zeros after a reset, and here the first frame is repeated. It ends episodes at lost lives or does not
    report them, and here a lost life sets `cut_bootstrap` and the next step presses FIRE. At a time limit it mixes the
    frame with an old one, so the limit is implemented here.

    Remaining differences to `AtariPreprocessing`:

    - At the end of a game the last observation is repeated as the final one. Training does not use it. After a time
      limit, where it does, the final observation is correct.
    - The step that reaches the time limit plays all its frames.
    - A game starts with 0 to `noop_max - 1` no-ops, one less if FIRE follows.
    - With sticky actions, the FIRE at the start of a game may be lost, and one in four games of Breakout would have no
      ball. So the first step presses it again, whatever the policy chose.
    - Randomness is ALE's own, and the state of a game cannot be set, so a run cannot be resumed within a game.

    Autoreset is same-step. The observations returned are overwritten by the next step.
    """

    def __init__(self, config: TrainConfig, spec: EnvSpec, num_envs: int) -> None:
        kwargs = _checked(config, spec)
        frames = config.frames
        assert frames.image_size is not None
        self._games: Any = None
        self.spec, self.num_envs = spec, num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self._cuts_at_life_loss = config.terminal_on_life_loss
        self._frame_limit = kwargs.get("max_num_frames_per_episode") or NO_LIMIT
        self._step_limit = config.max_episode_steps or NO_LIMIT
        self._steps = np.zeros(num_envs, np.int64)
        self._games = importlib.import_module("ale_py.vector_env").AtariVectorEnv(
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
        meanings = [action.name for action in self._games.ale.get_action_set()]
        self._presses_fire = config.fire_reset and "FIRE" in meanings
        self._fire = meanings.index("FIRE") if self._presses_fire else 0
        self._fires_twice = self._presses_fire and kwargs["repeat_action_probability"] > 0
        self._channels = 1 if frames.grayscale else 3
        shape = (frames.stack * self._channels, frames.image_size, frames.image_size)
        self.single_observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.single_action_space = self._games.single_action_space
        self.action_space = self._games.action_space
        self._stacks = np.zeros((num_envs, *shape), np.uint8)
        self._lives = np.zeros(num_envs, np.int32)
        self._fire_is_due = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start new games; with a seed, all following games are a function of it and the actions."""
        super().reset(seed=seed)
        seeds = None
        if seed is not None:
            # ALE's seeds have 31 bits
            seeds = np.array([derived_seed(seed, EPISODES, i) >> 1 for i in range(self.num_envs)])
        frames, said = self._games.reset(seed=seeds)
        self._begin(np.ones(self.num_envs, np.bool_), frames, said["lives"])
        return self._stacks, {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Play `frame_skip` frames of every game; a finished game restarts at once."""
        if self._fire_is_due.any():
            actions = np.where(self._fire_is_due, self._fire, actions)
        frames, score, terminated, _, said = self._games.step(actions)
        # lives and frames of a finished game belong to the next one already
        lives = said["lives"]
        self._steps += 1
        truncated = (said["episode_frame_number"] >= self._frame_limit) | (
            (self._steps >= self._step_limit) & ~terminated
        )
        ended = terminated | truncated
        lost = (lives < self._lives) & ~terminated
        self._push(frames)
        if terminated.any():
            self._stacks[terminated, -self._channels :] = self._channels_first(said["final_obs"])[terminated]
        self._lives[:] = lives
        self._fire_is_due[:] = lost & self._presses_fire
        info: dict[str, Any] = {}
        if self._cuts_at_life_loss and lost.any():
            info = {CUT: lost & ~ended, "final_info": {CUT: lost & ended}}
        if ended.any():
            info["final_obs"] = self._stacks.copy()
            if truncated.any():
                frames, said = self._games.reset(options={"reset_mask": truncated})
            self._begin(ended, frames, said["lives"])
        return self._stacks, score.astype(np.float64), terminated, truncated, info

    def close_extras(self, **kwargs: Any) -> None:
        self._games = None

    def _begin(self, rows: Array, frames: Array, lives: Array) -> None:
        """Fill the stacks of `rows` [N] with their first frames [N, 1, H, W] or [N, 1, H, W, 3]."""
        first = self._channels_first(frames)[rows]
        self._stacks[rows] = np.tile(first, (1, self._stacks.shape[1] // self._channels, 1, 1))
        self._lives[rows] = lives[rows]
        self._steps[rows] = 0
        self._fire_is_due[rows] = self._fires_twice

    def _push(self, frames: Array) -> None:
        """Add the newest frames to the stacks and drop the oldest."""
        self._stacks[:, : -self._channels] = self._stacks[:, self._channels :]
        self._stacks[:, -self._channels :] = self._channels_first(frames)

    def _channels_first(self, frames: Array) -> Array:
        return frames if self._channels == 1 else np.moveaxis(frames[:, 0], 3, 1)


def _checked(config: TrainConfig, spec: EnvSpec) -> dict[str, Any]:
    """Return the arguments of the game; raise if ale-py's vector environment does not support the config."""
    if not str(spec.vector_entry_point).startswith("ale_py"):
        raise UserError(
            f"preprocessing is 'atari', but environment '{config.env_id}' is not an Atari game; use preprocessing "
            "image, or none"
        )
    if others := sorted(config.env_kwargs.keys() - set(UNDERSTOOD)):
        raise UserError(
            f"env_kwargs has '{others[0]}', which ale-py's vector environment does not support; leave it out, or "
            "use env_backend 'sync' or 'async'"
        )
    return {**spec.kwargs, **single_frames(config.env_id, config.env_kwargs)}
