"""Games: environments with several agents. A seat is an agent's place in a game, a team the agents of one policy.

Seats of a team share observations and actions. Where these differ, they are padded: vectors with zeros, Discrete
actions with choices that a mask forbids, continuous ones with dimensions that are ignored.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.core.errors import UserError
from rl_training.core.spaces.as_data import space_from_data, space_to_data
from rl_training.core.spaces.layout import float_dtype, observation_leaves, space_text
from rl_training.core.spaces.masks import mask_counts
from rl_training.core.types import Array, EnvSpec

MAX_SEATS = 2**12
AGENT_KEY = "agent"
"""The entry of an observation that says which agent of the team sees it."""


@dataclass(frozen=True)
class Seat:
    """An agent of a game: what it sees, without its mask, and what it does."""

    name: str
    observation_space: Space[Any]
    action_space: Space[Any]
    masked: bool = False
    """Whether there is a mask of its allowed actions."""


@dataclass(frozen=True)
class Team:
    """The seats that one policy plays, in the order of their rows, and the spaces of that policy."""

    name: str
    seats: tuple[Seat, ...]
    observation_space: Space[Any]
    action_space: Space[Any]
    masked: bool
    with_ids: bool
    """Whether observations have an entry that numbers the agent."""

    @property
    def width(self) -> int:
        """The number of numbers of an action."""
        return int(np.prod(self.action_space.shape or (), dtype=np.int64))

    def number(self, agent: str) -> int:
        """Return the number of an agent within the team."""
        return [seat.name for seat in self.seats].index(agent)

    def spec(self, num_envs: int, critic_space: Space[Any] | None = None) -> EnvSpec:
        """Return what its policy must know, with a row for each seat in each of `num_envs` games."""
        rows = num_envs * len(self.seats)
        return EnvSpec(
            self.observation_space,
            self.action_space,
            rows,
            masked=self.masked,
            turns=True,
            critic_space=critic_space,
        )

    def env_action(self, seat: Seat, action: Array) -> Any:
        """Return a seat's action in units of the game, for the team's numbers of it [width]."""
        space = seat.action_space
        if isinstance(space, spaces.Discrete):
            return int(action[0]) + int(space.start)
        if isinstance(space, spaces.MultiDiscrete):
            return (action.reshape(space.shape) + space.start).astype(space.dtype)
        if isinstance(space, spaces.MultiBinary):
            return action.reshape(space.shape).astype(space.dtype)
        assert isinstance(space, spaces.Box)
        size = int(np.prod(space.shape))
        own = action[:size].reshape(space.shape)
        if self.action_space != space:  # padded: every bound is mapped to -1 and 1
            own = space.low + (own + 1.0) / 2.0 * (space.high - space.low)
            own = np.clip(own, space.low, space.high)
        return own.astype(space.dtype)


@dataclass(frozen=True)
class Game:
    """The teams of a game. Rows of a step are ordered by team, then by seat, then by environment."""

    teams: tuple[Team, ...]
    critic_space: Space[Any] | None = None
    """What a central critic reads besides the observation of the agent."""
    in_turns: bool = False
    """Whether agents act one after another, instead of all at once."""

    @property
    def seats(self) -> tuple[Seat, ...]:
        """All seats, in the order of their rows."""
        return tuple(seat for team in self.teams for seat in team.seats)

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of all agents, in the order of their rows."""
        return tuple(seat.name for seat in self.seats)

    def team_of(self, agent: str) -> Team:
        """Return the team of an agent; raise an error if the game has no such agent."""
        for team in self.teams:
            if any(seat.name == agent for seat in team.seats):
                return team
        raise UserError(f"the game has no agent '{agent}'; its agents are {', '.join(self.agents)}")

    def spec(self, num_envs: int) -> EnvSpec:
        """Return the spec of `num_envs` games: of the only team, or with a space for each team by name."""
        if len(self.teams) == 1:
            return replace(self.teams[0].spec(num_envs, self.critic_space), game=self)
        return EnvSpec(
            spaces.Dict([(team.name, team.observation_space) for team in self.teams]),
            spaces.Dict([(team.name, team.action_space) for team in self.teams]),
            num_envs * len(self.seats),
            masked=any(team.masked for team in self.teams),
            turns=True,
            critic_space=self.critic_space,
            game=self,
        )

    def team_specs(self, num_envs: int) -> dict[str, EnvSpec]:
        """Return the spec of each team by name."""
        return {team.name: team.spec(num_envs, self.critic_space) for team in self.teams}


def make_team(name: str, seats: Iterable[Seat], *, agent_ids: bool | None) -> Team:
    """Return the team of some seats; `agent_ids` None adds ids where observations or actions differ."""
    members = tuple(seats)
    seen, actions = [seat.observation_space for seat in members], [seat.action_space for seat in members]
    differ = any(space != seen[0] for space in seen) or any(space != actions[0] for space in actions)
    observation = seen[0] if not differ else _padded_observation(name, members)
    action, masked = _team_action(name, members)
    with_ids = len(members) > 1 and (differ if agent_ids is None else agent_ids)
    if with_ids:
        ids = (AGENT_KEY, spaces.Discrete(len(members)))
        if isinstance(observation, spaces.Dict):
            if AGENT_KEY in observation.spaces:
                raise UserError(
                    f"observations have an entry '{AGENT_KEY}', which is the name of agent ids; set agent_ids to off"
                )
            observation = spaces.Dict([*observation.spaces.items(), ids])
        else:
            observation = spaces.Dict([("observation", observation), ids])
    return Team(name, members, observation, action, masked, with_ids)


