"""What a report says as data: which runs are counted together, and what is not said."""

import numpy as np
import pytest

from rl_training.core.errors import UserError
from rl_training.lab import statistics
from rl_training.lab.benchmark_summary import Settings, summarise
from rl_training.lab.benchmark_text import COVERAGE, remarks
from rl_training.lab.statistics import Estimate, Published
from support.benchmarks import run, runs

WALK, SWIM = [10.0, 20.0, 30.0, 70.0], [-5.0, -1.0, -3.0]
RECORDS = [*runs("Walk", "ppo", WALK), *runs("Swim", "ppo", SWIM)]
REFERENCES = {"Walk": (0.0, 100.0), "Swim": (-10.0, 0.0), "Fly": (0.0, 1.0)}


def test_scores_per_task_are_raw_and_in_the_order_of_seeds():
    swim, walk = summarise(RECORDS[::-1]).tasks
    assert (swim.task, walk.task) == ("Swim", "Walk")
    assert [record.seed for record in walk.runs] == [1, 2, 3, 4]
    assert (walk.iqm.value, walk.mean.value, walk.median.value) == (25.0, 32.5, 25.0)
    assert (swim.iqm.value, swim.mean.value, swim.median.value) == (-3.0, -3.0, -3.0)
    draws = statistics.draw([4], resamples=2000, seed=0)
    assert walk.iqm == statistics.estimate(statistics.iqm, [np.array(WALK)], draws)


def test_the_best_is_beside_the_score_and_is_none():
    (entry,) = summarise([run("Walk", "ppo", 1, [1, 9, 2]), run("Walk", "ppo", 2, [7, 3, 4])]).tasks
    assert entry.mean.value == 3
    assert entry.best == 8


def test_only_normalised_scores_are_aggregated():
    assert summarise(RECORDS).aggregates == []
    assert "No references are given, so scores are not normalised or aggregated over tasks." in remarks(
        summarise(RECORDS)
    )
    (total,) = summarise(RECORDS, references=REFERENCES).aggregates
    assert (total.tasks, total.num_runs) == (["Swim", "Walk"], 7)
    scores = [np.array([0.5, 0.9, 0.7]), np.array([0.1, 0.2, 0.3, 0.7])]
    draws = statistics.draw([3, 4], resamples=2000, seed=0)
    for name in ("iqm", "mean", "median", "optimality_gap"):
        expected = statistics.estimate(getattr(statistics, name), scores, draws)
        found = getattr(total, name)
        assert [found.value, found.low, found.high] == pytest.approx(
            [expected.value, expected.low, expected.high]
        )
    assert total.profile.x[0] == 0
    assert total.profile.x[-1] == 1
    assert total.over_training.value[-1] == pytest.approx(total.iqm.value)


def test_the_curve_over_tasks_begins_where_all_of_them_have_been_evaluated():
    """Before that, a task has no evaluation to interpolate from."""
    often, seldom = run("Walk", "ppo", 1, [0, 10, 20, 100]), run("Swim", "ppo", 1, [-10, 0])
    (total,) = summarise([often, seldom], references=REFERENCES).aggregates
    assert (total.over_training.x[0], total.over_training.x[-1]) == (0.5, 1.0)
    assert total.over_training.value[0] == pytest.approx((0.1 + 0.0) / 2)


def test_tasks_without_references_are_left_out_and_named():
    summary = summarise(RECORDS, references={"Walk": (0.0, 100.0)})
    (total,) = summary.aggregates
    assert total.tasks == ["Walk"]
    assert "Not aggregated, because there are no references: Swim." in remarks(summary)


def test_aggregates_over_different_tasks_are_said_to_differ():
    summary = summarise([*RECORDS, *runs("Walk", "dqn", WALK)], references=REFERENCES)
    assert [entry.name for entry in summary.aggregates] == ["dqn", "ppo"]
    assert "Aggregates are over different tasks, so they cannot be compared with each other." in remarks(
        summary
    )


def test_an_entry_does_not_depend_on_what_else_is_reported():
    alone = summarise(runs("Walk", "ppo", WALK)).tasks[0]
    among = summarise(RECORDS).tasks[1]
    assert (alone.iqm, alone.mean, alone.median) == (among.iqm, among.mean, among.median)


def test_the_seed_decides_the_intervals():
    one, again, other = (summarise(RECORDS, settings=Settings(40, seed)).tasks[1] for seed in (1, 1, 2))
    assert one.mean == again.mean
    assert one.mean.value == other.mean.value
    assert one.mean != other.mean


