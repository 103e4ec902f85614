"""Players by name: `random`, `self`, a run or saved agent, or `module:function`."""

from os import PathLike
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig
from rl_training.config.object_paths import import_object, is_name, name_of
from rl_training.core.errors import UserError
from rl_training.core.games import Game
from rl_training.core.spaces.layout import space_text
from rl_training.envs.games.seats import SeatViews
from rl_training.experiment.agent import Agent
from rl_training.experiment.games.players import FunctionPlayer, Player, PolicyPlayer, RandomPlayer
from rl_training.experiment.loading import load_agent

RANDOM, SELF = "random", "self"
REMEDY = "give random, a run or saved agent, or module:function"


def is_function_name(name: str) -> bool:
    """Return whether a name means `module:function`, and not a run or saved agent."""
    return is_name(name) and not Path(name).exists()


def function_player(name: str, what: str) -> Player:
    """Return the player that `module:function` names; only for names that are trusted."""
    found = import_object(name, what)
    if not callable(found):
        raise UserError(
            f"{what} '{name}' is a {type(found).__name__}; use a function of an observation and a mask"
        )
    return FunctionPlayer(found, name)


def game_of(agent: Agent) -> Game:
    """Return the game that an agent plays; raise an error if it plays alone."""
    if agent.spec.game is None:
        raise UserError(
            f"{agent.name} plays '{agent.config.env_id}', which has a single agent: against nobody"
        )
    return agent.spec.game


def agent_player(agent: Agent, name: str, *, deterministic: bool) -> PolicyPlayer:
    """Return a player with the policy of an agent."""
    return PolicyPlayer(game_of(agent), agent.policy, agent.config, name, deterministic=deterministic)


def find_player(
    given: Any, config: TrainConfig, *, what: str, deterministic: bool, trust_modules: bool = False
) -> Player:
    """Return the player that is `given`: a name, a function, an agent or a model.

    `config` is that of the game; a run of another one is refused. `what` is how messages call the argument.
    """
    if given == RANDOM:
        return RandomPlayer()
    if isinstance(given, Agent) or isinstance(getattr(given, "agent", None), Agent):
        agent = given if isinstance(given, Agent) else given.agent
        refuse_other_game(agent, config, what)
        return agent_player(agent, agent.name, deterministic=deterministic)
    if callable(given):
        return FunctionPlayer(given, name_of(given) or str(getattr(given, "__name__", type(given).__name__)))
    if not isinstance(given, str | PathLike):
        raise UserError(f"{what} is {given!r}; {REMEDY}, or a function of an observation and a mask")
    name = str(given)
    if is_function_name(name):
        return function_player(name, what)
    agent = opponent_agent(name, config, what=what, trust_modules=trust_modules)
    return agent_player(agent, name, deterministic=deterministic)


def opponent_agent(name: str, config: TrainConfig, *, what: str, trust_modules: bool = False) -> Agent:
    """Return the agent of a run or folder, which plays the game of `config`."""
    if not name or "\0" in name:
        raise UserError(f"{what} is {name!r}; {REMEDY}")
    try:
        agent = load_agent(name, trust_modules=trust_modules, probe=False)
    except UserError as error:
        if Path(name).exists() or (Path(name).parent.is_dir() and Path(name).name in ("last", "best")):
            raise
        raise UserError(f"{what} '{name}' is not a player ({error}); {REMEDY}") from error
    refuse_other_game(agent, config, what)
    return agent


def refuse_other_game(agent: Agent, config: TrainConfig, what: str) -> None:
    """Raise if an agent was trained in another game than that of `config`."""
    own = agent.config
    if agent.spec.game is None:
        raise UserError(
            f"{what}: {agent.name} was trained in '{own.env_id}', which has a single agent; {REMEDY}"
        )
    for setting in ("env_id", "env_wrappers"):
        there, here = getattr(own, setting), getattr(config, setting)
        if there != here:
            raise UserError(
                f"{what}: {agent.name} was trained in another game: its {setting} is {there!r}, and here it is "
                f"{here!r}"
            )


def refuse_other_seats(player: Player, game: Any) -> None:
    """Raise if a player with a policy does not know the agents of a game, or knows them with other spaces."""
    if not isinstance(player, PolicyPlayer):
        return
    views, known = SeatViews(game, player.config), {seat.name: seat for seat in player.game.seats}
    for agent, seat in views.seats.items():
        if agent not in known:
            raise UserError(
                f"{player.name} was trained in a game without agent '{agent}'; its agents are {', '.join(known)}"
            )
        for name in ("observation_space", "action_space"):
            there, here = (space_text(getattr(each, name)) for each in (known[agent], seat))
            if there != here:
                raise UserError(
                    f"{player.name} was trained with {name} {there} of agent '{agent}', but the game now has {here}"
                )


def sides_of(game: Game) -> dict[str, tuple[str, ...]]:
    """Return the agents of each side: every agent for itself where all share a policy, otherwise those of a policy."""
    if len(game.teams) == 1:
        return {agent: (agent,) for agent in game.agents}
    return {team.name: tuple(seat.name for seat in team.seats) for team in game.teams}
