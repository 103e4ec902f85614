"""An environment whose step takes a millisecond of processor time, as a simulation would: `busy_env:Busy-v0`."""

import time
from typing import Any

import gymnasium
import numpy as np


class Busy(gymnasium.Env[np.ndarray, int]):
    """Four random numbers per step, two actions, episodes of 200 steps; every step keeps the core busy."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, milliseconds: float = 1.0) -> None:
        self.seconds = milliseconds / 1000
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._steps = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Compute for a while; count processor time, so that a process that waits for a core is not faster."""
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass
        self._steps += 1
        return self._observation(), float(action), False, self._steps >= 200, {}

    def _observation(self) -> np.ndarray:
        return self.np_random.uniform(-1.0, 1.0, 4).astype(np.float32)


gymnasium.register("Busy-v0", Busy)
