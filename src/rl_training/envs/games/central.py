"""What a central critic sees of a game: its state, or the observations of all agents side by side."""

from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from rl_training.core.errors import UserError, reason
from rl_training.core.games import Seat
from rl_training.core.spaces.layout import float_dtype, observation_leaves, space_text
from rl_training.core.types import Array
from rl_training.envs.observations import nested_leaves


class CentralView(Protocol):
    """A vector [C] of the whole game, for critics alone."""

    space: spaces.Box

    def read(self, seen: dict[str, Any]) -> Array:
        """Return the vector now; `seen` are the observations of the agents, None for those that see nothing."""
        ...


class StateView(CentralView):
    """The state that the game itself provides."""

    def __init__(self, game: Any, size: int) -> None:
        self.game = game
        self.space = spaces.Box(-np.inf, np.inf, (size,), float_dtype())
        self._last = np.zeros(size, self.space.dtype)

    def read(self, seen: dict[str, Any]) -> Array:
        """Return the state; the last one again after the game is over, where some games have none."""
        if any(obs is not None for obs in seen.values()):
            self._last = np.asarray(self.game.state(), self.space.dtype).reshape(-1)
        return self._last


class AllObservations(CentralView):
    """The observations of all agents, zeros for those that see nothing."""

    def __init__(self, seats: dict[str, Seat]) -> None:
        self._places: dict[str, dict[str, slice]] = {}
        self._spaces: dict[str, dict[str, Any]] = {}
        start = 0
        for agent, seat in seats.items():
            leaves = observation_leaves(seat.observation_space)
            self._places[agent], self._spaces[agent] = {}, leaves
            for key, leaf in leaves.items():
                if not isinstance(leaf, spaces.Box | spaces.Discrete | spaces.MultiBinary):
                    raise UserError(
                        f"critic_input 'observations' cannot use {space_text(leaf)} of agent {agent}; use Box, "
                        "Discrete or MultiBinary observations, or critic_input 'state'"
                    )
                size = int(leaf.n) if isinstance(leaf, spaces.Discrete) else int(np.prod(leaf.shape))
                self._places[agent][key] = slice(start, start + size)
                start += size
        self.space = spaces.Box(-np.inf, np.inf, (start,), float_dtype())

    def read(self, seen: dict[str, Any]) -> Array:
        found = np.zeros(self.space.shape, self.space.dtype)
        for agent, obs in seen.items():
            if obs is None:
                continue
            for key, part in nested_leaves(obs):
                place, leaf = self._places[agent][key], self._spaces[agent][key]
                if isinstance(leaf, spaces.Discrete):
                    found[place.start + int(part) - int(leaf.start)] = 1.0
                else:
                    found[place] = np.asarray(part, found.dtype).reshape(-1)
        return found


def central_view(game: Any, seats: dict[str, Seat], wanted: str, env_id: str) -> CentralView:
    """Return what a central critic reads; `wanted` is `state`, `observations`, or `auto` for the first that works."""
    if wanted != "observations":
        try:
            game.reset(seed=0)
            state = np.asarray(game.state())
            fits = state.dtype.kind in "biuf" and state.ndim == 1
            problem = (
                f"its state has shape {state.shape} and type {state.dtype}, and is not a vector of numbers"
            )
        except Exception as error:  # most games raise NotImplementedError
            fits, problem = False, f"its state() raised {type(error).__name__}: {reason(error)}"
        if fits:
            return StateView(game, state.size)
        if wanted == "state":
            raise UserError(
                f"critic_input is 'state', but game '{env_id}' has none: {problem}; use observations"
            )
    return AllObservations(seats)
