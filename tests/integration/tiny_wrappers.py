"""Wrappers as a user would write them, right and wrong, for the tests of all folders."""

from typing import Any

import gymnasium
import numpy as np


class Scaled(gymnasium.RewardWrapper):
    """Multiplies rewards."""

    def __init__(self, env: Any, by: float = 2.0) -> None:
        super().__init__(env)
        self.by = by

    def reward(self, reward: Any) -> float:
        return float(reward) * self.by


class Added(gymnasium.RewardWrapper):
    """Adds to rewards: with `Scaled` it tells the order."""

    def reward(self, reward: Any) -> float:
        return float(reward) + 1.0


class Fading(gymnasium.ObservationWrapper):
    """Shows a running mean of the episode's observations: state within an episode, forgotten at its reset."""

    def reset(self, **kwargs: Any) -> Any:
        self.mean: Any = 0.0
        return super().reset(**kwargs)

    def observation(self, observation: Any) -> Any:
        self.mean = 0.5 * self.mean + 0.5 * observation
        return np.asarray(self.mean, np.float32)


class Goal(gymnasium.Wrapper):
    """Says at the end of an episode whether its return was high enough."""

    def __init__(self, env: Any, reward: float = 5.0) -> None:
        super().__init__(env)
        self.wanted = reward

    def reset(self, **kwargs: Any) -> Any:
        self.total = 0.0
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        self.total += float(reward)
        if terminated or truncated:
            info = {**info, "is_success": self.total >= self.wanted}
        return obs, reward, terminated, truncated, info


class NoWrapper:
    """Takes an environment, and is none."""

    def __init__(self, env: Any) -> None:
        self.env = env


def function(env: Any) -> Any:
    return env


class Raises(gymnasium.Wrapper):
    def __init__(self, env: Any) -> None:
        raise RuntimeError("not today")


class Aging(gymnasium.RewardWrapper):
    """Pays less with every episode: state that no reset and no rebuilding clears."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.episodes = 0

    def reset(self, **kwargs: Any) -> Any:
        self.episodes += 1
        return super().reset(**kwargs)

    def reward(self, reward: Any) -> float:
        return float(reward) / self.episodes
