"""Builds the one environment that a game is for the rest of the library."""

from typing import Any

import numpy as np

from rl_training.config import TrainConfig
from rl_training.config.policies import agents_by_policy
from rl_training.core.errors import UserError
from rl_training.core.games import Game, make_team
from rl_training.envs.games.central import central_view
from rl_training.envs.games.joint_env import JointEnv
from rl_training.envs.games.plays import play_of
from rl_training.envs.games.seats import SeatViews

IDS = {"auto": None, "on": True, "off": False}


def joint_env(raw: Any, config: TrainConfig) -> JointEnv:
    """Return a game, of either of PettingZoo's kinds, as one environment for this config."""
    agents = list(raw.possible_agents)
    if not agents or not all(isinstance(agent, str) for agent in agents):
        raise UserError(
            f"game '{config.env_id}' has possible_agents {agents!r}; list the names of all its agents, as text"
        )
    if config.preprocessing == "atari":
        raise UserError("preprocessing 'atari' is for single-player games; use preprocessing image")
    views = SeatViews(raw, config)
    members = agents_by_policy(config.policies, agents)
    ids = IDS[config.agent_ids]
    teams = tuple(
        make_team(name, [views.seats[agent] for agent in own], agent_ids=ids) for name, own in members.items()
    )
    algorithm = config.algorithm
    central = None
    if algorithm.central_critic:
        central = central_view(raw, views.seats, getattr(algorithm, "critic_input", "auto"), config.env_id)
    masked = [seat.masked for team in teams for seat in team.seats]
    play = play_of(raw, watching=algorithm.has_memory or central is not None, legal=all(masked))
    game = Game(teams, None if central is None else central.space, in_turns=play.in_turns)
    return JointEnv(
        raw, play, game, views, central=central, max_steps=config.max_episode_steps, called=config.env_id
    )


def game_of(space: Any) -> Game | None:
    """Return the game of an environment's observation space; None for an environment with a single agent."""
    found: Game | None = getattr(space, "game", None)
    return found


def masks_of(obs: Any, game: Game) -> dict[str, Any]:
    """Return the masks of all teams in a batch of one observation, for random actions."""
    from rl_training.envs.games.joint_env import mask_entry

    return {team.name: np.asarray(obs[mask_entry(team.name)][0]) for team in game.teams if team.masked}
