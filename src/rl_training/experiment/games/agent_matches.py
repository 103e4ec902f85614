"""`evaluate(against=...)`: games of an agent against another player."""

from typing import Any

from rl_training.core.errors import UserError
from rl_training.core.seeding import evaluation_generators
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.agent import Agent
from rl_training.experiment.games.judging import ALL, check_players, judge, rules_of, summary_of
from rl_training.experiment.games.opponents import SELF, agent_player, find_player, game_of, sides_of
from rl_training.experiment.games.players import Player

DEFAULT_GAMES = 200


def evaluate_against(
    agent: Agent,
    against: Any,
    *,
    games: int = DEFAULT_GAMES,
    seats: str = ALL,
    random_openings: int = 0,
    deterministic: bool | None = None,
    env: EnvFactory | str | None = None,
    trust_modules: bool = False,
) -> dict[str, Any]:
    """Play `games` against another player; return counts, rates with 95% intervals, and returns by agent.

    `against` is random, self, a run or saved agent, `module:function`, a function of an observation and a mask, or a
    model. `seats` are all in turn, or one: the name of an agent, or where several policies play, of a policy. The first
    `random_openings` steps of each game are random.
    """
    sides = sides_of(game_of(agent))
    if games < 1:
        raise UserError(f"games is {games}; use 1 or more")
    if random_openings < 0:
        raise UserError(f"random_openings is {random_openings}; use 0 or more")
    config, factory = agent.environment(env)
    greedy = config.eval_deterministic if deterministic is None else deterministic
    player = agent_player(agent, agent.name, deterministic=greedy)
    opponent: Player = player
    if against != SELF:
        opponent = find_player(
            against, config, what="against", deterministic=greedy, trust_modules=trust_modules
        )
    rules = rules_of(config, factory, sides)
    with evaluation_generators(config.seed):
        check_players(rules, [player, opponent])
    judged = judge(
        rules,
        player,
        opponent,
        games=games,
        seed=config.seed,
        seats=seats,
        random_openings=random_openings,
    )
    return {
        "against": SELF if opponent is player else opponent.name,
        "deterministic": greedy,
        "random_openings": random_openings,
    } | summary_of(judged, sides)
