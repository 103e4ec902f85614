"""One environment whose episodes are functions of (seed, env index, episode number) alone."""

import copy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_training.core.errors import EnvironmentFault
from rl_training.core.seeding import ACTION_SPACES, EPISODES, derived_seed, episode_seed
from rl_training.core.types import Array


class SeededEpisodes(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives every reset its own derived seed, every fault its address, and every moment a way back.

    A reset without a seed starts the next episode of the stream; a reset with one starts a new stream. An episode is
    a function of its reset seed and its actions, so (episode number, actions so far) is the environment's whole state,
    wrappers and all: `episode_state` tells it, and after `resume_at` is set the next reset replays it.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], *, seed: int, env_index: int, stream: int = EPISODES
    ) -> None:
        super().__init__(env)
        self.env_index = env_index
        self.seed = seed
        self.stream = stream
        self.episode = -1
        self.resume_at: tuple[int, Array] | None = None
        self._actions: list[Any] = []
        self._step = env.step  # looked up once: this wrapper is called at every step of every environment
        self._copies_actions = not isinstance(
            env.action_space, spaces.Discrete
        )  # scalars cannot change later
        self.action_space.seed(derived_seed(seed, ACTION_SPACES, env_index))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start the next episode of the stream, with `seed` the first one of a new stream, or replay `resume_at`."""
        if self.resume_at is not None:
            return self._replay(options)
        if seed is not None:
            self.seed, self.episode = seed, -1
        self.episode += 1
        self._actions.clear()
        try:
            return self.env.reset(
                seed=episode_seed(self.seed, self.env_index, self.episode, self.stream), options=options
            )
        except Exception as error:
            raise self._fault("reset", error) from error

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step; the last observation of an episode is copied, as the reset that follows may reuse its memory."""
        self._actions.append(np.array(action) if self._copies_actions else action)
        try:
            result = self._step(action)
        except Exception as error:
            raise self._fault("step", error) from error
        if result[2] or result[3]:
            return copy.deepcopy(result[0]), *result[1:]
        return result

    def episode_state(self) -> tuple[int, Array]:
        """Return the episode's number and its actions so far [t, ...]."""
        shape, dtype = self.action_space.shape or (), self.action_space.dtype
        return self.episode, np.asarray(self._actions, dtype=dtype).reshape(len(self._actions), *shape)

    def _replay(self, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        assert self.resume_at is not None
        episode, actions = self.resume_at
        self.resume_at = None
        self.episode = episode - 1
        obs, info = self.reset(options=options)
        for action in actions:
            obs, _, terminated, truncated, info = self.step(action)
            if (
                terminated or truncated
            ):  # it did not end here the first time: not deterministic, the caller will see
                return self.reset(options=options)
        return obs, info

    def _fault(self, method: str, error: Exception) -> EnvironmentFault:
        name = self.env.spec.id if self.env.spec is not None else type(self.env.unwrapped).__name__
        return EnvironmentFault(
            f"environment {self.env_index} ({name}) raised {type(error).__name__} in {method}, "
            f"step {len(self._actions)} of its episode {self.episode}: {error}"
        )
