"""The environment: hover at a height of 1 for 60 steps with little fuel. Registers `hover:Hover-v0`."""

import gymnasium
import numpy as np


class Hover(gymnasium.Env):
    """A mass that falls unless it burns fuel; leaving the heights from 0 to 2 is a crash, which costs 20."""

    observation_space = gymnasium.spaces.Box(-4.0, 4.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.height, self.speed = self.np_random.uniform(0.7, 1.3), self.np_random.uniform(-0.1, 0.1)
        return self._observation(), {}

    def step(self, action):
        wind = self.np_random.normal(0.0, 0.01)
        self.speed = float(np.clip(self.speed + (0.05 if action else -0.05) + wind, -0.5, 0.5))
        self.height += self.speed
        crashed = not 0.0 < self.height < 2.0
        fuel = float(action)
        reward = 1.0 - abs(self.height - 1.0) - 0.1 * fuel - (20.0 if crashed else 0.0)
        return self._observation(), reward, crashed, False, {"fuel": fuel}

    def _observation(self):
        return np.array([self.height, self.speed], np.float32)


gymnasium.register("Hover-v0", Hover, max_episode_steps=60)
