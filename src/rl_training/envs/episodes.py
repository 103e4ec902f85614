"""One environment whose episodes are functions of (seed, env index, episode number) alone."""

import copy
from typing import Any

import gymnasium

from rl_training.core.errors import EnvironmentFault
from rl_training.core.seeding import ACTION_SPACES, EPISODES, derived_seed, episode_seed


class SeededEpisodes(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives every reset its own derived seed and every fault its address.

    A reset without a seed starts the next episode of the stream; a reset with one starts a new stream.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], *, seed: int, env_index: int, stream: int = EPISODES
    ) -> None:
        super().__init__(env)
        self.env_index = env_index
        self.seed = seed
        self.stream = stream
        self.episode = -1
        self.episode_step = 0
        self.action_space.seed(derived_seed(seed, ACTION_SPACES, env_index))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start the next episode of the stream, or with `seed` the first one of a new stream."""
        if seed is not None:
            self.seed, self.episode = seed, -1
        self.episode += 1
        self.episode_step = 0
        try:
            return self.env.reset(
                seed=episode_seed(self.seed, self.env_index, self.episode, self.stream), options=options
            )
        except Exception as error:
            raise self._fault("reset", error) from error

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step; the last observation of an episode is copied, as the reset that follows may reuse its memory."""
        self.episode_step += 1
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
        except Exception as error:
            raise self._fault("step", error) from error
        if terminated or truncated:
            obs = copy.deepcopy(obs)
        return obs, reward, terminated, truncated, info

    def _fault(self, method: str, error: Exception) -> EnvironmentFault:
        name = self.env.spec.id if self.env.spec is not None else type(self.env.unwrapped).__name__
        return EnvironmentFault(
            f"environment {self.env_index} ({name}) raised {type(error).__name__} in {method}, "
            f"step {self.episode_step} of its episode {self.episode}: {error}"
        )
