"""Players: whatever can take a seat in a game. Agents with a policy, functions, and uniformly random actions.

A player acts for all of its seats in all games that are in progress, with one call for a batch of turns.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from gymnasium import Space, spaces

from rl_training.config import TrainConfig
from rl_training.core.errors import RunFault, reason
from rl_training.core.games import Game, Seat, Team, TeamRows
from rl_training.core.protocols import Policy
from rl_training.core.spaces.action_units import ActionAdapter
from rl_training.core.spaces.masks import MASK_KEY, mask_counts
from rl_training.core.types import Array, Info, PolicyState, joined
from rl_training.envs.checks import InvalidResult
from rl_training.envs.games.seats import SeatViews, split_observation
from rl_training.envs.masks import NAME as MASK
from rl_training.envs.observations import nested_leaves
from rl_training.policies.teams import TeamsPolicy

PlayerFunction = Callable[..., Any]
"""Maps an observation, without its mask, and the mask (None if there is none) to an action. If it has a parameter
`rng`, it receives a seeded generator there."""


@dataclass(frozen=True)
class Turn:
    """What an agent sees at a moment of a game."""

    table: int
    """The number of the game's place among those in progress."""
    agent: str
    observation: Any
    """As the game gives it, with the mask if that is part of it; None if the agent sees nothing now."""
    info: Info
    acts: bool = True
    """Whether the agent acts now; a player that watches also gets the observations of agents that wait."""


class Player(Protocol):
    """Chooses actions for turns."""

    name: str
    watches: bool
    """Whether it asks for the observations of agents that wait as well."""
    legal: bool
    """Whether it never chooses an action that a mask forbids, so that the game need not check it."""

    def begin(self, table: int, game: Any, agents: Sequence[str]) -> None:
        """Take the seats of `agents` at a table; the game is reset after that."""

    def act(self, turns: Sequence[Turn], rng: np.random.Generator) -> list[Any]:
        """Return an action in units of the game for each turn; that of an agent that waits is not used."""


class RandomPlayer:
    """Draws uniformly among the allowed actions."""

    name, watches, legal = "random", False, True

    def __init__(self) -> None:
        self._spaces: dict[tuple[int, str], Space[Any]] = {}

    def begin(self, table: int, game: Any, agents: Sequence[str]) -> None:
        for agent in agents:
            self._spaces[table, agent] = game.action_space(agent)

    def act(self, turns: Sequence[Turn], rng: np.random.Generator) -> list[Any]:
        return [random_action(self._spaces[turn.table, turn.agent], mask_of(turn), rng) for turn in turns]


class FunctionPlayer:
    """Calls a function of the user."""

    watches, legal = False, False

    def __init__(self, function: PlayerFunction, name: str) -> None:
        self.function, self.name = function, name
        self._takes_rng = takes_rng(function)
        self._spaces: dict[tuple[int, str], Space[Any]] = {}

    def begin(self, table: int, game: Any, agents: Sequence[str]) -> None:
        for agent in agents:
            self._spaces[table, agent] = game.action_space(agent)

    def act(self, turns: Sequence[Turn], rng: np.random.Generator) -> list[Any]:
        return [self._action(turn, rng) for turn in turns]

    def _action(self, turn: Turn, rng: np.random.Generator) -> Any:
        mask, seen = mask_of(turn), split_observation(turn.observation)[0]
        try:
            action = self.function(seen, mask, rng=rng) if self._takes_rng else self.function(seen, mask)
        except Exception as error:
            raise RunFault(f"player '{self.name}' raised {type(error).__name__}: {reason(error)}") from error
        space = self._spaces[turn.table, turn.agent]
        if isinstance(space, spaces.Discrete) and isinstance(action, np.ndarray) and action.ndim == 0:
            action = action[()]
        if not space.contains(action):
            raise RunFault(
                f"player '{self.name}' returned {str(action)[:60]!r} for agent '{turn.agent}', which is not an action "
                f"of {space}"
            )
        if (
            mask is not None
            and isinstance(space, spaces.Discrete)
            and not mask[int(action) - int(space.start)]
        ):
            allowed = ", ".join(str(each) for each in allowed_actions(space, mask))
            raise RunFault(
                f"player '{self.name}' returned action {action} for agent '{turn.agent}', which is not allowed now; "
                f"allowed are {allowed}"
            )
        return action


class _Seated:
    """What a policy sees at one table, and the memory of its agents there."""

    def __init__(self, game: Any, config: TrainConfig) -> None:
        self.game, self.views = game, SeatViews(game, config)
        self.memory: dict[str, PolicyState] = {}
        self.acted: set[str] = set()


class PolicyPlayer:
    """Plays with the policy of an agent, which sees the game as its config says."""

    def __init__(
        self, game: Game, policy: Policy, config: TrainConfig, name: str, *, deterministic: bool = True
    ) -> None:
        """`game` describes the agents as the policy was trained with them."""
        self.game, self.config, self.name, self.deterministic = game, config, name, deterministic
        self.watches = config.algorithm.has_memory or config.algorithm.central_critic
        self.legal = all(seat.masked for seat in game.seats)
        self._tables: dict[int, _Seated] = {}
        self._teams = [_TeamPlayer(team, _policy_of(policy, team.name)) for team in game.teams]
        self._place = {seat.name: (team, number) for team in self._teams for number, seat in team.seats}

    def begin(self, table: int, game: Any, agents: Sequence[str]) -> None:
        seated = self._tables.get(table)
        if seated is None or seated.game is not game:
            seated = self._tables[table] = _Seated(game, self.config)
        seated.views.restart()
        seated.memory.clear()
        seated.acted.clear()

    def act(self, turns: Sequence[Turn], rng: np.random.Generator) -> list[Any]:
        found: list[Any] = [None] * len(turns)
        for team in self._teams:
            own = [number for number, turn in enumerate(turns) if self._place[turn.agent][0] is team]
            if not own:
                continue
            rows = [(turns[each], self._place[turns[each].agent][1]) for each in own]
            actions = team.act(rows, self._tables, rng, deterministic=self.deterministic)
            for number, action in zip(own, actions, strict=True):
                found[number] = action
        return found


