"""Standard Atari preprocessing for a single environment."""

import importlib
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.types import Array, Info
from rl_training.envs.info_keys import CUT
from rl_training.envs.preprocessing.images import FrameStack, channels_first, opencv

FRAMES_PER_SECOND = 60
COUNTERS = ("lives", "episode_frame_number", "frame_number")
"""Entries of ALE's info that nobody reads; removed, because collecting them takes time."""


class AtariPreprocessing(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Preprocesses an ALE environment that steps single frames; observations are [K * C, H, W].

    An action is repeated for `frame_skip` frames. The observation is the pixelwise maximum of the last two frames, also
    if the game ends within a skip. Rewards are not changed: for training `envs/stepper.py` takes
    their sign, if `clip_reward` is set.

    A lost life sets `cut_bootstrap` in `info` and resets nothing. With `fire_reset` the next step presses FIRE,
    whatever the policy chose: many games wait for it, and a greedy policy that has not learned it would wait forever.
    This FIRE is never sticky: losing one frame of it leaves Breakout without a ball.

    Exact resume requires that an episode is a function of its reset seed and actions, so ALE's own randomness is not
    used. Sticky actions are implemented here, by the same rule, with the generator of the reset seed. A seeded reset
    of ALE reloads the game, which takes 120 ms. A reset without a seed takes 7 ms, but is exact for only 83 of the
    104 games of ale-py 0.12. So the state and the screen of a new game are stored, and each reset restores them,
    which takes 0.1 ms more and works for all 104 games.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], config: TrainConfig) -> None:
        super().__init__(env)
        game: Any = env.unwrapped
        _refuse_other_envs(env, config)
        frames = config.frames
        assert frames.image_size is not None
        self.cv2 = opencv("atari", "atari")
        self.grayscale, self.size = frames.grayscale, frames.image_size
        self.skip, self.noop_max = config.frame_skip, config.noop_max
        self.pools = config.max_pool and config.frame_skip > 1
        self.cuts_at_life_loss = config.terminal_on_life_loss
        meanings = game.get_action_meanings()
        self.noop: int = meanings.index("NOOP")
        self.fire: int | None = meanings.index("FIRE") if config.fire_reset and "FIRE" in meanings else None
        shape = (frames.stack * (1 if frames.grayscale else 3), frames.image_size, frames.image_size)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.metadata = {**env.metadata, "render_fps": FRAMES_PER_SECOND / config.frame_skip}
        self._stack = FrameStack(frames.stack)
        self._ale: Any = None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start a game: restore the initial state, random no-ops, FIRE if configured."""
        game: Any = self.env.unwrapped
        if game.ale is not self._ale:
            self._keep_fresh_game(game)
        if seed is not None:
            # not reset(seed), which reloads the game; wrappers below use this generator too
            game.np_random, _ = seeding.np_random(seed)
        self._rng = game.np_random
        info = self._restart(options)
        for action in self._opening():
            _, _, terminated, truncated, info = self._advance(action, sticky=False)
            self._read_screen()
            if terminated or truncated:
                info = self._restart(options)
        self._lives = self._ale.lives()
        self._fire_is_due = False
        return self._stack.restart(self._frame(self._screens[0])), _without_counters(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Repeat an action for `frame_skip` frames, fewer if the game ends."""
        fires, score = self._fire_is_due, 0.0
        played = self.fire if fires else action
        for _ in range(self.skip):
            _, reward, terminated, truncated, info = self._advance(played, sticky=not fires)
            score += float(reward)
            if self.pools:
                self._read_screen()
            if terminated or truncated:
                break
        info = _without_counters(info)
        lives = self._ale.lives()
        lost = lives < self._lives and not terminated
        self._lives, self._fire_is_due = lives, lost and self.fire is not None
        if lost and self.cuts_at_life_loss:
            info[CUT] = True
        if self.pools:
            screen = np.maximum(*self._screens)
        else:
            self._read_screen()
            screen = self._screens[0]
        return self._stack.push(self._frame(screen)), score, terminated, truncated, info

    def _keep_fresh_game(self, game: Any) -> None:
        """Switch off ALE's randomness, and store the initial state of the game."""
        self._ale = game.ale
        self._stickiness = float(self._ale.getFloat("repeat_action_probability"))
        if self._stickiness > 0.0:
            self._ale.setFloat("repeat_action_probability", 0.0)
            # takes effect when a game is loaded
            game.load_game()
        game.reset()
        height, width = self._ale.getScreenDims()
        shape = (height, width) if self.grayscale else (height, width, 3)
        # newest first; swapped instead of copied
        self._screens = [np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)]
        self._read_screen()
        self._first_screen = self._screens[0].copy()
        self._fresh_game = self._ale.cloneSystemState()

    def _restart(self, options: dict[str, Any] | None) -> dict[str, Any]:
        _, info = self.env.reset(options=options)
        self._ale.restoreSystemState(self._fresh_game)
        self._screens[0][...] = self._first_screen
        self._last_action = self.noop
        return info

    def _opening(self) -> Iterator[int]:
        """Yield the actions of the first frames: no-ops and FIRE."""
        if self.noop_max > 0:
            yield from [self.noop] * int(self._rng.integers(1, self.noop_max + 1))
        if self.fire is not None:
            yield self.fire

    def _advance(self, action: Any, *, sticky: bool) -> Any:
        """Play one frame; with `sticky`, the previous action is repeated with the configured probability."""
        if sticky and self._stickiness > 0.0 and self._rng.random() < self._stickiness:
            action = self._last_action
        self._last_action = action
        return self.env.step(action)

    def _read_screen(self) -> None:
        """Overwrite the older of the two frames with the newest one."""
        self._screens.reverse()
        if self.grayscale:
            self._ale.getScreenGrayscale(self._screens[0])
        else:
            self._ale.getScreenRGB(self._screens[0])

    def _frame(self, screen: Array) -> Array:
        """Return a resized screen [C, H, W]."""
        small: Array = self.cv2.resize(screen, (self.size, self.size), interpolation=self.cv2.INTER_AREA)
        return channels_first(small, None if self.grayscale else 2)


