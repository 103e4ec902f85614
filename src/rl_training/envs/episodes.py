"""Seeded episodes: each episode is a function of (seed, environment index, episode number) and its actions."""

import copy
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple
from zlib import crc32

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from rl_training.core.errors import EnvironmentFault, reason
from rl_training.core.seeding import ACTION_SPACES, EPISODES, derived_seed, episode_seed
from rl_training.core.types import Array, Info
from rl_training.envs.checks import InvalidResult, ResultCheck
from rl_training.envs.masks import mask_method
from rl_training.envs.observations import nested_leaves
from rl_training.envs.wrapper_statistics import Statistics, WrapperStatistics


class Snapshot(NamedTuple):
    """The state of an environment: enough to restore it by replay, and to detect if the replay differs."""

    episode: int
    actions: Array
    """Actions since the reset [t, ...]."""
    seen: int
    """Hash of all observations since the reset."""
    paid: int
    """Hash of all rewards since the reset."""
    statistics_at_reset: Statistics
    """Running statistics of the wrappers before the reset; replaying the episode updates them again."""
    statistics: Statistics
    """Current running statistics of the wrappers."""


class SeededEpisodes(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Seeds every reset, names environment and step in every error, and restores episodes by replay.

    A reset without a seed starts the next episode of the stream; a reset with a seed starts a new stream. An episode is
    a function of its reset seed, its actions and the running statistics of the wrappers, so `snapshot` contains the
    whole state: after `resume_at` and `new_statistics` are set, the next reset replays the episode. If the environment
    keeps other state across episodes, `build` rebuilds it for every episode, below the existing wrappers.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        seed: int,
        env_index: int,
        stream: int = EPISODES,
        build: Callable[[], gymnasium.Env[Any, Any]] | None = None,
    ) -> None:
        super().__init__(env)
        self.seed, self.env_index, self.stream = seed, env_index, stream
        self.episode = -1
        self.resume_at: tuple[int, Array] | None = None
        self.new_statistics: Statistics | None = None
        """Written to the wrappers by the next reset."""
        self._build = build
        self._used = False
        self._statistics = WrapperStatistics(env)
        self._statistics_at_reset: Statistics = {}
        self._actions: list[Any] = []
        self._rewards: list[Any] = []
        self._seen = 0
        self._check = ResultCheck(env.observation_space)
        self._step = env.step  # looked up once, because it is called at every step
        self._copies_actions = not isinstance(env.action_space, spaces.Discrete)  # scalars are immutable
        self.action_space.seed(derived_seed(seed, ACTION_SPACES, env_index))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start the next episode; with `seed`, the first one of a new stream; or replay `resume_at`."""
        if self.resume_at is not None:
            return self._replay(options)
        if seed is not None:
            self.seed, self.episode = seed, -1
        self.episode += 1
        self._actions.clear()
        self._rewards.clear()
        try:
            if self._build is not None:
                if self._used:
                    self.rebuild()
                self.action_space.seed(derived_seed(self.seed, ACTION_SPACES, self.env_index, self.episode))
            self._used = True
            if self._statistics:
                if self.new_statistics is not None:
                    self._statistics.write(self.new_statistics)
                    self.new_statistics = None
                self._statistics_at_reset = self._statistics.read()
            result = self.env.reset(
                seed=episode_seed(self.seed, self.env_index, self.episode, self.stream), options=options
            )
        except KeyboardInterrupt:
            raise
        except InvalidResult as misfit:
            raise self._misbehaved("reset", str(misfit)) from None
        except BaseException as error:  # also SystemExit, which would end the run silently
            raise self._fault("reset", error) from error
        if (problem := self._check.after_reset(result)) is not None:
            raise self._misbehaved("reset", problem)
        self._seen = trace(result[0])
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step; the last observation of an episode is copied, because the next reset may reuse its memory."""
        self._actions.append(np.array(action) if self._copies_actions else action)
        try:
            result = self._step(action)
        except KeyboardInterrupt:
            raise
        except InvalidResult as misfit:
            raise self._misbehaved("step", str(misfit)) from None
        except BaseException as error:
            raise self._fault("step", error) from error
        if (problem := self._check.after_step(result)) is not None:
            raise self._misbehaved("step", problem)
        if result[2] or result[3]:
            return copy.deepcopy(result[0]), *result[1:]
        self._seen = trace(result[0], self._seen)
        self._rewards.append(result[1])
        return result

    def episode_state(self) -> tuple[int, Array]:
        """Return the episode's number and its actions so far [t, ...]."""
        shape, dtype = self.action_space.shape or (), self.action_space.dtype
        return self.episode, np.asarray(self._actions, dtype=dtype).reshape(len(self._actions), *shape)

    def snapshot(self) -> Snapshot:
        """Return the state of the environment, with hashes to verify a replay."""
        paid = trace_of_rewards(self._rewards)
        statistics = self._statistics_at_reset, self.statistics
        return Snapshot(*self.episode_state(), self._seen, paid, *statistics)

    @property
    def statistics(self) -> Statistics:
        """Current running statistics of the wrappers."""
        return self._statistics.read()

    @statistics.setter
    def statistics(self, statistics: Statistics) -> None:
        self._statistics.write(statistics)

    def freeze_statistics(self) -> None:
        """Stop updating the running statistics, as in an evaluation."""
        self._statistics.freeze()

    def rebuild(self) -> float:
        """Replace the environment below the wrappers with a new one; return the seconds this took."""
        assert self._build is not None
        started = time.perf_counter()
        owner: gymnasium.Wrapper[Any, Any, Any, Any] = self
        while isinstance(owner.env, gymnasium.Wrapper):
            owner = owner.env
        self._close(owner.env)
        owner.env = self._build().unwrapped
        self._step = self.env.step
        return time.perf_counter() - started

    def close(self) -> None:
        """Close the environment; errors are only warnings, because no data can be lost."""
        self._close(self.env)

    def _close(self, env: gymnasium.Env[Any, Any]) -> None:
        try:
            env.close()
        except Exception as error:
            problem = f"raised {type(error).__name__} when it was closed: {reason(error)}"
            warnings.warn(f"{self._name} {problem}", stacklevel=2)

    def reuses_box2d_world(self) -> bool:
        """Reset, and return whether a Box2D world is kept across the reset.

        Such a world depends on the order in which its parts were created and freed. This shows only if a body has
        several contacts, too rarely to be found in a few steps.
        """
        before = _worlds(self.unwrapped)
        self.reset()
        return any(old is new for old in before for new in _worlds(self.unwrapped))

    def is_raw_atari_game(self) -> bool:
        """Return whether this is an Atari game without preprocessing."""
        game = self.unwrapped
        return hasattr(game, "ale") and bool(self.observation_space == game.observation_space)

    def has_time_limit(self) -> bool:
        """Return whether episodes have a time limit, of Gymnasium, a game or the Arcade Learning Environment."""
        registered = self.spec is not None and self.spec.max_episode_steps is not None
        layer: Any = self.env
        while isinstance(layer, gymnasium.Wrapper) and not isinstance(layer, TimeLimit):
            layer = layer.env
        of_game = getattr(self.unwrapped, "has_own_limit", False)
        return registered or of_game or isinstance(layer, TimeLimit) or hasattr(self.unwrapped, "ale")

    def mask_method(self) -> str | None:
        """Return whether the environment has a method for masks: see `envs.masks.mask_method`."""
        return mask_method(self.env)

    def _replay(self, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        assert self.resume_at is not None
        episode, actions = self.resume_at
        self.resume_at = None
        self.episode = episode - 1
        obs, info = self.reset(options=options)
        for action in actions:
            obs, _, terminated, truncated, info = self.step(action)
            if terminated or truncated:  # not deterministic; the caller compares the hashes
                return self.reset(options=options)
        return obs, info

    def _fault(self, method: str, error: BaseException) -> EnvironmentFault:
        said = f"{type(error).__name__} in {method}, {self._moment}: {reason(error)}"
        if isinstance(error, TypeError) and "keyword argument 'seed'" in said:
            return self._misbehaved(
                method, "has a reset without seed; write 'def reset(self, *, seed=None, options=None)'"
            )
        return EnvironmentFault(f"{self._name} raised {said}")

    def _misbehaved(self, method: str, problem: str) -> EnvironmentFault:
        return EnvironmentFault(f"{self._name} {problem} ({method}, {self._moment})")

    @property
    def _name(self) -> str:
        game = self.env.unwrapped
        name = self.env.spec.id if self.env.spec is not None else getattr(game, "called", type(game).__name__)
        return f"environment {self.env_index} ({name})"

    @property
    def _moment(self) -> str:
        return f"step {len(self._actions)} of its episode {self.episode}"


def _worlds(env: gymnasium.Env[Any, Any]) -> list[Any]:
    return [value for value in vars(env).values() if type(value).__name__ == "b2World"]


def trace(obs: Any, before: int = 0) -> int:
    """Return the hash `before`, continued by one observation; about 0.2 µs for a plain array."""
    try:
        return crc32(obs, before)
    except (TypeError, ValueError, BufferError):  # a scalar, a nested observation, memory with gaps
        for _, leaf in nested_leaves(obs):
            before = crc32(np.asarray(leaf).tobytes(), before)
        return before


def trace_of_rewards(rewards: list[Any]) -> int:
    """Return the hash of an episode's rewards so far."""
    return crc32(np.array([float(reward) for reward in rewards], np.float64).tobytes())
