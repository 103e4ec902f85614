"""Small games with PettingZoo's two interfaces, written without PettingZoo, and its own loops to play them.

`TurnGame` is the interface in turns (AEC), `JointGame` the one with simultaneous actions. Both play a `Plot`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

from rl_training.core.types import Array

NEVER = 10**6
MASK = "action_mask"


@dataclass(frozen=True)
class Role:
    """What an agent sees and does, when it comes, and when it dies."""

    observations: Any = field(default_factory=lambda: spaces.Box(-50, 50, (3,), np.float32))
    actions: Any = field(default_factory=lambda: spaces.Discrete(3))
    masks: str = ""
    """Where its masks are: `observation`, `info` or nowhere."""
    comes: int = 0
    dies: int = NEVER
    is_truncated: bool = False
    """Whether its death is a truncation."""


@dataclass(frozen=True)
class Plot:
    """What happens in a game whatever the actions are; `order` are the roles of the movers, over and over."""

    roles: tuple[Role, ...]
    length: int = 6
    order: tuple[int, ...] = (0,)
    is_truncated: bool = False
    """Whether the game is broken off at its end."""

    @property
    def agents(self) -> list[str]:
        return [f"agent_{number}" for number in range(len(self.roles))]


class World:
    """The state of a game: a clock, random rewards, and observations that tell agent, clock and what was last done."""

    metadata: dict[str, Any] = {"name": "plot_v0", "render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(self, plot: Plot, render_mode: str | None = None) -> None:
        self.plot, self.render_mode = plot, render_mode
        self.possible_agents = plot.agents
        self.agents: list[str] = []
        self.played: list[tuple[int | None, list[tuple[str, Any]]]] = []
        """The seed of every game, and the actions that it received."""

    def role(self, agent: str) -> Role:
        return self.plot.roles[self.plot.agents.index(agent)]

    def observation_space(self, agent: str) -> Any:
        role = self.role(agent)
        if role.masks != "observation":
            return role.observations
        mask = spaces.Box(0, 1, (sum(choices(role.actions)),), np.int8)
        return spaces.Dict({"observation": role.observations, MASK: mask})

    def action_space(self, agent: str) -> Any:
        return self.role(agent).actions

    def begin(self, seed: int | None) -> None:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.played.append((seed, []))
        self.clock, self.echo = 0, 0.0
        self.start = float(self.rng.integers(10))
        self.agents = [agent for agent in self.plot.agents if self.role(agent).comes == 0]

    def allowed(self, agent: str) -> Array:
        """Return the mask of an agent's actions now: it changes with the clock, and never forbids everything."""
        number = self.plot.agents.index(agent)
        parts = []
        for count in choices(self.role(agent).actions):
            part = (np.arange(count) + self.clock + number) % 3 != 0
            part[(self.clock + number) % count] = True
            parts.append(part)
        return np.concatenate(parts).astype(np.int8)

    def seen_by(self, agent: str) -> Any:
        role, number = self.role(agent), self.plot.agents.index(agent)
        plain = filled(role.observations, self.clock * 4 + number + self.start, self.echo)
        return {"observation": plain, MASK: self.allowed(agent)} if role.masks == "observation" else plain

    def told(self, agent: str) -> dict[str, Any]:
        found: dict[str, Any] = {"score": float(self.clock)}
        if self.role(agent).masks == "info":
            found[MASK] = self.allowed(agent)
        if self.clock >= self.plot.length:
            found["is_success"] = self.plot.agents.index(agent) != 1
        return found

    def take(self, agent: str, action: Any) -> None:
        """Note an action, which must be one of the agent's, and an allowed one."""
        role = self.role(agent)
        given = np.asarray(action, role.actions.dtype) if role.actions.shape else action
        assert role.actions.contains(given), f"{agent} did {action!r} of {role.actions}"
        if role.masks:
            parts = np.split(self.allowed(agent), np.cumsum(choices(role.actions))[:-1])
            done = np.reshape(action - getattr(role.actions, "start", 0), -1)
            assert all(part[one] for part, one in zip(parts, done, strict=True)), "it is not allowed"
        self.played[-1][1].append((agent, action))
        self.echo = float(np.sum(action))

    def payments(self) -> dict[str, float]:
        return {agent: float(self.rng.integers(-8, 9)) / 4 for agent in self.agents}

    def ends(self) -> dict[str, tuple[bool, bool]]:
        """Return whether each agent that is there has ended now, by a terminal state or by a limit."""
        found = {}
        for agent in self.agents:
            role, over = self.role(agent), self.clock >= self.plot.length
            died = self.clock >= role.dies
            cut = role.is_truncated if died else self.plot.is_truncated
            found[agent] = ((died or over) and not cut, (died or over) and cut)
        return found

    def late(self) -> list[str]:
        """Return the agents that come now."""
        if self.clock >= self.plot.length:
            return []
        return [agent for agent in self.plot.agents if self.role(agent).comes == self.clock > 0]

    def state(self) -> Array:
        return np.array([self.clock, self.start, self.echo], np.float32)

    def render(self) -> Any:
        frame = np.zeros((16, 16, 3), np.uint8)
        frame[: self.clock + 1] = 200
        return frame

    def close(self) -> None: ...