def single_frames(env_id: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments to build a registered Atari game with single frames and without its own rendering.

    The arguments of other environments are not changed; `AtariPreprocessing` refuses those.
    """
    entry = gymnasium.registry.get(env_id.rpartition(":")[2])
    if entry is None or not str(entry.entry_point).startswith("ale_py"):
        return kwargs
    if kwargs.get("frameskip", 1) != 1:
        raise UserError(
            f"env_kwargs has frameskip {kwargs['frameskip']}, but preprocessing 'atari' skips frames itself; leave it "
            "out and set frame_skip"
        )
    return {"obs_type": "ram", "disable_env_checker": True, **kwargs, "frameskip": 1}


def offer_games(env_id: str) -> None:
    """Import ale-py, which registers its games, if Gymnasium does not know an id."""
    name = env_id.rpartition(":")[2]
    if name in gymnasium.registry:
        return
    try:
        ale: Any = importlib.import_module("ale_py")
    except ImportError as error:
        if name.startswith("ALE/") or name.endswith("NoFrameskip-v4"):
            raise UserError(
                f"env_id '{env_id}' is an Atari game, which needs ale-py; pip install 'rl-training[atari]'"
            ) from error
        return
    # otherwise ALE prints its version
    ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)


def raw_game_hint(config: TrainConfig, env: VectorEnv[Any, Any, Any]) -> str | None:
    """Return a hint for an Atari game without preprocessing."""
    if config.preprocessing != "none":
        return None
    if isinstance(env, SyncVectorEnv | AsyncVectorEnv):
        found = any(env.call("is_raw_atari_game"))
    else:
        found = hasattr(env.unwrapped, "ale")
    if not found:
        return None
    return (
        f"environment '{config.env_id}' is an Atari game without preprocessing; --preprocessing atari adds the usual "
        "one: small grayscale frames, a stack of four, and clipped rewards"
    )


def _refuse_other_envs(env: gymnasium.Env[Any, Any], config: TrainConfig) -> None:
    """Raise for other environments, games that skip frames themselves, and continuous actions."""
    game: Any = env.unwrapped
    if not hasattr(game, "ale"):
        raise UserError(
            f"preprocessing is 'atari', but environment '{config.env_id}' ({type(game).__name__}) is not an Atari "
            "game; use preprocessing image, or none"
        )
    if game._frameskip != 1:
        raise UserError(
            f"environment '{config.env_id}' skips frames (frameskip {game._frameskip}), but preprocessing 'atari' does "
            "so itself; build it with frameskip=1 and set frame_skip"
        )
    if not isinstance(env.action_space, spaces.Discrete):
        raise UserError(
            f"environment '{config.env_id}' has continuous actions, but preprocessing 'atari' needs discrete ones; "
            "build it with continuous=False"
        )
    if env is not game and (frames := _frames_per_step(env)) != 1:
        raise UserError(
            f"environment '{config.env_id}' has a wrapper that plays {frames} frames per step, but preprocessing "
            "'atari' skips frames itself; leave that wrapper out, or use preprocessing none"
        )


def _frames_per_step(env: gymnasium.Env[Any, Any]) -> int:
    """Return the frames that a wrapped game plays per step, found by trying; 1 for Gymnasium's own wrappers."""
    layer = env
    while isinstance(layer, OrderEnforcing | PassiveEnvChecker | TimeLimit):
        layer = layer.env
    if not isinstance(layer, gymnasium.Wrapper):
        return 1
    ale: Any = env.unwrapped.ale  # type: ignore[attr-defined]  # checked before
    fresh = ale.cloneSystemState()
    env.reset()
    before = ale.getEpisodeFrameNumber()
    env.step(0)
    frames = int(ale.getEpisodeFrameNumber() - before)
    ale.restoreSystemState(fresh)
    return frames


def _without_counters(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key not in COUNTERS}
