"""Win rates with intervals, and Elo ratings: against closed forms and games drawn from known strengths."""

import numpy as np
import pytest

from rl_training.core.ratings import Tally, elo, resampled_points, wilson


@pytest.mark.parametrize(
    ("successes", "total", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (8, 10, 0.4902, 0.9433), (190, 200, 0.9104, 0.9726)],
)
def test_wilson_against_published_values(successes, total, low, high):
    assert wilson(successes, total) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_wilson_covers_the_truth_in_95_of_100_samples():
    rng = np.random.default_rng(0)
    intervals = [wilson(int(rng.binomial(60, 0.8)), 60) for _ in range(2000)]
    covered = np.mean([low <= 0.8 <= high for low, high in intervals])
    assert 0.93 <= covered <= 0.97


def test_a_draw_is_half_a_point():
    tally = Tally()
    for result in ("win", "win", "draw", "loss"):
        tally.add(result)
    rates = tally.rates()
    assert (rates["wins"], rates["draws"], rates["losses"]) == (2, 1, 1)
    assert rates["score"] == 0.625
    assert rates["win_rate"] == 0.5
    assert rates["draw_rate"] == rates["loss_rate"] == 0.25


def test_two_players_have_the_odds_of_their_score():
    """With n games and one drawn game added, the score is (points + 1/2) / (n + 1): its odds give the difference."""
    points, games = np.array([[0.0, 75.0], [25.0, 0.0]]), np.array([[0.0, 100.0], [100.0, 0.0]])
    ratings = elo(points, games)
    assert ratings[0] - ratings[1] == pytest.approx(400 * np.log10(75.5 / 25.5))
    assert ratings.sum() == pytest.approx(0.0)


def test_known_strengths_are_found():
    true = np.array([300.0, 100.0, 0.0, -400.0])
    rng = np.random.default_rng(3)
    points, games = np.zeros((4, 4)), np.zeros((4, 4))
    for a in range(4):
        for b in range(a + 1, 4):
            won = rng.binomial(4000, 1 / (1 + 10 ** ((true[b] - true[a]) / 400)))
            points[a, b], points[b, a] = won, 4000 - won
            games[a, b] = games[b, a] = 4000
    assert elo(points, games) == pytest.approx(true - true.mean(), abs=15)


def test_a_player_who_wins_all_has_a_finite_rating():
    points, games = np.array([[0.0, 50.0], [0.0, 0.0]]), np.array([[0.0, 50.0], [50.0, 0.0]])
    ratings = elo(points, games)
    assert ratings[0] - ratings[1] == pytest.approx(400 * np.log10(50.5 / 0.5))


def test_groups_without_common_games_have_mean_zero_each():
    games = np.zeros((4, 4))
    games[0, 1] = games[1, 0] = games[2, 3] = games[3, 2] = 10
    points = np.zeros((4, 4))
    points[0, 1], points[1, 0], points[2, 3], points[3, 2] = 8, 2, 6, 4
    ratings = elo(points, games)
    assert ratings[:2].sum() == pytest.approx(0.0, abs=1e-4)
    assert ratings[2:].sum() == pytest.approx(0.0, abs=1e-4)
    assert ratings[0] > ratings[2] > 0


def test_resamples_are_rated_like_single_tables():
    results, pairs = np.array([1.0, 0.5, 0.0, 1.0]), np.array([[0, 1], [0, 1], [1, 2], [0, 2]])
    draws = np.array([[0, 1, 2, 3], [0, 0, 2, 3]])
    points, games = resampled_points(results, pairs, 3, draws)
    assert points[0].tolist() == [[0, 1.5, 1], [0.5, 0, 0], [0, 1, 0]]
    assert points[1].tolist() == [[0, 2, 1], [0, 0, 0], [0, 1, 0]]
    assert games[1].tolist() == [[0, 2, 1], [2, 0, 1], [1, 1, 0]]
    both = elo(points, games)
    for row in range(2):
        assert both[row] == pytest.approx(elo(points[row], games[row]))
