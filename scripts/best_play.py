"""Perfect players of small games, to measure agents against: `--against scripts.best_play:tic_tac_toe`.

They choose uniformly among all moves that keep the best result that is still possible.
"""

from functools import cache
from typing import Any

import numpy as np

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
EMPTY, OWN, OTHER = range(3)
Board = tuple[int, ...]
"""The nine squares, as the player sees them who moves."""


def tic_tac_toe(observation: Any, mask: Any, rng: np.random.Generator) -> int:
    """Return a best move; `observation` [3, 3, 2] marks the player's own squares and those of the other."""
    squares = np.asarray(observation).reshape(9, 2)
    board = tuple(int(square[0] + 2 * square[1]) for square in squares)
    if mask is not None and [not square for square in board] != [bool(each) for each in mask]:
        raise ValueError(f"the free squares of {board} are not the allowed moves {list(mask)}")
    return int(rng.choice(best_moves(board)))


@cache
def best_moves(board: Board) -> tuple[int, ...]:
    """Return all moves with the best result."""
    results = {move: -value(after(board, move)) for move, square in enumerate(board) if square == EMPTY}
    best = max(results.values())
    return tuple(move for move, result in results.items() if result == best)


@cache
def value(board: Board) -> int:
    """Return the result of best play for the player who moves: 1, 0 or -1."""
    if any(all(board[square] == OTHER for square in line) for line in LINES):
        return -1
    if EMPTY not in board:
        return 0
    return max(-value(after(board, move)) for move, square in enumerate(board) if square == EMPTY)


def after(board: Board, move: int) -> Board:
    """Return the board after a move, as the other player sees it."""
    swapped = (EMPTY, OTHER, OWN)
    return tuple(OTHER if number == move else swapped[square] for number, square in enumerate(board))