def _padded_observation(name: str, seats: tuple[Seat, ...]) -> Space[Any]:
    """Return the space of the seats' observations: their own if it is the same, or the longest vector."""
    found = [seat.observation_space for seat in seats]
    if all(space == found[0] for space in found):
        return found[0]
    odd = next((s for s in seats if not isinstance(s.observation_space, spaces.Box)), None)
    odd = odd or next((s for s in seats if len(s.observation_space.shape or ()) != 1), None)
    if odd is not None:
        raise UserError(
            f"the agents of policy '{name}' have different observations, and that of {odd.name}, "
            f"{space_text(odd.observation_space)}, is not a vector, which could be padded; set policies to each, or to "
            "a map of policies whose agents see the same"
        )
    length = max(int(np.prod(space.shape)) for space in found)  # type: ignore[arg-type]  # Boxes have shapes
    return spaces.Box(-np.inf, np.inf, (length,), float_dtype())


def _team_action(name: str, seats: tuple[Seat, ...]) -> tuple[Space[Any], bool]:
    """Return the space of a team's actions, counted from 0, and whether masks are needed."""
    found, masked = [seat.action_space for seat in seats], any(seat.masked for seat in seats)
    first = found[0]
    if all(isinstance(space, spaces.Discrete) for space in found):
        counts = [int(space.n) for space in found]  # type: ignore[attr-defined]  # all are Discrete
        return spaces.Discrete(max(counts)), masked or len(set(counts)) > 1
    if all(space == first for space in found):
        if isinstance(first, spaces.MultiDiscrete):
            return spaces.MultiDiscrete(first.nvec.reshape(-1)), masked
        if isinstance(first, spaces.MultiBinary):
            return spaces.MultiBinary(int(np.prod(first.shape))), masked
        if isinstance(first, spaces.Box):
            return first, False
    boxes = [space for space in found if isinstance(space, spaces.Box) and space.is_bounded()]
    if len(boxes) == len(found):
        length = max(int(np.prod(space.shape)) for space in boxes)
        return spaces.Box(-1.0, 1.0, (length,), float_dtype()), False
    kinds = ", ".join(f"{seat.name} has {space_text(seat.action_space)}" for seat in seats)
    raise UserError(
        f"the agents of policy '{name}' have actions that cannot be padded to a common space ({kinds}); set "
        "policies to each, or to a map of policies whose agents act alike"
    )


@dataclass
class TeamRows:
    """Arrays of a team's observations [S, ...] in one game, by leaf, and the masks of its actions [S, M]."""

    team: Team
    obs: dict[str, Array] = field(default_factory=dict)
    mask: Array | None = None

    @classmethod
    def empty(cls, team: Team) -> "TeamRows":
        """Return zeros, with every action allowed."""
        count = len(team.seats)
        rows = cls(team)
        for key, leaf in observation_leaves(team.observation_space).items():
            rows.obs[key] = np.zeros((count, *(leaf.shape or ())), leaf.dtype)
        if team.with_ids:
            rows.obs[AGENT_KEY][:] = np.arange(count)
        if team.masked:
            rows.mask = np.ones((count, sum(mask_counts(team.action_space) or ())), np.bool_)
        return rows

    def write(self, number: int, obs: Mapping[str, Any] | None) -> None:
        """Write an agent's observation by leaf, or zeros if there is none."""
        for key, array in self.obs.items():
            if key == AGENT_KEY and self.team.with_ids:
                continue
            own = "" if self.team.with_ids and key == "observation" and not self._of_dict else key
            if obs is None:
                array[number] = 0
                continue
            value = np.asarray(obs[own])
            if value.shape == array.shape[1:]:
                array[number] = value
            else:  # padded
                array[number] = 0
                array[number, : value.size] = value

    @property
    def _of_dict(self) -> bool:
        return isinstance(self.team.seats[0].observation_space, spaces.Dict)

    def allow(self, number: int, mask: Array | None) -> None:
        """Write the mask of an agent's actions; None allows all that it has."""
        if self.mask is None:
            return
        space = self.team.seats[number].action_space
        own = int(space.n) if isinstance(space, spaces.Discrete) else self.mask.shape[1]
        self.mask[number, :own] = True if mask is None else mask
        self.mask[number, own:] = False


def game_to_data(game: Game) -> dict[str, Any]:
    """Return a game as data that JSON can hold, so that its agents can be loaded without it."""
    return {
        "in_turns": game.in_turns,
        "critic_space": None if game.critic_space is None else space_to_data(game.critic_space),
        "teams": [
            {
                "name": team.name,
                "with_ids": team.with_ids,
                "seats": [
                    {
                        "name": seat.name,
                        "observation_space": space_to_data(seat.observation_space),
                        "action_space": space_to_data(seat.action_space),
                        "masked": seat.masked,
                    }
                    for seat in team.seats
                ],
            }
            for team in game.teams
        ],
    }


def game_from_data(data: Any) -> Game:
    """Return the game that `game_to_data` described; raise an error if the data is invalid."""
    try:
        count = sum(len(team["seats"]) for team in data["teams"])
        if not 1 <= count <= MAX_SEATS:
            raise ValueError(f"it has {count} agents, and not 1 to {MAX_SEATS}")
        teams = []
        for team in data["teams"]:
            seats = [
                Seat(
                    str(seat["name"]),
                    space_from_data(seat["observation_space"]),
                    space_from_data(seat["action_space"]),
                    masked=seat["masked"] is True,
                )
                for seat in team["seats"]
            ]
            teams.append(make_team(str(team["name"]), seats, agent_ids=team["with_ids"] is True))
        critic = data["critic_space"]
        central = None if critic is None else space_from_data(critic)
        return Game(tuple(teams), central, in_turns=data["in_turns"] is True)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise UserError(f"a saved game cannot be read: {type(error).__name__}: {str(error)[:200]}") from error
