"""Judges an agent by whole games against another player, from each of its seats in turn."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError, did_you_mean
from rl_training.core.ratings import Tally
from rl_training.core.seeding import (
    EVALUATION_EPISODES,
    MATCH_OPENINGS,
    MATCH_PLAYERS,
    derived_seed,
    episode_seed,
    evaluation_generators,
    numpy_generator,
)
from rl_training.envs.factory import EnvFactory, make_game
from rl_training.experiment.games.matches import Fixture, PlayedGame, Rules, Sides, play_games
from rl_training.experiment.games.opponents import refuse_other_seats
from rl_training.experiment.games.players import Player

ALL = "all"


@dataclass(frozen=True)
class Judged:
    """A game of the player that is judged, and the side that it had."""

    side: str
    game: PlayedGame

    def returns(self, sides: Sides) -> dict[str, float]:
        """Return what the agents of its side were paid."""
        return {agent: self.game.returns[agent] for agent in sides[self.side]}


def rules_of(
    config: TrainConfig, factory: EnvFactory | None, sides: Sides, *, render_mode: str | None = None
) -> Rules:
    """Return the game of a config, as evaluations play it."""
    return Rules(
        partial(make_game, config, factory=factory, render_mode=render_mode),
        sides,
        name=f"game '{config.env_id}'",
        max_steps=config.max_episode_steps,
        cap=config.max_eval_episode_steps,
        rebuild=config.rebuild_envs == "on",
    )


def chosen_sides(sides: Sides, seats: str) -> list[str]:
    """Return the sides that a player takes: `all` in turn, or the one that is named."""
    if len(sides) < 2:
        raise UserError(
            f"all agents are played by one policy ('{next(iter(sides))}'), so nobody is left to play against"
        )
    if seats == ALL:
        return list(sides)
    if seats not in sides:
        raise UserError(
            f"seats is '{seats}'{did_you_mean(seats, sides)}; use all, or one of {', '.join(sides)}"
        )
    return [seats]


def fixtures_for(
    sides: Sides,
    chosen: Sequence[str],
    player: Player,
    opponent: Player,
    games: int,
    seed: int,
    random_openings: int,
) -> list[tuple[str, Fixture]]:
    """Return the games with the side of the player in each.

    Sides take turns. Each start and each random opening is played once from every side.
    """
    found = []
    for number in range(games):
        side, start = chosen[number % len(chosen)], number // len(chosen)
        seating = {
            agent: player if name == side else opponent for name, agents in sides.items() for agent in agents
        }
        opening = derived_seed(seed, MATCH_OPENINGS, start) if random_openings else 0
        reset = episode_seed(seed, 0, start, EVALUATION_EPISODES)
        found.append((side, Fixture(seating, reset, opening, random_openings)))
    return found


def generators(players: Sequence[Player], seed: int) -> dict[int, np.random.Generator]:
    """Return a generator for each player, by its id."""
    return {id(player): numpy_generator(seed, MATCH_PLAYERS, number) for number, player in enumerate(players)}


def judge(
    rules: Rules,
    player: Player,
    opponent: Player,
    *,
    games: int,
    seed: int,
    seats: str = ALL,
    random_openings: int = 0,
) -> list[Judged]:
    """Return the games of `player` against `opponent`, who has all other seats."""
    chosen = chosen_sides(rules.sides, seats)
    fixtures = fixtures_for(rules.sides, chosen, player, opponent, games, seed, random_openings)
    with evaluation_generators(seed):
        played = play_games(rules, [fixture for _, fixture in fixtures], generators([player, opponent], seed))
    if capped := sum(game.capped for game in played):
        warnings.warn(
            f"{capped} of {games} games did not end within {rules.cap:,} steps (max_eval_episode_steps) and were cut "
            "off; they count by the returns until then",
            stacklevel=2,
        )
    return [Judged(side, game) for (side, _), game in zip(fixtures, played, strict=True)]


def check_players(rules: Rules, players: Sequence[Player]) -> None:
    """Raise if a player does not fit the game."""
    game = rules.build()
    try:
        for player in players:
            refuse_other_seats(player, game)
    finally:
        game.close()


def summary_of(judged: Sequence[Judged], sides: Sides) -> dict[str, Any]:
    """Return counts, rates with 95% intervals and returns: of all games, and by side in `seats`.

    `mean_reward` and the rest are of the sum over the agents of the judged player's side.
    """
    return _rates(judged, sides) | {
        "seats": {
            side: _rates(own, sides) | {"returns": _agent_returns(own)}
            for side in sides
            if (own := [each for each in judged if each.side == side])
        }
    }


def _rates(judged: Sequence[Judged], sides: Sides) -> dict[str, Any]:
    tally = Tally()
    for each in judged:
        tally.add(each.game.results[each.side])
    totals = [sum(each.returns(sides).values()) for each in judged]
    lengths = [each.game.length for each in judged]
    return {
        "num_games": len(judged),
        **tally.rates(),
        "mean_reward": float(np.mean(totals)),
        "std_reward": float(np.std(totals)),
        "mean_ep_length": float(np.mean(lengths)),
        "num_episodes": len(judged),
        "num_capped_episodes": sum(each.game.capped for each in judged),
    }


def _agent_returns(judged: Sequence[Judged]) -> dict[str, float]:
    """Return the mean return of each agent of the game."""
    agents = judged[0].game.returns
    return {agent: float(np.mean([each.game.returns[agent] for each in judged])) for agent in agents}


def outcome_text(found: Mapping[str, Any]) -> str:
    """Return rates with their intervals as text.

    >>> outcome_text(Tally(3, 1, 0).rates())
    '3 won, 1 drawn, 0 lost: 75.0% (30.1 to 95.4) won, score 87.5%'
    """
    low, high = (100 * end for end in found["win_rate_interval"])
    return (
        f"{found['wins']} won, {found['draws']} drawn, {found['losses']} lost: {found['win_rate']:.1%} "
        f"({low:.1f} to {high:.1f}) won, score {found['score']:.1%}"
    )
