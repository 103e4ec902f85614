"""The tasks of `make peers-scale` as data, and a stopwatch: what the runners of both peers share."""

import argparse
import time
from dataclasses import dataclass
from typing import Any

WORKERS = 2


@dataclass(frozen=True)
class Task:
    """PPO on one environment, with two workers."""

    env_id: str
    num_envs: int
    num_steps: int
    batch_size: int
    epochs: int
    learning_rate: float
    gamma: float
    gae_lambda: float
    clip: float
    entropy: float
    images: bool = False

    @property
    def envs_per_worker(self) -> int:
        """Environments of one worker."""
        return self.num_envs // WORKERS

    @property
    def rows(self) -> int:
        """Steps of one rollout of all environments."""
        return self.num_envs * self.num_steps


TASKS = {
    "cartpole": Task("CartPole-v1", 8, 32, 256, 20, 1e-3, 0.98, 0.8, 0.2, 0.0),
    "breakout": Task("BreakoutNoFrameskip-v4", 8, 128, 256, 4, 2.5e-4, 0.99, 0.95, 0.1, 0.01, images=True),
}


class Stopwatch:
    """Steps per second between the first look after the warm-up and the last one; `done` once it is long enough."""

    def __init__(self, warm_up: float, seconds: float) -> None:
        self.warm_up, self.seconds = warm_up, seconds
        self._begun: float | None = None
        self._first: tuple[int, float] | None = None
        self.found: dict[str, float] = {}

    @property
    def done(self) -> bool:
        """Whether there is a result."""
        return bool(self.found)

    def look(self, steps: int) -> None:
        """Note how many steps were learned from so far."""
        now = time.perf_counter()
        if self._begun is None:
            self._begun = now
        if self.done or now - self._begun < self.warm_up:
            return
        if self._first is None:
            self._first = (steps, now)
            return
        made, passed = steps - self._first[0], now - self._first[1]
        if made > 0 and passed >= self.seconds:
            self.found = {"steps_per_second": made / passed, "steps": made, "seconds": passed}


def breakout(*, scaled: bool) -> Any:
    """Return Breakout with the usual preprocessing, from Gymnasium's wrappers: images [84, 84], not yet stacked."""
    from ale_py.env import AtariEnv
    from gymnasium.wrappers import AtariPreprocessing, TransformReward

    game = AtariEnv(game="breakout", frameskip=1, repeat_action_probability=0.0)
    env = AtariPreprocessing(
        game, noop_max=30, frame_skip=4, screen_size=84, terminal_on_life_loss=True, scale_obs=scaled
    )
    return TransformReward(env, lambda reward: (reward > 0) - (reward < 0))


def arguments(description: str | None) -> argparse.Namespace:
    """Read the command line of a runner."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--warm-up", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--threads", type=int, default=1, help="of the process that learns")
    return parser.parse_args()
