"""Which snapshots are kept, how often each is drawn, and how ratings and win rates follow from results."""

import json

import numpy as np
import pytest

from rl_training.core.state import join_state, split_state
from rl_training.policies.snapshot_pool import FIRST_RATING, K_FACTOR, RECENT, GameResult, SnapshotPool

WIN, DRAW, LOSS = (GameResult(points, points) for points in (1.0, 0.5, 0.0))


def weights(number: int) -> np.ndarray:
    return np.full(6, number, np.uint8)


def filled(count: int, *, size: int = 10, sampling: str = "uniform") -> SnapshotPool:
    pool = SnapshotPool(size, sampling)
    for number in range(count):
        pool.add(weights(number), 100 * number)
    return pool


class TestMembers:
    @pytest.mark.parametrize(
        ("size", "expected"),
        [(1, [4]), (2, [0, 4]), (3, [0, 3, 4]), (5, [0, 1, 2, 3, 4]), (9, [0, 1, 2, 3, 4])],
    )
    def test_the_first_and_the_newest_ones(self, size, expected):
        pool = filled(5, size=size)
        assert pool.members == expected
        for number in expected:
            assert pool.snapshots[number].timesteps == 100 * number
            assert pool.snapshots[number].weights.tolist() == [number] * 6

    def test_one_that_left_stays_while_it_plays(self):
        pool = filled(4, size=2)
        pool.release({1})
        assert list(pool.snapshots) == [0, 1, 3]
        pool.record(1, WIN)
        assert 1 not in pool.draw(np.random.default_rng(0), 100)
        pool.release({0})
        assert list(pool.snapshots) == [0, 3]


class TestDrawing:
    def frequencies(self, pool: SnapshotPool, count: int = 40_000) -> np.ndarray:
        drawn = pool.draw(np.random.default_rng(5), count)
        assert set(drawn.tolist()) <= set(pool.members)
        return np.array([(drawn == number).mean() for number in pool.members])

    def test_uniform(self):
        assert self.frequencies(filled(4)) == pytest.approx([0.25] * 4, abs=0.01)

    def test_recent_is_by_rank(self):
        found = self.frequencies(filled(6, size=4, sampling="recent"))
        assert found == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.01)

    def test_prioritised_is_by_the_win_rate_of_the_snapshot(self):
        pool = filled(3, sampling="prioritised")
        for result, count in ((WIN, 6), (DRAW, 2)):
            for _ in range(count):
                pool.record(0, result)
        for _ in range(6):
            pool.record(2, LOSS)
        # (losses + draws / 2 + 1) / (games + 2): 2 / 10, 1 / 2 and 7 / 8
        expected = np.array([0.2, 0.5, 0.875])
        assert self.frequencies(pool) == pytest.approx(expected / expected.sum(), abs=0.01)

    def test_prioritised_forgets_old_results(self):
        pool = filled(2, sampling="prioritised")
        for result in (LOSS, WIN):
            for _ in range(RECENT):
                pool.record(1, result)
        assert pool.probabilities == pytest.approx(np.array([0.5, 1 / 102]) / (0.5 + 1 / 102))


class TestRatings:
    def test_by_hand(self):
        pool = filled(2)
        pool.record(0, WIN)  # between equals half of K is gained
        assert (pool.rating, pool.snapshots[0].rating) == (1008.0, 992.0)
        pool.record(1, LOSS)  # 1 / (1 + 10^(-8 / 400)) = 0.511511 was expected
        assert pool.rating == pytest.approx(1008.0 - 16 * 0.511511, abs=1e-4)
        assert pool.snapshots[1].rating == pytest.approx(1000.0 + 16 * 0.511511, abs=1e-4)
        pool.record(0, DRAW)
        assert pool.rating == pytest.approx(999.815824 + 16 * (0.5 - 0.511245), abs=1e-4)
        assert (FIRST_RATING, K_FACTOR) == (1000.0, 16.0)

    def test_a_new_snapshot_has_the_rating_of_the_learner(self):
        pool = filled(1)
        pool.record(0, WIN)
        pool.add(weights(1), 100)
        assert pool.snapshots[1].rating == pool.rating == 1008.0

    @pytest.mark.parametrize(
        ("own", "others", "result", "score"),
        [
            (1.0, [-1.0], 1.0, 1.0),
            (0.0, [0.0], 0.5, 0.5),
            (-1.0, [1.0], 0.0, 0.0),
            (2.0, [1.0, 2.0], 0.5, 0.75),
            (1.0, [0.0, 2.0], 0.0, 0.5),
            (3.0, [1.0, 2.0], 1.0, 1.0),
        ],
    )
    def test_result_and_score(self, own, others, result, score):
        assert GameResult.of(own, np.array(others)) == GameResult(result, score)

    def test_a_result_is_plain_data(self):
        found = GameResult.of(np.float64(1.0), np.array([0.0]))
        assert type(found.result) is type(found.score) is float


class TestMetrics:
    def test_none_before_the_first_game(self):
        assert filled(3).metrics() == {}

    def test_rates_and_ratings(self):
        pool = filled(3)
        for number, result in ((0, WIN), (0, DRAW), (1, LOSS), (2, LOSS)):
            pool.record(number, result)
        ratings = [pool.snapshots[number].rating for number in range(3)]
        assert pool.metrics() == {
            "rollout/win_rate": 1.5 / 4,
            "selfplay/elo": pool.rating,
            "selfplay/pool_size": 3.0,
            "selfplay/pool_elo_min": min(ratings),
            "selfplay/pool_elo_max": max(ratings),
            "selfplay/win_rate_oldest": 0.75,
            "selfplay/win_rate_newest": 0.0,
        }

    def test_no_rate_against_a_snapshot_that_has_not_played(self):
        pool = filled(2)
        pool.record(0, WIN)
        assert "selfplay/win_rate_newest" not in pool.metrics()

    def test_old_games_leave_the_rate(self):
        pool = filled(1)
        for result in (LOSS, WIN):
            for _ in range(RECENT):
                pool.record(0, result)
        assert pool.metrics()["rollout/win_rate"] == 1.0


def test_its_state_survives_a_checkpoint():
    pool = filled(4, size=2, sampling="prioritised")
    pool.release({2})
    for number, result in ((0, WIN), (3, LOSS), (2, DRAW)):
        pool.record(number, result)
    tensors, plain = split_state(pool.state_dict())
    assert len(tensors) == 3
    restored = SnapshotPool(2, "prioritised")
    restored.load_state_dict(join_state(tensors, json.loads(json.dumps(plain))))
    assert restored.metrics() == pool.metrics()
    assert (
        restored.draw(np.random.default_rng(1), 50).tolist()
        == pool.draw(np.random.default_rng(1), 50).tolist()
    )
    for each in (pool, restored):
        each.add(weights(9), 900)
        each.record(4, WIN)
    assert restored.members == pool.members == [0, 4]
    assert list(restored.snapshots) == [0, 2, 3, 4]
    assert restored.rating == pool.rating
    assert restored.snapshots[4].weights.tolist() == [9] * 6


def test_a_smaller_pool_adjusts_when_it_grows():
    restored = SnapshotPool(2, "uniform")
    restored.load_state_dict(filled(5).state_dict())
    restored.add(weights(5), 500)
    assert restored.members == [0, 5]
