"""Plays whole games between players, many at a time. Every game depends on its own seeds."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np

from rl_training.core.errors import EnvironmentFault, RunFault, UserError, reason
from rl_training.envs.checks import InvalidResult
from rl_training.envs.games.plays import Outcome, play_of
from rl_training.experiment.games.players import Player, Turn, mask_of, random_action

NUM_TABLES = 32
"""Games in progress at a time."""
T = TypeVar("T")
Result = Literal["win", "draw", "loss"]
Sides = Mapping[str, Sequence[str]]
"""The agents of each side of a game by its name: results are those of sides."""


@dataclass(frozen=True)
class Fixture:
    """A game to play: who takes which seat, and its seeds."""

    seating: Mapping[str, Player]
    """The player of each agent."""
    seed: int
    """Of the game's reset."""
    opening_seed: int = 0
    random_openings: int = 0
    """How many steps have uniformly random allowed actions, before the players choose."""


@dataclass(frozen=True)
class PlayedGame:
    """How a game went."""

    seating: dict[str, str]
    """The name of the player of each agent."""
    returns: dict[str, float]
    """What each agent was paid."""
    results: dict[str, Result]
    """Of each side: a win has a higher return than all other sides, and a draw shares the highest."""
    length: int
    """Steps: moves where agents act in turns."""
    seed: int
    capped: bool = False
    """Whether it was cut off before its end; returns are those until then."""


@dataclass
class Step:
    """A step of a game, for those who watch it."""

    table: int
    turns: list[Turn]
    """What the agents saw that acted."""
    actions: dict[str, Any]
    rewards: dict[str, float]


@dataclass
class Rules:
    """The game that is played."""

    build: Callable[[], Any]
    """Returns a new game of PettingZoo's interface."""
    sides: Sides
    name: str = "the game"
    max_steps: int | None = None
    """Steps after which a game ends."""
    cap: int | None = None
    """Steps after which a game is cut off, and marked as such."""
    rebuild: bool = False
    """Whether each game is a new object, because it keeps state across resets."""
    watch: Callable[[Step], None] | None = None
    began: Callable[[int, Any], None] | None = None
    """Called with the table and the game when one begins."""


def play_games(
    rules: Rules, fixtures: Sequence[Fixture], rngs: Mapping[int, np.random.Generator]
) -> list[PlayedGame]:
    """Play all games; return how they went, in the order of `fixtures`.

    `rngs` are the generators of the players, by their id.
    """
    results: dict[int, PlayedGame] = {}
    waiting = list(reversed(range(len(fixtures))))
    players = {id(player): player for fixture in fixtures for player in fixture.seating.values()}
    watching = any(player.watches for player in players.values())
    with ExitStack() as stack:
        tables = [Table(rules, number, watching=watching) for number in range(min(NUM_TABLES, len(fixtures)))]
        for table in tables:
            stack.callback(table.close)
        running = {table: waiting.pop() for table in tables}
        for table, number in running.items():
            table.begin(fixtures[number])
        while running:
            questions: dict[int, list[tuple[Table, Turn]]] = {}
            for table in running:
                for player, turn in table.turns():
                    questions.setdefault(id(player), []).append((table, turn))
            for key, turns in questions.items():
                seen = [turn for _, turn in turns]
                chosen = actions_of(rules, players[key], seen, rngs[key])
                for (table, turn), action in zip(turns, chosen, strict=True):
                    if turn.acts:
                        table.actions.setdefault(
                            turn.agent, action
                        )  # random ones of an opening are there already
            for table in list(running):
                table.step()
                if table.over:
                    results[running.pop(table)] = table.played()
                    if waiting:
                        running[table] = waiting.pop()
                        table.begin(fixtures[running[table]])
    return [results[number] for number in range(len(fixtures))]


