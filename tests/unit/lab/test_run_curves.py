"""Several runs on one axis: exact where they were evaluated together, and said where not."""

import numpy as np

from rl_training.lab.run_curves import POINTS, over_steps, over_time, over_training, training_start
from support.benchmarks import run


def test_runs_evaluated_at_the_same_steps_are_taken_as_they_are():
    curves = over_steps([run("Walk", "ppo", 1, [1, 2, 4]), run("Walk", "ppo", 2, [0, 5, 3])])
    np.testing.assert_array_equal(curves.x, [100, 200, 300])
    np.testing.assert_array_equal(curves.rewards, [[1, 2, 4], [0, 5, 3]])
    assert not curves.interpolated


def test_others_are_linear_in_between_as_far_as_all_reach():
    curves = over_steps(
        [run("Walk", "ppo", 1, [1, 2, 4], every=100), run("Walk", "ppo", 2, [0, 10], every=150)]
    )
    np.testing.assert_array_equal(curves.x, [200, 300])
    np.testing.assert_allclose(curves.rewards, [[2, 4], [10 / 3, 10]])
    assert curves.interpolated


def test_runs_without_a_step_in_common_have_no_curve():
    assert over_steps([run("Walk", "ppo", 1, [1], every=100), run("Walk", "ppo", 2, [1], every=900)]) is None


def test_time_is_shared_as_far_as_the_fastest_run_goes():
    slow, fast = (
        run("Walk", "ppo", seed, [0, 10, 20], seconds=seconds) for seed, seconds in [(1, 2.0), (2, 1.0)]
    )
    curves = over_time([slow, fast])
    assert (curves.x[0], curves.x[-1], len(curves.x)) == (2, 3, POINTS)
    np.testing.assert_allclose(curves.rewards[:, 0], [0, 10])
    np.testing.assert_allclose(curves.rewards[:, -1], [5, 20])
    assert curves.interpolated


def test_time_that_is_unknown_or_not_shared_gives_no_curve():
    known = run("Walk", "ppo", 1, [0, 1])
    assert over_time([known, run("Walk", "ppo", 2, [0, 1], seconds=None)]) is None
    assert over_time([known, run("Walk", "ppo", 2, [0, 1], seconds=9.0)]) is None


def test_the_share_of_training_fits_runs_of_any_length():
    short, long = run("Walk", "ppo", 1, [0, 8], every=10), run("Swim", "ppo", 1, [1, 2, 3, 4], every=1000)
    assert training_start([short, long]) == 0.5
    curves = over_training([short, long], 0.5)
    assert (curves.x[0], curves.x[-1]) == (0.5, 1)
    np.testing.assert_allclose(curves.rewards[:, [0, -1]], [[0, 8], [2, 4]])
