"""Small games without chance for several players, with PettingZoo's two interfaces and written without PettingZoo."""

from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.core.types import Array

GOAL, ROUNDS, UNLUCKY, THROWS = 5, 4, 3, 5


class Race:
    """Players add 0, 1 or 2 to their score in turn. Who reaches 5 wins 1, and the others lose 1.

    With three players or more, one whose score is 3 is out and loses 1 at once. After four rounds without a winner the
    game is drawn. With `masked`, nobody adds the same number twice in a row.
    """

    metadata: dict[str, Any] = {"name": "race_v0"}  # noqa: RUF012
    render_mode = None

    def __init__(self, players: int = 2, *, masked: bool = False) -> None:
        self.possible_agents = [f"runner_{number}" for number in range(players)]
        self.masked = masked
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        seen = spaces.Box(0, 20, (len(self.possible_agents) + 2,), np.float32)
        if not self.masked:
            return seen
        return spaces.Dict(observation=seen, action_mask=spaces.Box(0, 1, (3,), np.int8))

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.agents = list(self.possible_agents)
        self.scores = dict.fromkeys(self.agents, 0)
        self.last_added: dict[str, int | None] = dict.fromkeys(self.agents)
        self.paid = dict.fromkeys(self.agents, 0.0)
        self.over = dict.fromkeys(self.agents, False)
        self.moves = dict.fromkeys(self.agents, 0)
        self.agent_selection = self.agents[0]

    def agent_iter(self) -> None: ...

    def observe(self, agent: str) -> Any:
        place = self.possible_agents.index(agent)
        others = self.possible_agents[place:] + self.possible_agents[:place]
        seen = np.array([place, self.moves[agent], *(self.scores[each] for each in others)], np.float32)
        mask = np.array([self.last_added[agent] != number for number in range(3)], np.int8)
        return {"observation": seen, "action_mask": mask} if self.masked else seen

    def last(self) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        agent = self.agent_selection
        return self.observe(agent), self.paid[agent], self.over[agent], False, {}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        place = self.possible_agents.index(agent)
        order = self.possible_agents[place + 1 :] + self.possible_agents[:place]
        if action is None:  # it has ended, and leaves
            self.agents.remove(agent)
        else:
            assert not self.over[agent]
            assert not self.masked or self.last_added[agent] != action
            self.paid[agent] = 0.0
            self._move(agent, int(action))
            order = [*order, agent]
        waiting = [each for each in order if each in self.agents]
        leaving = [each for each in waiting if self.over[each]]
        if self.agents:
            self.agent_selection = (leaving or waiting)[0]

    def _move(self, agent: str, action: int) -> None:
        self.scores[agent] += action
        self.last_added[agent] = action
        self.moves[agent] += 1
        running = [each for each in self.agents if not self.over[each]]
        if self.scores[agent] >= GOAL:
            for each in running:
                self.paid[each] += 1.0 if each == agent else -1.0
            self.over = dict.fromkeys(self.over, True)
            return
        if len(self.possible_agents) > 2 and self.scores[agent] == UNLUCKY:
            self.paid[agent] -= 1.0
            self.over[agent] = True
            running.remove(agent)
        if len(running) < 2 or min(self.moves[each] for each in running) >= ROUNDS:
            self.over = dict.fromkeys(self.over, True)

    def close(self) -> None: ...


class Throws:
    """Rock, paper, scissors, five times; both players throw at once, and see what the other one threw before."""

    metadata: dict[str, Any] = {"name": "throws_v0"}  # noqa: RUF012
    render_mode = None

    def __init__(self) -> None:
        self.possible_agents = ["left", "right"]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 5, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(3)

    def _seen(self, thrown: dict[str, int]) -> dict[str, Array]:
        others = dict(zip(self.possible_agents, reversed(self.possible_agents), strict=True))
        return {
            agent: np.array([self.round, thrown.get(others[agent], -1) + 1], np.float32)
            for agent in self.possible_agents
        }

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        self.agents, self.round = list(self.possible_agents), 0
        return self._seen({}), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        thrown = {agent: int(actions[agent]) for agent in self.agents}
        self.round += 1
        ahead = (thrown["left"] - thrown["right"]) % 3
        left = {0: 0.0, 1: 1.0, 2: -1.0}[ahead]
        over = self.round == THROWS
        result = (
            self._seen(thrown),
            {"left": left, "right": -left},
            dict.fromkeys(self.agents, over),
            dict.fromkeys(self.agents, False),
            {agent: {} for agent in self.agents},
        )
        if over:
            self.agents = []
        return result

    def close(self) -> None: ...


def masked_race() -> Race:
    return Race(masked=True)


def race_of_three() -> Race:
    return Race(3)


def race_alone() -> Race:
    return Race(1)
