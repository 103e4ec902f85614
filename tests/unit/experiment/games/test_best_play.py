"""The perfect tic-tac-toe player: it never loses, and chooses among all best moves."""

import time
from collections import Counter

import numpy as np
import pytest

from loading import load_file
from rl_training.config import TrainConfig
from rl_training.experiment.games.judging import judge, rules_of, summary_of
from rl_training.experiment.games.players import FunctionPlayer, RandomPlayer

SIDES = {"player_1": ("player_1",), "player_2": ("player_2",)}


@pytest.fixture(scope="module")
def best_play():
    return load_file("scripts/best_play.py")


def seen(text):
    """Return the observation of a board that is written with X for own pieces and O for those of the other."""
    squares = [[mark == "X", mark == "O"] for mark in text.replace(" ", "")]
    return np.array(squares, np.int8).reshape(3, 3, 2)


def moves(best_play, text):
    board, rng = seen(text), np.random.default_rng(0)
    mask = 1 - board.reshape(9, 2).sum(axis=1)
    return Counter(best_play.tic_tac_toe(board, mask, rng) for _ in range(300))


@pytest.mark.parametrize(
    ("board", "best"),
    [
        ("... ... ...", set(range(9))),  # every first move draws
        ("XX. OO. ...", {2}),  # wins
        ("XX. OO. .X.", {2}),
        ("X.. OO. X..", {5}),  # must block
        ("O.. ... ...", {4}),  # the only answer to a corner
        ("... .O. ...", {0, 2, 6, 8}),  # the answers to the centre
        ("O.. .X. ..O", {1, 3, 5, 7}),  # corners would lose
        ("O.O .X. ...", {1}),  # must block
    ],
)
def test_best_moves(best_play, board, best):
    found = moves(best_play, board)
    assert set(found) == best
    assert max(found.values()) < 2 * min(found.values())  # uniformly


def test_it_never_loses_and_draws_with_itself(best_play):
    pytest.importorskip("pygame")
    rules = rules_of(TrainConfig(algo="ppo", env_id="pettingzoo://classic/tictactoe_v3"), None, SIDES)
    player = FunctionPlayer(best_play.tic_tac_toe, "best")
    found = summary_of(judge(rules, player, RandomPlayer(), games=200, seed=1), SIDES)
    assert found["losses"] == 0
    assert found["win_rate"] > 0.8  # of the first player's games 97%, of the second one's 78%
    found = summary_of(judge(rules, player, player, games=20, seed=1), SIDES)
    assert found["draws"] == 20


def test_other_squares_are_reported(best_play):
    with pytest.raises(ValueError, match="are not the allowed moves"):
        best_play.tic_tac_toe(seen("X.. ... ..."), np.ones(9), np.random.default_rng(0))


def test_it_is_fast(best_play):
    board, mask, rng = seen("..." * 3), np.ones(9), np.random.default_rng(0)
    best_play.tic_tac_toe(board, mask, rng)
    start = time.perf_counter()
    for _ in range(1000):
        best_play.tic_tac_toe(board, mask, rng)
    assert time.perf_counter() - start < 1.0
