"""Shows a game as text: as the game renders itself, or by what an agent sees of a small board."""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.core.errors import UserError
from rl_training.core.spaces.layout import space_text
from rl_training.core.types import Array
from rl_training.envs.games.seats import split_observation, without_mask

ANSI = "ansi"
MAX_BOARD = 20
"""Rows and columns of the largest board that is printed."""
MARKS = ".XO"
"""A free square, one of the agent's own, and one of the other's."""
Show = Callable[[Any, str, Any], str]
"""Returns the text for a game, an agent and its observation."""


def render_mode_for(game: Any) -> str | None:
    """Return `ansi` if a game renders as text."""
    modes = getattr(game, "metadata", {}).get("render_modes") or ()
    return ANSI if ANSI in modes else None


def shown_by(game: Any, agent: str, env_id: str) -> Show:
    """Return what shows a game to an agent; raise an error if it cannot be shown as text."""
    if getattr(game, "render_mode", None) == ANSI:
        return lambda game, agent, observation: str(game.render())
    space = without_mask(game.observation_space(agent))
    if is_board(space):
        return lambda game, agent, observation: board_text(np.asarray(split_observation(observation)[0]))
    raise UserError(
        f"game '{env_id}' cannot be shown in a terminal: it has no render_mode '{ANSI}', and agent '{agent}' sees "
        f"{space_text(space)}, which is not a small board"
    )


def is_board(space: Any) -> bool:
    """Return whether observations are a board: a plane of digits, or two planes, of own and of other pieces."""
    if (
        not isinstance(space, spaces.Box)
        or not 2 <= len(space.shape) <= 3
        or max(space.shape[:2]) > MAX_BOARD
    ):
        return False
    if len(space.shape) == 3:
        return space.shape[2] == 2 and bool((space.low == 0).all() and (space.high == 1).all())
    whole = np.issubdtype(space.dtype, np.integer)
    return bool(whole and (space.low >= 0).all() and (space.high <= 9).all())


def board_text(board: Array) -> str:
    """Return a board [H, W], or [H, W, 2] with own pieces as X and those of the other as O.

    >>> print(board_text(np.array([[[1, 0], [0, 0]], [[0, 0], [0, 1]]])))
    X .
    . O
    """
    if board.ndim == 2:
        return "\n".join(" ".join(str(int(each)) for each in row) for row in board)
    pieces = (board[..., 0] > 0) + 2 * (board[..., 1] > 0)
    return "\n".join(" ".join(MARKS[min(int(each), 2)] for each in row) for row in pieces)
