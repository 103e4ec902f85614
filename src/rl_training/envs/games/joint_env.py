"""A game as one Gymnasium environment: its observation has a row for each agent.

So seeds, replay of episodes, workers and checks serve games as they are. `GameStepper` takes the rows apart again.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector.utils import batch_space

from rl_training.core.games import Game, TeamRows
from rl_training.core.spaces.layout import observation_leaves
from rl_training.core.spaces.masks import mask_counts
from rl_training.core.types import Array, Info
from rl_training.envs.checks import InvalidResult, ResultCheck
from rl_training.envs.games.central import CentralView
from rl_training.envs.games.plays import Outcome, Play
from rl_training.envs.games.seats import SeatViews
from rl_training.envs.observations import nested_leaves

REWARDS, FLAGS, CRITIC = "rewards", "flags", "critic"
TERMINATED, TRUNCATED, ACTS = range(3)
"""The columns of the flags: how a row ended in this step, and whether it acts next."""


class GameSpace(spaces.Dict):
    """The observations of a `JointEnv`; it carries the game, which every backend hands on with it."""

    def __init__(self, entries: Sequence[tuple[str, Space[Any]]], game: Game) -> None:
        super().__init__(entries)
        self.game = game


class JointActions(spaces.Box):
    """The actions of all agents side by side; samples are actions that the agents' spaces contain."""

    def __init__(self, game: Game) -> None:
        size = sum(team.width * len(team.seats) for team in game.teams)
        super().__init__(-np.inf, np.inf, (size,), np.float64)
        self.game = game

    def sample(self, mask: Any = None, probability: Any = None) -> Array:
        """Return uniformly random actions; `mask` maps the names of teams to allowed actions [S, M]."""
        found = []
        for team in self.game.teams:
            for number in range(len(team.seats)):
                allowed = None if mask is None else mask.get(team.name)
                found.append(
                    _sample(team.action_space, self.np_random, None if allowed is None else allowed[number])
                )
        return np.concatenate(found)


def _sample(space: Space[Any], rng: np.random.Generator, mask: Array | None) -> Array:
    if isinstance(space, spaces.Box):
        low, high = np.maximum(space.low, -1e3), np.minimum(space.high, 1e3)
        return rng.uniform(low, high).reshape(-1)
    counts = mask_counts(space) or []
    allowed = np.ones(sum(counts), np.bool_) if mask is None else mask
    parts = np.split(allowed, np.cumsum(counts)[:-1])
    return np.array([rng.choice(np.flatnonzero(part)) for part in parts], np.float64)


def mask_entry(team: str) -> str:
    """Return the entry of a team's masks."""
    return f"{team} mask"


def payments(obs: Mapping[str, Any]) -> Array:
    """Return what every row was paid [..., S], from one observation or a batch."""
    return np.ascontiguousarray(obs[REWARDS]).view(np.float64)[..., 0]


def leaf_entry(team: str, leaf: str) -> str:
    """Return the entry of one leaf of a team's observations."""
    return f"{team}/{leaf}" if leaf else team


