"""Small games of two and three players with known best play, and players for them."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

pettingzoo = pytest.importorskip("pettingzoo")


class Nim(pettingzoo.AECEnv):
    """Players take one or two stones in turn, and who takes the last one wins. The seed decides how many there are."""

    metadata = {"name": "nim_v0", "render_modes": ["ansi"], "is_parallelizable": False}  # noqa: RUF012

    def __init__(self, stones: int | None = None, render_mode: str | None = None) -> None:
        self.stones, self.render_mode = stones, render_mode
        self.possible_agents = ["first", "second"]
        self.left = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Dict(
            observation=spaces.Box(0, 9, (1,), np.float32), action_mask=spaces.Box(0, 1, (2,), np.int8)
        )

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.agents = list(self.possible_agents)
        self.left = int(np.random.default_rng(seed).integers(4, 10)) if self.stones is None else self.stones
        self.agent_selection = "first"
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}

    def observe(self, agent: str) -> Any:
        mask = np.array([1, self.left >= 2], np.int8)
        return {"observation": np.array([self.left], np.float32), "action_mask": mask}

    def step(self, action: int | None) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        assert action is not None
        assert self.left > action, "the mask forbids it"
        self._cumulative_rewards[agent] = 0.0
        self.left -= int(action) + 1
        self._clear_rewards()
        other = self.possible_agents[self.possible_agents.index(agent) - 1]
        if self.left == 0:
            self.rewards |= {agent: 1.0, other: -1.0}
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = other
        self._accumulate_rewards()

    def render(self) -> str:
        return f"stones: {'o' * self.left}"

    def close(self) -> None:
        pass


class Bids(pettingzoo.ParallelEnv):
    """Three agents bid 0, 1 or 2 in each of two rounds and are paid what they bid; all see the round."""

    metadata = {"name": "bids_v0", "render_modes": []}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.possible_agents = ["a", "b", "c"]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 2, (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents, self.round = list(self.possible_agents), 0
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        self.round += 1
        rewards = {agent: float(np.sum(action)) for agent, action in actions.items()}
        over = dict.fromkeys(self.agents, self.round == 2)
        seen, infos, alive = (
            self._seen(),
            {agent: {} for agent in self.agents},
            dict.fromkeys(self.agents, False),
        )
        if self.round == 2:
            self.agents = []
        return seen, rewards, over, alive, infos

    def _seen(self) -> dict[str, Any]:
        return {agent: np.array([self.round], np.float32) for agent in self.possible_agents}

    def close(self) -> None:
        pass


def nim(**kwargs: Any) -> Nim:
    """Return a game of Nim."""
    return Nim(**kwargs)


def nim_of_seven(**kwargs: Any) -> Nim:
    """Return a game of Nim with seven stones, which the first player wins."""
    return Nim(7, **kwargs)


def bids(**kwargs: Any) -> Bids:
    """Return a game of bids."""
    return Bids(**kwargs)


def perfect_nim(observation: Any, mask: Any) -> int:
    """Leave a multiple of three stones if possible."""
    rest = int(observation[0]) % 3
    return rest - 1 if rest else 0


def coin_nim(observation: Any, mask: Any, rng: np.random.Generator) -> int:
    """Take one or two stones by chance."""
    return int(rng.choice(np.flatnonzero(mask)))


def greedy_nim(observation: Any, mask: Any) -> int:
    """Take two stones, also where the mask forbids it."""
    return 1


def highest_bid(observation: Any, mask: Any) -> int:
    """Bid as much as possible."""
    assert mask is None
    return 2


def broken(observation: Any, mask: Any) -> int:
    """Raise an error."""
    raise ZeroDivisionError("my mistake")