class JointGame(World):
    """All agents act at once."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.begin(seed)
        return {a: self.seen_by(a) for a in self.agents}, {a: self.told(a) for a in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        assert set(actions) == set(self.agents)
        for agent, action in actions.items():
            self.take(agent, action)
        self.clock += 1
        paid, ends = self.payments(), self.ends()
        self.agents += self.late()
        seen = {agent: self.seen_by(agent) for agent in self.agents}
        infos = {agent: self.told(agent) for agent in self.agents}
        paid |= {agent: 0.0 for agent in self.agents if agent not in paid}
        terminations = {agent: ends.get(agent, (False, False))[0] for agent in self.agents}
        truncations = {agent: ends.get(agent, (False, False))[1] for agent in self.agents}
        self.agents = [agent for agent in self.agents if not any(ends.get(agent, (False, False)))]
        return seen, paid, terminations, truncations, infos


class TurnGame(World):
    """Agents act one after another; those that ended take a step without an action, as in PettingZoo."""

    agent_selection: str

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.begin(seed)
        self.turn = -1
        self.rewards: dict[str, float] = {}
        self._cumulative_rewards: dict[str, float] = {}
        self.terminations: dict[str, bool] = {}
        self.truncations: dict[str, bool] = {}
        self.infos: dict[str, Any] = {}
        for agent in self.agents:
            self.admit(agent)
        self.choose()

    def admit(self, agent: str) -> None:
        self.rewards[agent] = self._cumulative_rewards[agent] = 0.0
        self.terminations[agent] = self.truncations[agent] = False
        self.infos[agent] = self.told(agent)

    def choose(self) -> None:
        """Let those that ended leave first; then it is the next one's turn."""
        gone = [agent for agent in self.agents if self.terminations[agent] or self.truncations[agent]]
        if gone:
            self.agent_selection = gone[0]
            return
        while self.agents:
            self.turn += 1
            order = self.plot.order
            # nobody of the order may be left
            names = [self.plot.agents[number] for number in order] + self.agents
            agent = names[self.turn % len(names)]
            if agent in self.agents:
                self.agent_selection = agent
                return

    def observe(self, agent: str) -> Any:
        return self.seen_by(agent)

    def last(self, observe: bool = True) -> Any:
        agent = self.agent_selection
        return (
            self.observe(agent) if observe else None,
            self._cumulative_rewards[agent],
            self.terminations[agent],
            self.truncations[agent],
            self.infos[agent],
        )

    def agent_iter(self) -> Iterator[str]:
        while self.agents:
            yield self.agent_selection

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            assert action is None
            self.agents.remove(agent)
            self.choose()
            return
        self.take(agent, action)
        self._cumulative_rewards[agent] = 0.0
        self.clock += 1
        for other, reward in self.payments().items():
            self._cumulative_rewards[other] += reward
        for other, (terminated, truncated) in self.ends().items():
            self.terminations[other], self.truncations[other] = terminated, truncated
        for other in self.late():
            self.agents.append(other)
            self.admit(other)
        for other in self.agents:
            self.infos[other] = self.told(other)
        self.choose()


