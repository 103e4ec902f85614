"""Statistics of a benchmark against loops over fractions, and against what rliable said of the same resamples."""

import json
import time
from fractions import Fraction

import numpy as np
import pytest

from loading import ROOT
from rl_training.lab import statistics
from rl_training.lab.statistics import Estimate, Published, verdict

FIXTURE = json.loads((ROOT / "tests" / "fixtures" / "rliable_statistics.json").read_text(encoding="utf-8"))
AGGREGATES = ("mean", "median", "iqm", "optimality_gap")
RAGGED = [[3.0, 1.0, 2.5, -4.0, 0.5], [0.25, 0.75], [1.0, 1.0, 9.0, -2.0, 0.0, 0.5, 0.125]]
THEIRS = [[2.0, 1.0, 0.5], [0.25, 0.25, 0.5, 0.0], [1.0, 0.0]]


def arrays(tasks):
    return [np.array(task) for task in tasks]


def fractions(tasks):
    return [[Fraction(score) for score in task] for task in tasks]


def slow_mean(tasks):
    return sum(sum(task) / len(task) for task in tasks) / len(tasks)


def middle(values):
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def slow_median(tasks):
    return middle([sum(task) / len(task) for task in tasks])


def slow_iqm(tasks):
    kept = sorted(score for task in tasks for score in task)
    for _ in range(len(kept) // 4):
        kept.remove(min(kept))
        kept.remove(max(kept))
    return sum(kept) / len(kept)


def slow_optimality_gap(tasks):
    runs = [score for task in tasks for score in task]
    return sum(1 - score if score < 1 else 0 for score in runs) / len(runs)


def slow_median_of_runs(tasks):
    return middle([score for task in tasks for score in task])


def slow_share(tasks, threshold):
    runs = [score for task in tasks for score in task]
    return Fraction(len([score for score in runs if score > threshold]), len(runs))


def slow_improvement(ours, theirs):
    total = Fraction(0)
    for our, their in zip(ours, theirs, strict=True):
        points = Fraction(0)
        for one in our:
            for other in their:
                points += 1 if one > other else Fraction(1, 2) if one == other else 0
        total += points / (len(our) * len(their))
    return total / len(ours)


def slow_percentile(values, percent):
    """Return the value at a place between ordered values, by their neighbours."""
    ordered = sorted(values)
    place = Fraction(percent) / 100 * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def slow_interval(values):
    return slow_percentile(values, "2.5"), slow_percentile(values, "97.5")


def resample(tasks, draws, number):
    return [[task[i] for i in drawn[number]] for task, drawn in zip(tasks, draws, strict=True)]


def slow_draws(choice, counts, tasks, resamples):
    """Return draws as rliable makes them, rearranged: per task [resamples, runs]."""
    drawn = [[choice.choice(count, (count, tasks)) for count in counts] for _ in range(resamples)]
    return [
        [np.stack([rounds[side][:, task] for rounds in drawn]) for task in range(tasks)]
        for side in range(len(counts))
    ]


def triple(estimate):
    return [estimate.value, estimate.low, estimate.high]


SLOW = {
    "mean": slow_mean,
    "median": slow_median,
    "iqm": slow_iqm,
    "optimality_gap": slow_optimality_gap,
    "median_of_runs": slow_median_of_runs,
}


@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize("tasks", [RAGGED, RAGGED[:1], RAGGED[1:2], THEIRS])
def test_a_statistic_and_its_interval_equal_loops_over_fractions(name, tasks):
    draws = statistics.draw([len(task) for task in tasks], resamples=60, seed=3)
    found = statistics.estimate(getattr(statistics, name), arrays(tasks), draws)
    exact = fractions(tasks)
    values = [SLOW[name](resample(exact, draws, number)) for number in range(60)]
    expected = [SLOW[name](exact), *slow_interval(values)]
    np.testing.assert_allclose(triple(found), [float(value) for value in expected], rtol=0, atol=1e-9)


def test_a_profile_equals_loops_over_fractions():
    thresholds = np.array([-5.0, -2.0, 0.0, 0.25, 0.5, 1.0, 9.0])
    draws = statistics.draw([len(task) for task in RAGGED], resamples=60, seed=4)
    found = statistics.performance_profile(arrays(RAGGED), thresholds, draws)
    for place, threshold in enumerate(thresholds):
        values = [slow_share(resample(RAGGED, draws, number), threshold) for number in range(60)]
        low, high = slow_interval(values)
        assert found.value[place] == pytest.approx(float(slow_share(RAGGED, threshold)), abs=1e-9)
        assert found.low[place] == pytest.approx(float(low), abs=1e-9)
        assert found.high[place] == pytest.approx(float(high), abs=1e-9)
    assert found.value[0] == 1
    assert found.value[-1] == 0, "greater, not as great"


def test_the_probability_of_improvement_equals_loops_over_fractions():
    draws = statistics.draw([len(task) for task in RAGGED], resamples=60, seed=5)
    their_draws = statistics.draw([len(task) for task in THEIRS], resamples=60, seed=6)
    found = statistics.improvement(arrays(RAGGED), arrays(THEIRS), draws, their_draws)
    values = [
        slow_improvement(resample(RAGGED, draws, number), resample(THEIRS, their_draws, number))
        for number in range(60)
    ]
    expected = [slow_improvement(RAGGED, THEIRS), *slow_interval(values)]
    np.testing.assert_allclose(triple(found), [float(value) for value in expected], rtol=0, atol=1e-9)


def test_a_curve_resamples_whole_runs():
    runs = [np.array([[0.0, 1.0, 4.0], [1.0, 1.0, 2.0], [5.0, 0.0, 3.0], [2.0, 2.0, 2.0]]), np.eye(3)[:2]]
    draws = statistics.draw([4, 2], resamples=50, seed=0)
    found = statistics.curve(runs, np.array([10.0, 20.0, 30.0]), draws)
    for point in range(3):
        scores = [[Fraction(float(run[point])) for run in task] for task in runs]
        values = [slow_iqm(resample(scores, draws, number)) for number in range(50)]
        expected = [slow_iqm(scores), *slow_interval(values)]
        told = [found.value[point], found.low[point], found.high[point]]
        np.testing.assert_allclose(told, [float(value) for value in expected], rtol=0, atol=1e-9)


@pytest.mark.parametrize("case", FIXTURE["cases"])
def test_the_same_resamples_give_the_numbers_of_rliable(case):
    runs, baseline = np.array(case["runs"]), np.array(case["baseline"])
    tasks, num_tasks, resamples = list(runs.T), runs.shape[1], case["resamples"]
    (draws,) = slow_draws(np.random.RandomState(case["seed"]), [len(runs)], num_tasks, resamples)
    for name in AGGREGATES:
        found = statistics.estimate(getattr(statistics, name), tasks, draws)
        np.testing.assert_allclose(triple(found), case["aggregates"][name], rtol=0, atol=1e-9)
    profile = statistics.performance_profile(tasks, np.array(case["thresholds"]), draws)
    np.testing.assert_allclose([profile.value, profile.low, profile.high], case["profile"], rtol=0, atol=1e-9)
    pair = slow_draws(np.random.RandomState(case["seed"]), [len(runs), len(baseline)], num_tasks, resamples)
    found = statistics.improvement(tasks, list(baseline.T), *pair)
    np.testing.assert_allclose(triple(found), case["improvement"], rtol=0, atol=1e-9)


@pytest.mark.extra
def test_rliable_itself_says_the_same():
    metrics = pytest.importorskip("rliable.metrics", reason="rliable is not installed: run make test-extras")
    scores = np.random.default_rng(0).normal(size=(7, 5))
    baseline = np.random.default_rng(1).normal(size=(4, 5))
    for name in AGGREGATES:
        ours = getattr(statistics, name)(list(scores.T))
        assert float(ours) == pytest.approx(float(getattr(metrics, f"aggregate_{name}")(scores)), abs=1e-9)
    theirs = metrics.probability_of_improvement(scores, baseline)
    ours = statistics.probability_of_improvement(list(scores.T), list(baseline.T))
    assert ours == pytest.approx(float(theirs), abs=1e-9)


def test_draws_stay_within_their_task_and_follow_from_the_seed():
    draws = statistics.draw([2, 5], resamples=4000, seed=1)
    assert [drawn.shape for drawn in draws] == [(4000, 2), (4000, 5)]
    for count, drawn in zip([2, 5], draws, strict=True):
        shares = np.bincount(drawn.ravel(), minlength=count) / drawn.size
        np.testing.assert_allclose(shares, 1 / count, atol=0.02)
    again, other = (statistics.draw([2, 5], resamples=4000, seed=seed) for seed in (1, 2))
    assert all(map(np.array_equal, draws, again))
    assert not all(map(np.array_equal, draws, other))


def test_one_run_in_a_task_gives_no_interval():
    tasks = arrays([[1.0, 2.0, 3.0], [4.0]])
    draws = statistics.draw([3, 1])
    assert statistics.estimate(statistics.mean, tasks, draws) == Estimate(3.0, None, None)
    profile = statistics.performance_profile(tasks, np.array([0.0, 3.5]), draws)
    np.testing.assert_array_equal(profile.value, [1.0, 0.25])
    assert profile.low is None
    assert profile.high is None
    assert statistics.improvement(tasks, tasks, draws, draws) == Estimate(0.5, None, None)


def test_twenty_tasks_take_less_than_a_second():
    scores = list(np.random.default_rng(0).normal(size=(20, 5)))
    before = time.process_time()
    draws = statistics.draw([5] * 20, resamples=2000)
    for name in AGGREGATES:
        statistics.estimate(getattr(statistics, name), scores, draws)
    statistics.performance_profile(scores, np.linspace(-2, 2, 51), draws)
    statistics.improvement(scores, scores, draws, draws)
    assert time.process_time() - before < 1


@pytest.mark.parametrize(
    ("ours", "published", "expected"),
    [
        (Estimate(10, 9, 11), Published(8, 1, 16), "better"),  # 7.51 to 8.49
        (Estimate(10, 9, 11), Published(8, 1, 3), "equal"),  # 6.87 to 9.13
        (Estimate(10, 9, 11), Published(8, 1), "equal"),  # 7 to 9: touching is overlapping
        (Estimate(10, 9, 11), Published(12, 1, 100), "worse"),
        (Estimate(10, 9, 11), Published(10.9), "equal"),
        (Estimate(10, 9, 11), Published(11.1), "worse"),
        (Estimate(10), Published(8, 1), "better"),
        (Estimate(10), Published(10), "equal"),
    ],
)
def test_a_verdict_follows_from_overlap(ours, published, expected):
    assert verdict(ours, published) == expected


def test_a_published_interval_narrows_with_the_number_of_seeds():
    known = Published(100.0, 10.0, 4).interval
    assert triple(known) == pytest.approx([100.0, 100 - 9.8, 100 + 9.8], abs=0.01)
    assert triple(Published(100.0, 10.0).interval) == [100.0, 90.0, 110.0]
    assert triple(Published(100.0).interval) == [100.0, None, None]
