"""What all sides of a race to a return share: the games that decide it, and the clock that stands still meanwhile."""

import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np


def mean_return(predict: Callable[[np.ndarray], np.ndarray], num_episodes: int) -> float:
    """Return the mean of CartPole-v1 over episodes that are the same for everybody, all played at once."""
    games = [gymnasium.make("CartPole-v1") for _ in range(num_episodes)]
    obs = np.stack([game.reset(seed=1_000 + i)[0] for i, game in enumerate(games)])
    total, alive = 0.0, np.ones(num_episodes, bool)
    while alive.any():
        actions = predict(obs)
        for i in np.flatnonzero(alive):
            obs[i], reward, terminated, truncated, _ = games[i].step(int(actions[i]))
            total += float(reward)
            alive[i] = not (terminated or truncated)
    return total / num_episodes


class TrainingClock:
    """Counts the seconds of training up to the evaluation that was good enough."""

    def __init__(self, every: int) -> None:
        self.every, self.seconds = every, 0.0
        self.timesteps, self.last_return, self.reached = 0, 0.0, False
        self._asked = 0
        self._since: float | None = None

    def start(self) -> None:
        """Let it run."""
        self._since = time.perf_counter()

    def stop(self) -> None:
        """Let it stand still."""
        assert self._since is not None, "the clock does not run"
        self.seconds += time.perf_counter() - self._since
        self._since = None

    def due(self, timesteps: int) -> bool:
        """Tell whether a multiple of `every` was crossed since the last time."""
        due = timesteps // self.every > self._asked
        self._asked = timesteps // self.every
        return due

    def noted(self, timesteps: int, mean: float, threshold: float) -> bool:
        """Note an evaluation and tell whether it is good enough."""
        self.timesteps, self.last_return, self.reached = timesteps, mean, mean >= threshold
        return self.reached

    def result(self) -> dict[str, Any]:
        """Return the seconds; where the goal was not reached they are those of the whole budget."""
        if self._since is not None:
            self.stop()
        return {
            "seconds": self.seconds,
            "reached": self.reached,
            "timesteps": self.timesteps,
            "last_return": self.last_return,
        }
