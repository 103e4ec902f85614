"""Probe environments with known answers: each isolates one fault that training alone would hide.

They are part of the package, so that whoever writes an algorithm can try it on them first.
"""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_training.core.types import Array, Info

ZERO = np.zeros(1, np.float32)
UNIT_BOX = spaces.Box(-1.0, 1.0, (1,), np.float32)
StepResult = tuple[Any, float, bool, bool, dict[str, Any]]


class ProbeEnv(gymnasium.Env[Any, Any]):
    """One observation, no choice; subclasses change one thing each."""

    observation_space: spaces.Space[Any] = UNIT_BOX
    action_space: spaces.Space[Any] = spaces.Discrete(2)
    episode_length: ClassVar[int] = 1

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.step_count = 0
        return self.observe(), {}

    def step(self, action: Any) -> StepResult:
        """Reward the action, then end after `episode_length` steps."""
        reward = self.reward(action)
        self.step_count += 1
        return self.observe(), reward, self.step_count >= self.episode_length, False, {}

    def observe(self) -> Any:
        """Return what the policy sees."""
        return ZERO.copy()

    def reward(self, action: Any) -> float:
        """Return what the action is worth."""
        return 1.0


class OneStepReward(ProbeEnv):
    """Reward 1, then the end. Value 1: bootstrapping past a termination would give more."""


class ConstantRewardTimeLimit(ProbeEnv):
    """Reward 1 for ever, cut only by the clock. Value 1 / (1 - gamma): taking truncation for death gives less."""

    episode_length: ClassVar[int] = 8

    def step(self, action: Any) -> StepResult:
        obs, reward, ended, _, info = super().step(action)
        return obs, reward, False, ended, info


class ConstantRewardTermination(ProbeEnv):
    """Reward 1 for three steps, then death. Value of the first state 1 + gamma + gamma**2."""

    observation_space: spaces.Space[Any] = spaces.Box(0.0, 1.0, (3,), np.float32)
    episode_length: ClassVar[int] = 3

    def observe(self) -> Array:
        """Return which step it is, one-hot; the last observation repeats step 2."""
        features = np.zeros(3, np.float32)
        features[min(self.step_count, 2)] = 1.0
        return features


class TwoStepCredit(ProbeEnv):
    """Two steps, reward 1 on the last only. Value gamma, then 1: wrong discounting or credit gives others."""

    episode_length: ClassVar[int] = 2

    def observe(self) -> Array:
        return np.array([-1.0 if self.step_count == 0 else 1.0], np.float32)

    def reward(self, action: Any) -> float:
        return float(self.step_count == 1)


class TwoArms(ProbeEnv):
    """Arm 1 pays 1, arm 0 pays -1. Policy: always arm 1; value 1."""

    def reward(self, action: Any) -> float:
        return 1.0 if action == 1 else -1.0


class MatchingProbe(ProbeEnv):
    """Pays 1 if the action is `wanted`, which each observation shows, else -1."""

    episode_length: ClassVar[int] = 4
    wanted: int

    def reward(self, action: Any) -> float:
        return 1.0 if int(action) == self.wanted else -1.0


class ObservationDecides(MatchingProbe):
    """The action must match the sign of the observation; misalignment by one step earns 0."""

    def observe(self) -> Array:
        self.wanted = int(self.np_random.integers(2))
        return np.array([1.0 if self.wanted else -1.0], np.float32)


class ContinuousTarget(ProbeEnv):
    """Pays minus the squared distance to 27 in the range [10, 30]: rescaling, clipping or sign faults miss it."""

    action_space: spaces.Space[Any] = spaces.Box(10.0, 30.0, (1,), np.float32)
    target: ClassVar[float] = 27.0

    def reward(self, action: Any) -> float:
        """Pay for being near, in units of a tenth of the range."""
        return -(((float(action[0]) - self.target) / 2.0) ** 2)


class MultiDiscreteTarget(ProbeEnv):
    """Pays a third for each of three components that matches the observed one."""

    observation_space: spaces.Space[Any] = spaces.MultiDiscrete([3, 2, 4])
    action_space: spaces.Space[Any] = spaces.MultiDiscrete([3, 2, 4])
    episode_length: ClassVar[int] = 4

    def observe(self) -> Array:
        self.wanted = self.np_random.integers([3, 2, 4])
        return self.wanted

    def reward(self, action: Any) -> float:
        return float(np.mean(np.asarray(action) == self.wanted))


class MultiBinaryTarget(ProbeEnv):
    """Pays a third for each of three bits that matches the observed one."""

    observation_space: spaces.Space[Any] = spaces.MultiBinary(3)
    action_space: spaces.Space[Any] = spaces.MultiBinary(3)
    episode_length: ClassVar[int] = 4

    def observe(self) -> Array:
        self.wanted = self.np_random.integers(2, size=3).astype(np.int8)
        return self.wanted

    def reward(self, action: Any) -> float:
        return float(np.mean(np.asarray(action) == self.wanted))


class DictTarget(MatchingProbe):
    """The sign to follow is one entry of a Dict, the other entries are noise."""

    observation_space: spaces.Space[Any] = spaces.Dict(
        {"noise": spaces.Box(-1.0, 1.0, (2,), np.float32), "sign": spaces.Discrete(2)}
    )

    def observe(self) -> Any:
        self.wanted = int(self.np_random.integers(2))
        return {"noise": self.np_random.uniform(-1, 1, 2).astype(np.float32), "sign": self.wanted}


class NestedDictTarget(MatchingProbe):
    """The action must be the exclusive or of two bits that lie in different branches of a nested space."""

    observation_space: spaces.Space[Any] = spaces.Dict(
        {
            "left": spaces.Dict(
                {"bit": spaces.Discrete(2), "noise": spaces.Box(-1.0, 1.0, (1,), np.float32)}
            ),
            "right": spaces.Tuple((spaces.MultiBinary(1), spaces.Box(-1.0, 1.0, (1,), np.float32))),
        }
    )

    def observe(self) -> Any:
        left, right = (int(bit) for bit in self.np_random.integers(2, size=2))
        noise = self.np_random.uniform(-1, 1, (2, 1)).astype(np.float32)
        self.wanted = left ^ right
        return {"left": {"bit": left, "noise": noise[0]}, "right": (np.array([right], np.int8), noise[1])}
