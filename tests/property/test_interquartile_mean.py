"""What the interquartile mean and its interval obey, whatever the scores are."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.lab import statistics

LAW = settings(deadline=None, database=None, derandomize=True, max_examples=200)
SCORES = st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=1, max_size=40)
TASKS = st.lists(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=6), min_size=1, max_size=4)


@LAW
@given(scores=SCORES)
def test_it_lies_between_the_quartiles(scores: list[float]) -> None:
    low, high = np.quantile(scores, [0.25, 0.75])
    slack = 1e-9 * max(1.0, *map(abs, scores))
    assert low - slack <= float(statistics.iqm([np.array(scores)])) <= high + slack


@LAW
@given(scores=SCORES, seed=st.integers(0, 100), parts=st.integers(1, 5))
def test_neither_order_nor_grouping_matters(scores: list[float], seed: int, parts: int) -> None:
    whole = statistics.iqm([np.array(scores)])
    shuffled = np.random.default_rng(seed).permutation(scores)
    assert float(statistics.iqm(np.array_split(shuffled, parts))) == float(whole)


@LAW
@given(tasks=TASKS, scale=st.floats(0.01, 100.0), shift=st.floats(-100.0, 100.0))
def test_it_and_its_interval_scale_and_shift_with_the_scores(
    tasks: list[list[float]], scale: float, shift: float
) -> None:
    draws = statistics.draw([len(task) for task in tasks], resamples=50)
    before = statistics.estimate(statistics.iqm, [np.array(task) for task in tasks], draws)
    after = statistics.estimate(statistics.iqm, [scale * np.array(task) + shift for task in tasks], draws)
    expected = [
        scale * value + shift for value in (before.value, before.low, before.high) if value is not None
    ]
    np.testing.assert_allclose([after.value, after.low, after.high], expected, rtol=1e-9, atol=1e-6)


@LAW
@given(tasks=TASKS, seed=st.integers(0, 100))
def test_who_is_better_adds_up_to_one(tasks: list[list[float]], seed: int) -> None:
    ours = [np.array(task) for task in tasks]
    theirs = [np.random.default_rng(seed).choice(task, size=3) for task in ours]
    forth = statistics.probability_of_improvement(ours, theirs)
    back = statistics.probability_of_improvement(theirs, ours)
    assert abs(forth + back - 1) < 1e-12
    assert 0 <= forth <= 1