class Table:
    """A place where one game after another is played."""

    def __init__(self, rules: Rules, number: int, *, watching: bool) -> None:
        self.rules, self.number, self.watching = rules, number, watching
        self.game: Any = None

    def begin(self, fixture: Fixture) -> None:
        """Begin a game."""
        if self.game is None or self.rules.rebuild:
            self.close()
            self.game = self.rules.build()
        legal = all(player.legal for player in fixture.seating.values())
        self.play = play_of(self.game, watching=self.watching, legal=legal)
        self.fixture = fixture
        self.actions: dict[str, Any] = {}
        self._opening = np.random.default_rng(fixture.opening_seed)
        by_player: dict[int, list[str]] = {}
        for agent, player in fixture.seating.items():
            by_player.setdefault(id(player), []).append(agent)
        for (
            agents
        ) in by_player.values():  # before the reset, since a player may ask the game about its agents
            fixture.seating[agents[0]].begin(self.number, self.game, agents)
        self._outcome = asked(self.rules, "reset", lambda: self.play.reset(fixture.seed, None))
        if not self.play.acting:
            raise EnvironmentFault(f"{self.rules.name} has no agents after reset; let at least one begin")
        self._returns = dict.fromkeys(fixture.seating, 0.0)
        self._open = set(fixture.seating)
        self.length, self.capped = 0, False
        if self.rules.began is not None:
            self.rules.began(self.number, self.game)

    def turns(self) -> list[tuple[Player, Turn]]:
        """Return what the players must see now; choose the actions of a random opening."""
        self.actions.clear()
        self._turns: list[Turn] = []
        acting, opening = self.play.acting, self.length < self.fixture.random_openings
        found = []
        for agent, player in self.fixture.seating.items():
            acts = agent in acting
            if not acts and not (player.watches and agent in self._open):
                continue
            seen = asked(self.rules, "observe", partial(self.play.observe, agent))
            if acts and seen is None:
                raise EnvironmentFault(
                    f"{self.rules.name} gave agent '{agent}' no observation, although it acts next"
                )
            turn = Turn(self.number, agent, seen, self._outcome.infos.get(agent) or {}, acts)
            if acts:
                self._turns.append(turn)
                if (mask := mask_of(turn)) is not None and not mask.any():
                    raise EnvironmentFault(
                        f"{self.rules.name} allows agent '{agent}' no action, although it acts next"
                    )
                if opening:
                    self.actions[agent] = self._random_action(turn)
            if not opening or player.watches:
                found.append((player, turn))
        return found

    def _random_action(self, turn: Turn) -> Any:
        space = self.game.action_space(turn.agent)
        return asked(self.rules, "action_mask", lambda: random_action(space, mask_of(turn), self._opening))

    def step(self) -> None:
        """Play a step with the actions of all agents that act."""
        unknown = [agent for agent in self.play.acting if agent not in self.actions]
        if unknown:
            raise EnvironmentFault(
                f"{self.rules.name} lets agent '{unknown[0]}' act, which is not in possible_agents"
            )
        outcome = self._outcome = asked(self.rules, "step", lambda: self.play.step(self.actions))
        self.length += 1
        if self.play.acting and self.length in (self.rules.max_steps, self.rules.cap):
            self.play.break_off(outcome)
        for agent, reward in outcome.rewards.items():
            if not math.isfinite(reward):
                raise EnvironmentFault(
                    f"{self.rules.name} paid agent '{agent}' {reward}; rewards must be finite"
                )
            if agent in self._open:  # the rest of the game is not the business of those that ended
                self._returns[agent] += reward
        self._open -= outcome.ended.keys()
        if self.rules.watch is not None:
            self.rules.watch(Step(self.number, self._turns, dict(self.actions), _of(outcome)))

    @property
    def over(self) -> bool:
        """Whether the game is over, at its end or by a limit."""
        if not self.play.acting or self.length == self.rules.max_steps:
            return True
        self.capped = self.length == self.rules.cap
        return self.capped

    def played(self) -> PlayedGame:
        """Return how the game went."""
        seating = {agent: player.name for agent, player in self.fixture.seating.items()}
        results = results_of(self.rules.sides, self._returns)
        return PlayedGame(seating, dict(self._returns), results, self.length, self.fixture.seed, self.capped)

    def close(self) -> None:
        """Close the game."""
        if self.game is not None:
            self.game.close()


def actions_of(rules: Rules, player: Player, turns: Sequence[Turn], rng: np.random.Generator) -> list[Any]:
    """Return a player's actions; an error in what the game gave it names the game."""
    try:
        return player.act(turns, rng)
    except InvalidResult as misfit:
        raise EnvironmentFault(f"{rules.name} {misfit}") from None


def asked(rules: Rules, what: str, ask: Callable[[], T]) -> T:
    """Return what the game answers; an error names the game and the method."""
    try:
        return ask()
    except (RunFault, UserError):
        raise
    except InvalidResult as misfit:
        raise EnvironmentFault(f"{rules.name} {misfit} ({what})") from None
    except Exception as error:
        raise EnvironmentFault(
            f"{rules.name} raised {type(error).__name__} in {what}: {reason(error)}"
        ) from error


def _of(outcome: Outcome) -> dict[str, float]:
    return {agent: float(reward) for agent, reward in outcome.rewards.items()}


def results_of(sides: Sides, returns: Mapping[str, float]) -> dict[str, Result]:
    """Return the result of each side; its return is the mean of those of its agents.

    >>> results_of({"a": ["a"], "b": ["b"]}, {"a": 1.0, "b": -1.0})
    {'a': 'win', 'b': 'loss'}
    """
    means: dict[str, float] = {
        side: math.fsum(returns[agent] for agent in agents) / len(agents) for side, agents in sides.items()
    }
    best = max(means.values())
    leaders = [
        side for side, value in means.items() if math.isclose(value, best, rel_tol=1e-9, abs_tol=1e-12)
    ]
    found: dict[str, Result] = {}
    for side in sides:
        if side not in leaders:
            found[side] = "loss"
        else:
            found[side] = "win" if len(leaders) == 1 else "draw"
    return found