class JointEnv(gymnasium.Env[Any, Any]):
    """Plays a game with an action for every agent; those of agents that do not act are ignored."""

    def __init__(
        self,
        raw: Any,
        play: Play,
        game: Game,
        views: SeatViews,
        *,
        central: CentralView | None = None,
        max_steps: int | None = None,
        called: str = "game",
    ) -> None:
        """`raw` is the game itself; it is cut off after `max_steps`. Errors say how it is `called`."""
        self.raw, self.play, self.game, self.max_steps = raw, play, game, max_steps
        self.called, self.has_own_limit = called, max_steps is not None
        self._steps = 0
        self.views, self.central = views, central
        self.metadata = dict(getattr(raw, "metadata", {}))
        self.render_mode = getattr(raw, "render_mode", None)
        count = len(game.seats)
        entries: list[tuple[str, Space[Any]]] = [
            (REWARDS, spaces.Box(0, 255, (count, 8), np.uint8)),
            (FLAGS, spaces.Box(0, 1, (count, 3), np.uint8)),
        ]
        for team in game.teams:
            for key, leaf in observation_leaves(team.observation_space).items():
                entries.append((leaf_entry(team.name, key), batch_space(leaf, len(team.seats))))
            if team.masked:
                sizes = TeamRows.empty(team).mask
                assert sizes is not None
                entries.append((mask_entry(team.name), spaces.Box(0, 1, sizes.shape, np.bool_)))
        if central is not None:
            entries.append((CRITIC, central.space))
        self.observation_space = GameSpace(entries, game)
        self._entries = [name for name, _ in entries]
        self.action_space = JointActions(game)
        self._rows = [TeamRows.empty(team) for team in game.teams]
        self._place = {
            seat.name: (rows, number) for rows in self._rows for number, seat in enumerate(rows.team.seats)
        }
        self._index = {agent: row for row, agent in enumerate(game.agents)}
        self._checks = {seat.name: ResultCheck(seat.observation_space) for seat in game.seats}
        self._open: set[str] = set()

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Begin a game."""
        super().reset(seed=seed)
        self.views.restart()
        self._steps = 0
        self._open = set(self.game.agents)
        outcome = self.play.reset(seed, options)
        self._check_agents()
        if not self.play.acting:
            raise InvalidResult("has no agents after reset; let at least one begin")
        return self._observation(outcome), self._info(outcome)

    def step(self, action: Array) -> tuple[Any, float, bool, bool, Info]:
        """Play one step: a move of all agents, or of the one whose turn it is."""
        actions, place = {}, 0
        acting = self.play.acting
        for rows in self._rows:
            width = rows.team.width
            for seat in rows.team.seats:
                if seat.name in acting:
                    actions[seat.name] = rows.team.env_action(seat, action[place : place + width])
                place += width
        outcome = self.play.step(actions)
        self._check_agents()
        self._steps += 1
        over = not self.play.acting
        truncated = over and any(cut and not done for done, cut in outcome.ended.values())
        if not over and self._steps == self.max_steps:
            over = truncated = True
            self.play.break_off(outcome)
        obs = self._observation(outcome, over=over, truncated=truncated)
        total = float(sum(outcome.rewards.values()))
        return obs, total, over and not truncated, truncated, self._info(outcome)

    def _observation(
        self, outcome: Outcome, *, over: bool = False, truncated: bool = False
    ) -> dict[str, Any]:
        count = len(self._index)
        rewards, flags = np.zeros(count), np.zeros((count, 3), np.uint8)
        for agent, reward in outcome.rewards.items():
            if not math.isfinite(reward):
                raise InvalidResult(f"paid agent '{agent}' {reward}; rewards must be finite")
            row = self._row(agent)
            if agent in self._open:  # the rest of the game is not the business of those that ended
                rewards[row] = reward
        ended = dict(outcome.ended)
        if over:  # agents that left silently, or never came
            ended = dict.fromkeys(self._open, (not truncated, truncated)) | ended
        for agent, (terminated, cut) in ended.items():
            if agent in self._open:
                flags[self._row(agent), TERMINATED] = terminated
                flags[self._row(agent), TRUNCATED] = cut and not terminated
        seen: dict[str, Any] = {}
        for agent, (rows, number) in self._place.items():
            acts = agent in self.play.acting and not over
            flags[self._index[agent], ACTS] = acts
            raw = self.play.observe(agent, last=over) if agent in self._open else None
            if acts and raw is None:
                raise InvalidResult(f"gave agent '{agent}' no observation, although it acts next")
            obs, said = self.views.of(agent, raw)
            self._write(rows, number, obs)
            rows.allow(number, self.views.mask(agent, said, outcome.infos.get(agent)) if acts else None)
            seen[agent] = obs
        self._open -= ended.keys()
        found: dict[str, Any] = {REWARDS: rewards.view(np.uint8).reshape(count, 8), FLAGS: flags}
        for rows in self._rows:
            team = rows.team.name
            found |= {leaf_entry(team, key): array for key, array in rows.obs.items()}
            if rows.mask is not None:
                found[mask_entry(team)] = rows.mask
        if self.central is not None:
            found[CRITIC] = self.central.read(seen)
        return {name: found[name] for name in self._entries}

    def _write(self, rows: TeamRows, number: int, obs: Any) -> None:
        """Write what an agent sees, which must fit its space: a short vector would be padded in silence."""
        seat = rows.team.seats[number]
        if obs is not None and (problem := self._checks[seat.name].observation(obs)) is not None:
            raise InvalidResult(f"{problem}: that of agent '{seat.name}'")
        rows.write(number, None if obs is None else dict(nested_leaves(obs)))

    def _row(self, agent: str) -> int:
        if agent not in self._index:
            raise InvalidResult(
                f"has an agent '{agent}' that is not in possible_agents ({', '.join(self._index)}); list every "
                "agent there"
            )
        return self._index[agent]

    def _check_agents(self) -> None:
        for agent in self.play.acting:
            self._row(agent)
            if agent not in self._open:
                raise InvalidResult(
                    f"lets agent '{agent}' act again after it ended; give a new agent a name of its own"
                )

    def _info(self, outcome: Outcome) -> Info:
        """Return the means over agents of the numbers that they report; success if all that report it succeed."""
        found: Info = {}
        told: dict[str, list[float]] = {}
        for info in outcome.infos.values():
            for name, value in (info or {}).items():
                if isinstance(value, int | float | np.number | np.bool_):
                    told.setdefault(name, []).append(float(value))
        for name, values in told.items():
            found[name] = bool(all(values)) if name == "is_success" else float(np.mean(values))
        return found

    def render(self) -> Any:
        """Return a picture of the game."""
        return self.play.game.render()

    def close(self) -> None:
        self.raw.close()