def choices(space: Any) -> list[int]:
    """Return the number of choices of each part of a discrete action."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(count) for count in space.nvec.reshape(-1)]
    return []


def filled(space: Any, number: float, echo: float) -> Any:
    """Return an observation that tells two numbers, as far as the space allows."""
    if isinstance(space, spaces.Dict):
        return {name: filled(part, number + 1, echo) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return int(space.start + number % space.n)
    if space.dtype == np.uint8:
        return np.full(space.shape, number % 256, np.uint8)
    flat = np.zeros(int(np.prod(space.shape)), space.dtype)
    flat[0] = number
    flat[-1] += echo
    return np.clip(flat, space.low.reshape(-1), space.high.reshape(-1)).reshape(space.shape)


@dataclass
class Deed:
    """An agent's own action: what it saw before, what it did, and what it was paid until it acted again or ended."""

    seen: Any
    action: Any
    paid: float = 0.0


@dataclass
class Story:
    """What one agent lived through in one game."""

    deeds: list[Deed] = field(default_factory=list)
    before: float = 0.0
    """What it was paid before its first action."""
    end: str = ""
    """`terminated` or `truncated`; empty if it never was there."""
    last_seen: Any = None

    def pay(self, reward: float) -> None:
        if self.deeds:
            self.deeds[-1].paid += reward
        else:
            self.before += reward


Choice = Callable[[str], Any]


def play_in_turns(game: TurnGame, seed: int, choose: Choice) -> dict[str, Story]:
    """Play one game with the loop of PettingZoo's documentation; return the story of each agent."""
    stories = {agent: Story() for agent in game.possible_agents}
    game.reset(seed=seed)
    for agent in game.agent_iter():
        observation, reward, terminated, truncated, _ = game.last()
        story = stories[agent]
        story.pay(reward)
        if terminated or truncated:
            action = None
            story.end, story.last_seen = "terminated" if terminated else "truncated", observation
        else:
            action = choose(agent)
            story.deeds.append(Deed(observation, action))
        game.step(action)
    return stories


def play_at_once(game: JointGame, seed: int, choose: Choice) -> dict[str, Story]:
    """Play one game with the loop of PettingZoo's documentation; return the story of each agent."""
    stories = {agent: Story() for agent in game.possible_agents}
    observations, _ = game.reset(seed=seed)
    while game.agents:
        actions = {agent: choose(agent) for agent in game.agents}
        for agent, action in actions.items():
            stories[agent].deeds.append(Deed(observations[agent], action))
        observations, rewards, terminations, truncations, _ = game.step(actions)
        for agent, reward in rewards.items():
            stories[agent].pay(reward)
        for agent in terminations:
            if terminations[agent] or truncations[agent]:
                story = stories[agent]
                story.end = "terminated" if terminations[agent] else "truncated"
                story.last_seen = observations[agent]
    return stories


VECTORS = st.integers(2, 4).map(lambda size: spaces.Box(-1e4, 1e4, (size,), np.float32))
BOXES = st.tuples(st.integers(1, 3), st.integers(-3, 0), st.integers(1, 4)).map(
    lambda drawn: spaces.Box(drawn[1], drawn[2], (drawn[0],), np.float32)
)
DISCRETE = st.tuples(st.integers(2, 5), st.integers(-1, 1)).map(
    lambda drawn: spaces.Discrete(drawn[0], start=drawn[1])
)
MULTI = st.just(spaces.MultiDiscrete([3, 2]))
DICTS = st.just(
    spaces.Dict({"place": spaces.Box(-1e4, 1e4, (2,), np.float32), "kind": spaces.Discrete(4, start=1)})
)


@st.composite
def plots(draw: st.DrawFn, *, alike: bool = False) -> Plot:
    """Draw a plot; agents that are `alike` can share a policy, if need be with padding."""
    count = draw(st.integers(1, 4))
    kinds = st.sampled_from([DISCRETE, BOXES, MULTI])
    same = draw(kinds)
    seen = draw(st.sampled_from([VECTORS, DICTS]))
    roles = []
    for _ in range(count):
        actions = draw(same if alike else draw(kinds))
        masks = "" if isinstance(actions, spaces.Box) else draw(st.sampled_from(["", "observation"]))
        roles.append(
            Role(
                draw(seen if alike else st.one_of(VECTORS, DICTS)),
                actions,
                masks,
                comes=draw(st.sampled_from([0, 0, 0, 1, 3])),
                dies=draw(st.sampled_from([NEVER, NEVER, 1, 2, 4])),
                is_truncated=draw(st.booleans()),
            )
        )
    first = roles[0]  # somebody must be there
    roles[0] = Role(first.observations, first.actions, first.masks)
    order = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=5))
    return Plot(tuple(roles), draw(st.integers(1, 7)), tuple(order), draw(st.booleans()))
