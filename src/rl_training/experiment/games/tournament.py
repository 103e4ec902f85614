"""Tournaments: all pairs of players play from both seats; a cross table and Elo ratings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from rl_training.core.errors import UserError
from rl_training.core.ratings import Tally, elo, resampled_points, wilson
from rl_training.core.seeding import evaluation_generators
from rl_training.core.types import Array
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.agent import Agent
from rl_training.experiment.games.judging import Judged, check_players, judge, rules_of
from rl_training.experiment.games.opponents import (
    RANDOM,
    SELF,
    agent_player,
    find_player,
    game_of,
    is_function_name,
    refuse_other_game,
)
from rl_training.experiment.games.players import Player
from rl_training.experiment.loading import load_agent

MEAN = 1000.0
"""The mean rating where no player is random."""
RESAMPLES = 1000
POINTS = {"win": 1.0, "draw": 0.5, "loss": 0.0}
RATING_RULE = (
    "Elo ratings are the maximum-likelihood strengths of the Bradley-Terry model, in which a draw is half a win; one "
    "drawn game is added for each pair, so that a player who won all has a finite rating. Intervals (95%) are those of "
    "a bootstrap over the games of each pair"
)


@dataclass(frozen=True)
class Pair:
    """The games of two players, by their numbers; results are those of the first one."""

    first: int
    second: int
    games: list[Judged]

    @property
    def points(self) -> list[float]:
        """The points of the first player in each game."""
        return [POINTS[each.game.results[each.side]] for each in self.games]

    def tally(self, side: str | None = None) -> Tally:
        """Return the games of the first player: all, or those with a side."""
        tally = Tally()
        for each in self.games:
            if side in (None, each.side):
                tally.add(each.game.results[each.side])
        return tally


@dataclass(frozen=True)
class Tournament:
    """All games of all pairs."""

    env_id: str
    names: list[str]
    sides: list[str]
    pairs: list[Pair]
    games: int
    """Of each pair."""
    random_openings: int
    sampled: bool
    seed: int

    @property
    def how(self) -> str:
        """How moves were chosen, in words."""
        actions = "actions are sampled" if self.sampled else "agents take their most likely actions"
        if not self.random_openings:
            return actions
        return f"the first {self.random_openings} moves of each game are random; {actions}"

    @property
    def anchor(self) -> str:
        """What fixes the ratings, of which only differences matter."""
        return "random = 0" if RANDOM in self.names else f"mean = {MEAN:g}"

    def scores(self) -> Array:
        """Return the score [P, P] of each player against each other one; nan on the diagonal."""
        found = np.full((len(self.names), len(self.names)), np.nan)
        for pair in self.pairs:
            found[pair.first, pair.second] = np.mean(pair.points)
            found[pair.second, pair.first] = 1.0 - np.mean(pair.points)
        return found

    def ratings(self) -> tuple[Array, Array, Array]:
        """Return the ratings [P], and the lower and upper ends of their intervals."""
        count, rng = len(self.names), np.random.default_rng(self.seed)
        results = np.array([point for pair in self.pairs for point in pair.points])
        players = np.array([(pair.first, pair.second) for pair in self.pairs for _ in pair.games])
        draws, start = [], 0
        for pair in self.pairs:
            draws.append(start + rng.integers(0, len(pair.games), (RESAMPLES, len(pair.games))))
            start += len(pair.games)
        everything = np.arange(len(results))[None]
        found = self._anchored(elo(*resampled_points(results, players, count, everything)))[0]
        resampled = self._anchored(
            elo(*resampled_points(results, players, count, np.concatenate(draws, axis=1)))
        )
        low, high = np.percentile(resampled, [2.5, 97.5], axis=0)
        return found, low, high

    def _anchored(self, ratings: Array) -> Array:
        if RANDOM not in self.names:
            return ratings + MEAN
        number = self.names.index(RANDOM)
        return np.asarray(ratings - ratings[:, number : number + 1])

    def to_dict(self) -> dict[str, Any]:
        """Return everything as data that JSON can hold; players are ordered by rating."""
        ratings, low, high = self.ratings()
        scores, players = self.scores(), []
        for number in np.argsort(-ratings, kind="stable").tolist():
            tally = self._tally_of(number)
            players.append(
                {
                    "name": self.names[number],
                    "elo": float(ratings[number]),
                    "elo_interval": [float(low[number]), float(high[number])],
                    **tally.rates(),
                    "against": {
                        other: float(scores[number, place])
                        for place, other in enumerate(self.names)
                        if place != number
                    },
                }
            )
        return {
            "env_id": self.env_id,
            "games_per_pair": self.games,
            "random_openings": self.random_openings,
            "sampled": self.sampled,
            "seed": self.seed,
            "how": self.how,
            "anchor": self.anchor,
            "rating_rule": RATING_RULE,
            "players": players,
            "pairs": [self._pair_to_dict(pair) for pair in self.pairs],
        }

    def _tally_of(self, number: int) -> Tally:
        found = Tally()
        for pair in self.pairs:
            own = pair.tally()
            if pair.first == number:
                found = Tally(found.wins + own.wins, found.draws + own.draws, found.losses + own.losses)
            elif pair.second == number:
                found = Tally(found.wins + own.losses, found.draws + own.draws, found.losses + own.wins)
        return found

    def _pair_to_dict(self, pair: Pair) -> dict[str, Any]:
        tally = pair.tally()
        return {
            "first": self.names[pair.first],
            "second": self.names[pair.second],
            "wins": tally.wins,
            "draws": tally.draws,
            "losses": tally.losses,
            "score": tally.score,
            "score_interval": list(wilson(tally.wins + tally.draws / 2, tally.games)),
            "score_by_seat": {side: pair.tally(side).score for side in self.sides if pair.tally(side).games},
        }


def play_tournament(
    entrants: Sequence[str],
    *,
    games: int = 50,
    random_openings: int = 2,
    sampled: bool = False,
    seed: int = 0,
    env: EnvFactory | str | None = None,
    trust_modules: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Tournament:
    """Let all pairs of players play `games` each, half of them from each seat.

    Players are runs and saved agents, at least one of them, `random`, and `module:function`. The first run decides
    which game is played.
    """
    _refuse_entrants(entrants, games, random_openings)
    lead = next(name for name in entrants if _is_agent(name))
    agent = load_agent(lead, env=env, trust_modules=trust_modules, probe=False)
    config, factory = agent.environment(env)
    sides = _two_sides(agent)
    players: list[Player] = []
    for name in entrants:
        if name == lead:
            refuse_other_game(agent, config, "tournament")
            players.append(agent_player(agent, name, deterministic=not sampled))
        else:
            players.append(
                find_player(
                    name, config, what="tournament", deterministic=not sampled, trust_modules=trust_modules
                )
            )
    rules, pairs = rules_of(config, factory, sides), []
    with evaluation_generators(seed):
        check_players(rules, players)
    for first, second in combinations(range(len(players)), 2):
        played = judge(
            rules, players[first], players[second], games=games, seed=seed, random_openings=random_openings
        )
        pairs.append(Pair(first, second, played))
        tally = pairs[-1].tally()
        say(
            f"{entrants[first]} against {entrants[second]}: {tally.wins} won, {tally.draws} drawn, {tally.losses} lost"
        )
    return Tournament(
        config.env_id, list(entrants), list(sides), pairs, games, random_openings, sampled, seed
    )


def _is_agent(name: str) -> bool:
    return name != RANDOM and not is_function_name(name)


def _refuse_entrants(entrants: Sequence[str], games: int, random_openings: int) -> None:
    twice = next((name for name in entrants if list(entrants).count(name) > 1), None)
    if twice is not None:
        raise UserError(f"'{twice}' is given twice; each player takes part once")
    if SELF in entrants:
        raise UserError("'self' is no player of a tournament; name runs, random, or module:function")
    if len(entrants) < 2:
        raise UserError("a tournament needs two players or more: runs, random, or module:function")
    if not any(_is_agent(name) for name in entrants):
        raise UserError("a tournament needs a run or saved agent, which decides the game")
    if games < 2:
        raise UserError(f"games is {games}; use 2 or more, so that both players have each seat")
    if random_openings < 0:
        raise UserError(f"random_openings is {random_openings}; use 0 or more")


def _two_sides(agent: Agent) -> dict[str, tuple[str, ...]]:
    """Return the two agents of a game, each for itself; raise an error if there are more, or fewer."""
    agents = game_of(agent).agents
    if len(agents) != 2:
        raise UserError(
            f"a tournament is for games of two agents, and '{agent.config.env_id}' has {len(agents)}; compare players "
            "with eval RUN --against PLAYER"
        )
    return {name: (name,) for name in agents}
