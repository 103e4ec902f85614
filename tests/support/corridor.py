"""An environment whose observations say where they are from, so that a wrong one is found out."""

from typing import Any

import gymnasium
import numpy as np


class Corridor(gymnasium.Env[Any, Any]):
    """Observation: (episode number, step); reward: the step; the episode is cut or ends after `length` steps."""

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 3, truncates: bool = True) -> None:
        self.length, self.truncates = length, truncates
        self.episode = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += 1
        self.position = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.position += 1
        over = self.position >= self.length
        terminated, truncated = over and not self.truncates, over and self.truncates
        return self._observe(), float(self.position), terminated, truncated, {}

    def _observe(self) -> Any:
        return np.array([self.episode, self.position], np.float32)