def test_one_seed_gives_no_interval_and_says_so():
    summary = summarise([*runs("Walk", "ppo", WALK), *runs("Swim", "ppo", [-2.0])], references=REFERENCES)
    swim = summary.tasks[0]
    assert swim.iqm == swim.mean == swim.median == Estimate(-2.0, None, None)
    assert swim.over_steps.low is None
    (total,) = summary.aggregates
    assert total.iqm.low is None, "its spread over seeds is not known"
    assert total.profile.low is None
    assert "ppo on Swim has only one seed, so there is no interval." in remarks(summary)


def test_a_baseline_of_the_same_name_is_preferred_and_an_only_one_taken():
    baseline = [*runs("Walk", "ppo", [20.0, 25.0], first_seed=7), *runs("Walk", "sac", [99.0, 98.0])]
    (found,) = summarise(RECORDS, baseline=baseline).improvements
    assert (found.name, found.baseline, list(found.per_task)) == ("ppo", "ppo", ["Walk"])
    assert found.overall.value == found.per_task["Walk"].value == 4.5 / 8
    (only,) = summarise(RECORDS, baseline=baseline[2:]).improvements
    assert (only.baseline, only.overall.value) == ("sac", 0.0)


def test_what_the_baseline_lacks_is_said():
    summary = summarise(RECORDS, baseline=runs("Walk", "ppo", [1.0, 2.0]))
    assert "Not in the baseline: ppo on Swim." in remarks(summary)
    strange = summarise(RECORDS, baseline=[*runs("Walk", "a", [1.0]), *runs("Walk", "b", [1.0])])
    assert strange.improvements == []
    assert "Not in the baseline: ppo on Swim, ppo on Walk." in remarks(strange)


def test_both_sides_of_a_comparison_are_resampled_independently():
    same = runs("Walk", "ppo", WALK)
    (found,) = summarise(same, baseline=same).improvements
    assert found.overall.value == 0.5
    assert found.overall.low < 0.4 < 0.6 < found.overall.high, "the same draws would always give one half"


def test_published_figures_are_judged_by_the_mean():
    published = {("ppo", "Walk"): Published(500.0, 1.0, 3), ("ppo", "Fly"): Published(1.0)}
    (found,) = summarise(RECORDS, published=published).comparisons
    assert (found.name, found.task, found.num_seeds, found.verdict) == ("ppo", "Walk", 4, "worse")
    assert found.ours.value == 32.5


def test_runs_of_different_lengths_are_told():
    summary = summarise([run("Walk", "ppo", 1, [1, 2, 3]), run("Walk", "ppo", 2, [1, 2])])
    told = remarks(summary)
    assert (
        "The runs of ppo on Walk end at different steps, 200 to 300; each score is from the end of its run."
        in told
    )
    assert any("evaluated at different steps; their curve is interpolated linearly" in line for line in told)


def test_curves_that_cannot_be_drawn_are_told():
    apart = [
        run("Walk", "ppo", 1, [1], every=100, seconds=None),
        run("Walk", "ppo", 2, [1], every=900, seconds=None),
    ]
    told = remarks(summarise(apart))
    assert (
        "The runs of ppo on Walk have no range of steps in common, so there is no curve over steps." in told
    )
    assert any("no curve over time" in line for line in told)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (([],), "there are no runs to report"),
        (([*RECORDS, RECORDS[0]],), "two runs of ppo on Walk with seed 1; keep one"),
        ((RECORDS, []), "the baseline has no runs; leave it out"),
        (
            (RECORDS, None, {"Walk": (5.0, 5.0)}),
            "the references of Walk are 5.0 and 5.0; the first must be lower",
        ),
        ((RECORDS, None, {"Walk": (0.0, float("nan"))}), "the references of Walk are 0.0 and nan"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(arguments, told):
    with pytest.raises(UserError, match=told):
        summarise(*arguments)


def test_intervals_of_few_seeds_are_as_narrow_as_the_report_says():
    rng = np.random.default_rng(0)
    for seeds, percent in COVERAGE.items():
        samples = rng.normal(size=(3000, seeds))
        (draws,) = statistics.draw([seeds], resamples=500)
        low, high = statistics.interval(samples[:, draws].mean(axis=-1).T)
        assert np.mean((low <= 0) & (high >= 0)) * 100 == pytest.approx(percent, abs=2.5)
