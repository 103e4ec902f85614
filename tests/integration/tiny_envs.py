"""Environments small enough to reason about; importing this module registers them, as users' modules do."""

import copy
import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Clockwork(gymnasium.Env):
    """Episodes of `length` steps that are the same for every seed; reward 1 for following the parity of the clock.

    What a resumed run sees after a reset is exactly what the uninterrupted one saw, if the checkpoint falls
    on an episode's end.
    """

    def __init__(self, length: int = 8, ending: str = "truncated") -> None:
        self.length, self.ending, self.time = length, ending, 0
        self.observation_space = spaces.Box(-10.0, 10.0, (3,), np.float32)
        self.action_space = spaces.Discrete(2)

    def _obs(self) -> np.ndarray:
        phase = self.time / self.length
        return np.array([3.0 * phase - 1.0, np.cos(5.0 * phase), self.time % 2], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        reward = 1.0 if int(action) == self.time % 2 else 0.0
        self.time += 1
        ended = self.time >= self.length
        return (
            self._obs(),
            reward,
            ended and self.ending == "terminated",
            ended and self.ending != "terminated",
            {},
        )


class Lottery(Clockwork):
    """The clock started at a random phase: the seed of an episode shows in every observation and in its length."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.time = int(self.np_random.integers(self.length))
        self.shift = self.np_random.normal(size=3).astype(np.float32)
        return self._obs(), {}

    def _obs(self) -> np.ndarray:
        return super()._obs() + getattr(self, "shift", np.zeros(3, np.float32))


class Counting(Lottery):
    """Reports a tenth of the steps of the episode so far, and a one for every step."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.steps = 0
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        self.steps += 1
        return *super().step(action)[:4], {"tenths": self.steps / 10, "ones": 1}


class Still(Clockwork):
    """Always the same observation, and a long episode: a reset in the middle of it changes nothing to be seen."""

    def __init__(self) -> None:
        super().__init__(length=300)

    def _obs(self) -> np.ndarray:
        return np.ones(3, np.float32)

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, float(action), terminated, truncated, info


class Slow(Clockwork):
    """A clock that takes its time."""

    def __init__(self, seconds: float = 0.02) -> None:
        super().__init__()
        self.seconds = seconds

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        return super().step(action)


class Endless(Clockwork):
    """Never ends: as many an environment that is registered without a time limit."""

    def __init__(self) -> None:
        super().__init__(length=10**9)


class AnySpaces(gymnasium.Env):
    """Random observations of any space; refuses an action outside its action space."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, length: int = 5) -> None:
        # copies, as a space has a random state: environments that share one are not functions of their seeds
        self.observation_space, self.action_space = copy.deepcopy((observation_space, action_space))
        self.length, self.time = length, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.time = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        self.time += 1
        reward = float(np.sum(np.asarray(action, np.float64)))
        return self.observation_space.sample(), reward, self.time >= self.length, False, {}


class Privileged(Lottery):
    """The clock of `Lottery` with its true phase as an entry, as a simulator knows more than the sensors."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(
            {
                "clock": self.observation_space,
                "phase": spaces.Discrete(self.length + 1),
                "shift": spaces.Box(-np.inf, np.inf, (3,), np.float32),
            }
        )

    def _obs(self) -> Any:
        shift = getattr(self, "shift", np.zeros(3, np.float32))
        return {"clock": super()._obs(), "phase": self.time, "shift": shift}


class Faulty(Clockwork):
    """Works for `fail_after` steps of its life, then fails in the way `mode` says."""

    def __init__(self, mode: str = "raise", fail_after: int = 20) -> None:
        super().__init__()
        self.mode, self.fail_after, self.life = mode, fail_after, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self.mode == "raise_in_reset" and self.life > self.fail_after:
            raise ZeroDivisionError("the motor is stuck")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.life += 1
        obs, reward, terminated, truncated, info = super().step(action)
        if self.life > self.fail_after:
            if self.mode == "raise":
                raise ZeroDivisionError("the motor is stuck")
            if self.mode == "die":  # as the kernel kills a process that takes too much memory
                os._exit(9)
            if self.mode == "interrupt":
                raise KeyboardInterrupt
            if self.mode == "nan_observation":
                obs = obs * np.nan
            if self.mode == "inf_reward":
                reward = float("inf")
            if self.mode == "huge_reward":  # finite, but not as float32
                reward = 1e39
            if self.mode == "large_rewards":  # each fits float32, two together do not
                reward = 3e38
            if self.mode == "nan_reward":
                reward = float("nan")
        return obs, reward, terminated, truncated, info


class Unsupported(Clockwork):
    """Has a space that no policy takes."""

    def __init__(self, part: str = "action") -> None:
        super().__init__()
        if part == "action":
            self.action_space = spaces.Text(5)
        else:
            self.observation_space = spaces.Dict({"words": spaces.Text(5), "clock": spaces.Discrete(3)})


for _name in (
    "Clockwork",
    "Lottery",
    "Counting",
    "Still",
    "Slow",
    "Endless",
    "Privileged",
    "Faulty",
    "Unsupported",
):
    gymnasium.register(f"{_name}-v0", entry_point=f"tiny_envs:{_name}", disable_env_checker=True)
gymnasium.register(
    "Pole-v0",
    entry_point="gymnasium.envs.classic_control.cartpole:CartPoleEnv",
    vector_entry_point="gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv",
    max_episode_steps=30,
)