class _TeamPlayer:
    """The seats of one policy."""

    def __init__(self, team: Team, policy: Policy) -> None:
        self.team, self.policy = team, policy
        self.seats: list[tuple[int, Seat]] = list(enumerate(team.seats))
        self._adapter = ActionAdapter(team.action_space)
        self._scratch = TeamRows.empty(team)
        self._fresh = policy.initial_state(1)

    def act(
        self,
        turns: Sequence[tuple[Turn, int]],
        tables: dict[int, _Seated],
        rng: np.random.Generator,
        *,
        deterministic: bool,
    ) -> list[Any]:
        """Return the actions for turns, each with the number of its seat in the team."""
        scratch, count = self._scratch, len(turns)
        batch = {key: np.empty((count, *part.shape[1:]), part.dtype) for key, part in scratch.obs.items()}
        masks = None if scratch.mask is None else np.empty((count, scratch.mask.shape[1]), np.bool_)
        for row, (turn, number) in enumerate(turns):
            views = tables[turn.table].views
            obs, said = views.of(turn.agent, turn.observation)
            self._write(number, None if obs is None else dict(nested_leaves(obs)))
            scratch.allow(number, views.mask(turn.agent, said, turn.info) if turn.acts else None)
            for key, part in scratch.obs.items():
                batch[key][row] = part[number]
            if masks is not None and scratch.mask is not None:
                masks[row] = scratch.mask[number]
        if masks is not None:
            batch[MASK_KEY] = masks
        memory = self._memory(turns, tables)
        chosen, memory = self.policy.act(joined(batch), memory, deterministic=deterministic, rng=rng)
        self._remember(turns, tables, memory)
        flat = self._adapter.to_env(chosen).reshape(count, -1)
        return [
            self.team.env_action(self.team.seats[number], action)
            for (_, number), action in zip(turns, flat, strict=True)
        ]

    def _write(self, number: int, leaves: dict[str, Any] | None) -> None:
        try:
            self._scratch.write(number, leaves)
        except (KeyError, ValueError, TypeError) as error:
            seat = self.team.seats[number]
            raise InvalidResult(
                f"returned an observation of agent '{seat.name}' that does not fit its space "
                f"{seat.observation_space}: {error}"
            ) from None

    def _memory(self, turns: Sequence[tuple[Turn, int]], tables: dict[int, _Seated]) -> PolicyState:
        own = [tables[turn.table].memory.get(turn.agent, self._fresh) for turn, _ in turns]
        return tuple(np.concatenate(parts) for parts in zip(*own, strict=True))

    def _remember(
        self, turns: Sequence[tuple[Turn, int]], tables: dict[int, _Seated], memory: PolicyState
    ) -> None:
        """Keep the memory of each agent; it begins with the agent's first own action."""
        if not memory:
            return
        for row, (turn, _) in enumerate(turns):
            seated = tables[turn.table]
            if turn.acts:
                seated.acted.add(turn.agent)
            if turn.agent in seated.acted:
                seated.memory[turn.agent] = tuple(part[row : row + 1].copy() for part in memory)


def _policy_of(policy: Policy, team: str) -> Policy:
    return policy.teams[team] if isinstance(policy, TeamsPolicy) else policy  # type: ignore[return-value]  # a policy


def takes_rng(function: PlayerFunction) -> bool:
    """Return whether a function has a parameter `rng`."""
    try:
        return "rng" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False


def mask_of(turn: Turn) -> Array | None:
    """Return the mask of a turn, from the observation or else from the info; None if the game has none."""
    said = split_observation(turn.observation)[1]
    said = turn.info.get(MASK) if said is None else said
    return None if said is None else np.asarray(said).astype(np.bool_).reshape(-1)


def allowed_actions(space: spaces.Discrete, mask: Array | None) -> list[int]:
    """Return the allowed actions of a Discrete space, in units of the game."""
    count = int(space.n)
    found = np.arange(count) if mask is None else np.flatnonzero(mask)
    return [int(each) + int(space.start) for each in found]


def random_action(space: Space[Any], mask: Array | None, rng: np.random.Generator) -> Any:
    """Return an action drawn uniformly from those that are allowed, in units of the game."""
    if isinstance(space, spaces.Discrete):
        if mask is not None and len(mask) != int(space.n):
            raise InvalidResult(f"gave an action mask of {len(mask)} entries for {space}")
        return int(rng.choice(allowed_actions(space, mask)))
    if isinstance(space, spaces.Box):
        low, high = np.maximum(space.low, -1e3), np.minimum(space.high, 1e3)
        if np.issubdtype(space.dtype, np.integer):
            return rng.integers(low, high, endpoint=True).astype(space.dtype)
        return rng.uniform(low, high).astype(space.dtype)
    counts = mask_counts(space)
    assert counts is not None, "spaces of actions are Box, Discrete, MultiDiscrete or MultiBinary"
    allowed = np.ones(sum(counts), np.bool_) if mask is None or len(mask) != sum(counts) else mask
    parts = np.split(allowed, np.cumsum(counts)[:-1])
    drawn = np.array([rng.choice(np.flatnonzero(part) if part.any() else len(part)) for part in parts])
    start = getattr(space, "start", 0)
    return (drawn.reshape(space.shape) + start).astype(space.dtype)
