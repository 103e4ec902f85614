"""Adapters for `make chaos-foreign`: importing this registers what `--env-id chaos_foreign_envs:Id` asks for."""

from collections import defaultdict
from typing import Any

import crafter
import gymnasium
from gymnasium import spaces


class InOrder(dict[Any, None]):
    """A set whose order is that of insertion."""

    def add(self, item: Any) -> None:
        """Insert an item."""
        self[item] = None

    def remove(self, item: Any) -> None:
        """Take it out."""
        del self[item]


class Crafter(gymnasium.Env[Any, Any]):
    """Crafter, which has the interface of the old gym: 64 x 64 pictures, 17 actions, a new world per episode.

    Its world keeps creatures in sets, and draws from them in the order of their memory addresses. Here they are kept in
    the order of insertion: otherwise an episode is not a function of its seed and actions, and no run resumes exactly.
    """

    def __init__(self, length: int = 200) -> None:
        self.game = crafter.Env(length=length)
        world = self.game._world
        begin = world.reset

        def reset(seed: int | None = None) -> None:
            begin(seed)
            world._chunks = defaultdict(InOrder)

        world.reset = reset
        self.observation_space = spaces.Box(0, 255, (64, 64, 3), "uint8")
        self.action_space = spaces.Discrete(self.game.action_space.n)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Build a world from the seed."""
        super().reset(seed=seed)
        self.game._seed, self.game._episode = int(self.np_random.integers(2**31 - 1)), 0
        return self.game.reset(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step; the time limit is a truncation, and death is a termination."""
        obs, reward, done, info = self.game.step(int(action))
        dead = info["discount"] == 0
        return obs, float(reward), done and dead, done and not dead, {}


gymnasium.register("Crafter-v0", entry_point=Crafter)
