"""The throughput model with invented costs, whose answers are known."""

from dataclasses import replace

import pytest

from rl_training.config import TrainConfig
from rl_training.config.train_config import MAX_LEARNERS, MAX_SAMPLERS
from rl_training.experiment.planning import plan_from
from rl_training.experiment.throughput import (
    DEFAULT,
    Costs,
    Layout,
    Linear,
    advice,
    choose_engine,
    predict,
    predictions,
)

MICROSECOND = 1e-6


def costs(collect: float, update: float, **more) -> Costs:
    """Return costs in microseconds per environment step, for 8 environments and rollouts of 256 steps."""
    half = Linear(each=collect / 2 * MICROSECOND)
    return Costs(num_envs=8, num_steps=32, step=half, act=half, update=update * 256 * MICROSECOND, **more)


def two_samplers(lag: int, **more) -> Layout:
    return Layout(engine="process", env_groups=2, lag=lag, num_samplers=2, **more)


@pytest.mark.parametrize(
    ("collect", "update", "lag_0", "lag_1"),
    [
        (21, 37, 1.22, 1.57),
        (61, 28, 1.53, 2.0),
        (950, 2_330, 1.17, 1.28),
        (1_046, 31, 1.94, 2.0),
        (439, 8_135, 1.03, 1.04),
    ],
)
def test_critical_paths_without_overheads(collect, update, lag_0, lag_1):
    """With lag 1, two samplers and the learner share two cores; short rollouts leave the learner alone."""
    known = costs(collect, update)
    assert predict(known, two_samplers(0), 2).speedup == pytest.approx(lag_0, abs=0.01)
    assert predict(known, two_samplers(1), 2).speedup == pytest.approx(lag_1, abs=0.01)


def test_the_default_is_the_sum_of_its_parts():
    found = predict(costs(61, 28), DEFAULT, 2)
    assert found.steps_per_second == pytest.approx(1e6 / 89)
    assert found.speedup == 1.0


def test_overheads_keep_a_run_below_the_limit():
    known = costs(61, 28, message=1e-4, snapshot=Linear(1e-4, 1e-5), receive=1e-4, copy_per_byte=1e-10)
    found = predict(known, two_samplers(1), 2)
    assert 1.8 < found.speedup < 2.0


def test_one_sampler_leaves_the_other_core_to_the_update():
    one = Layout(engine="process", lag=1, num_samplers=1)
    assert predict(costs(21, 37), one, 2).speedup == pytest.approx(58 / 37)
    assert predict(costs(61, 28), one, 2).speedup == pytest.approx(89 / 61)
    assert predict(costs(21, 37, message=1e-3, handling=1e-4), one, 2).speedup == pytest.approx(
        58 / (37 + 100 / 256)
    )


def test_learners_wait_for_the_one_that_shares_its_core():
    both = Layout(engine="process", lag=1, num_samplers=1, learner_shards=2, num_learners=2)
    known = costs(100, 400)
    # two learners at half speed for as long as the sampler needs at half speed, then both at full speed
    assert 256 / predict(known, both, 2).steps_per_second == pytest.approx(256e-6 * (2 * 100 + (200 - 100)))
    assert 256 / predict(known, both, 3).steps_per_second == pytest.approx(256e-6 * 200)


def test_small_groups_cost_what_a_group_costs():
    known = Costs(num_envs=8, num_steps=32, step=Linear(), act=Linear(1e-3, 1e-4), update=1e-3)
    few, many = (
        predict(known, Layout(engine="process", env_groups=groups, num_samplers=2), 2) for groups in (2, 8)
    )
    assert few.speedup > many.speedup
    assert many.limit == "acting"


@pytest.mark.parametrize(
    ("known", "layout", "limit"),
    [
        (costs(1_046, 31), two_samplers(1), "environment"),
        (costs(439, 8_135), two_samplers(1), "update"),
        (costs(10, 10, message=1.0), two_samplers(0), "transport"),
        (costs(10, 10, message=1.0), two_samplers(1), "transport"),
        (costs(1, 10, exchange=1.0), Layout(engine="process", learner_shards=2, num_learners=2), "transport"),
    ],
)  # fmt: skip
def test_what_limits_a_layout(known, layout, limit):
    assert predict(known, layout, 2).limit == limit


def test_shards_divide_what_depends_on_the_size_of_a_batch():
    shards = Layout(engine="process", learner_shards=4, num_learners=4)
    update = 100 * 256 * MICROSECOND
    assert predict(costs(0, 100), shards, 4).speedup == pytest.approx(4.0)
    assert predict(costs(0, 100, prepare=0.5 * update), shards, 4).speedup == pytest.approx(
        1 / (0.5 + 0.5 / 4)
    )
    repeated = costs(0, 100, repeated=0.5 * update)
    assert predict(repeated, shards, 4).speedup == pytest.approx(1 / (0.5 + 0.5 / 4))
    on_one = Layout(learner_shards=4)
    assert predict(repeated, on_one, 4).speedup == pytest.approx(1 / (4 * 0.5 + 0.5))


def test_gradients_are_summed_after_every_step():
    shards = Layout(engine="process", learner_shards=2, num_learners=2)
    known = costs(
        0,
        100,
        gradient_steps=10,
        gradient_bytes=10**6,
        copy_per_byte=1e-10,
        sum_per_byte=1e-10,
        exchange=5e-5,
    )
    # two gradients are added, one is written and one is read
    expected = known.update / 2 + 10 * ((2 + 2) * 10**6 * 1e-10 + 5e-5)
    assert 256 / predict(known, shards, 2).steps_per_second == pytest.approx(expected)


def test_samplers_that_share_a_core_take_turns():
    four = Layout(engine="process", env_groups=4, num_samplers=4)
    assert predict(costs(100, 0), four, 2).speedup == pytest.approx(2.0)
    assert predict(costs(100, 0), four, 4).speedup == pytest.approx(4.0)


def test_uneven_groups_wait_for_the_busiest_sampler():
    three = Layout(engine="process", env_groups=4, num_samplers=3)
    assert predict(costs(100, 0), three, 4).speedup == pytest.approx(2.0)


def test_predictions_are_ranked_and_prefer_simple_settings():
    found = predictions(costs(61, 28), 2)
    assert [each.speedup for each in found] == pytest.approx(
        sorted((e.speedup for e in found), reverse=True), abs=0.01
    )
    assert found[0].layout == two_samplers(0, learner_shards=2, num_learners=2)
    assert len({each.layout for each in found}) == len(found)
    assert all(max(each.layout.num_samplers, each.layout.num_learners) <= 2 for each in found)
    assert {each.layout for each in predictions(costs(61, 28), 1)} == {DEFAULT}


def test_threads_are_tried_if_they_were_measured():
    known = costs(100, 1_000, threaded_update=500 * 256 * MICROSECOND)
    (threads,) = (each for each in predictions(known, 2) if each.layout.num_threads == 2)
    assert threads.speedup == pytest.approx(1_100 / 600)


def test_the_default_borrows_a_core_where_that_changes_no_bit():
    shared = costs(100, 1_000, threaded_update=500 * 256 * MICROSECOND, borrows=True)
    default, one = predict(shared, DEFAULT, 2), predict(shared, Layout(num_threads=1), 2)
    assert (default.speedup, one.speedup) == pytest.approx((1.0, 600 / 1_100))
    assert predict(shared, DEFAULT, 1) == replace(default, steps_per_second=one.steps_per_second)
    assert all(each.layout.num_threads == "auto" for each in predictions(shared, 2))
    assert "num_threads" not in plan_from(shared, 2).summary()
    lagging = Layout(engine="process", lag=1, num_samplers=1)  # its sampler uses the other core
    assert predict(shared, lagging, 2).steps_per_second == pytest.approx(1e6 / 1_000, rel=0.05)


@pytest.mark.parametrize("cores", [4_096, 65_536])
def test_layouts_are_within_the_bounds_of_the_settings(cores):
    grown = costs(1_000, 1_000).grown(2**14)
    for each in predictions(grown, cores):
        layout = each.layout
        assert layout.num_samplers <= MAX_SAMPLERS
        assert layout.learner_shards <= MAX_LEARNERS


def test_a_minibatch_has_no_more_shards_than_rows():
    found = predictions(costs(1, 100, rows_per_gradient_step=2), 8)
    assert max(each.layout.learner_shards for each in found) == 2


def config(**settings) -> TrainConfig:
    return TrainConfig(algo="ppo", env_id="CartPole-v1", num_envs=8).with_overrides(**settings)


def test_the_engine_of_a_config_with_nothing_to_divide_is_local():
    choice = choose_engine(config(), costs(61, 28), 8)
    assert choice[:3] == ("local", 0, 1)
    assert choose_engine(config(env_groups=2, lag=1), costs(61, 28), 1).reason == "there is one core"


@pytest.mark.parametrize(
    ("settings", "known", "expected"),
    [
        ({"env_groups": 2, "lag": 1}, costs(61, 28), ("process", 2, 1)),
        ({"env_groups": 2, "lag": "free"}, costs(61, 28), ("process", 2, 1)),
        ({"lag": 1}, costs(21, 37), ("process", 1, 1)),
        ({"learner_shards": 2}, costs(439, 8_135), ("process", 0, 2)),
        ({"env_groups": 2, "lag": 1}, costs(439, 8_135), ("local", 0, 1)),
        ({"env_groups": 2}, costs(10, 10, message=1.0), ("local", 0, 1)),
        ({"env_groups": 2, "engine": "process", "num_samplers": 1}, costs(500, 1), ("local", 0, 1)),
    ],
)
def test_the_engine_is_the_fastest_one(settings, known, expected):
    choice = choose_engine(config(**settings), known, 2)
    assert choice[:3] == expected
    assert choice.reason


def test_advice_on_single_settings_and_on_all_together():
    found = {tuple(each.changes): each for each in advice(config(), costs(21, 37), 2)}
    assert found["env_groups",].speedup == pytest.approx(1.22, abs=0.01)
    assert found["lag",].speedup == pytest.approx(1.57, abs=0.01)
    assert found["lag",].text() == "--lag 1: 1.6 times as fast"
    assert found["env_groups", "learner_shards"].speedup == pytest.approx(2.0)
    assert advice(config(), costs(21, 37), 1) == []


def test_advice_starts_from_the_settings_that_there_are():
    assert advice(config(env_groups=2, learner_shards=2), costs(21, 37), 2) == []


def test_a_plan_names_the_setting_that_helps_most():
    found = plan_from(costs(21, 37, rows_per_gradient_step=1), 2)
    assert found.summary() == (
        "lag 1 helps most: about 1.6 times the speed of the default on 2 cores; the update limits it."
    )
    assert plan_from(costs(21, 37), 1).summary() == "No setting helps on 1 core: the update limits it."


def test_more_environments_use_more_cores():
    known = costs(100, 10)
    few, many = (plan_from(known, cores) for cores in (8, 64))
    assert many.best.speedup < 12  # eight environments, and ten percent of updates
    assert many.grown.speedup == pytest.approx(64, rel=0.02)
    assert few.grown.speedup == pytest.approx(8, rel=0.02)


def test_three_groups_may_have_three_samplers():
    choice = choose_engine(config(num_envs=9, env_groups=3), costs(1_000, 1), 4)
    assert choice[:3] == ("process", 3, 1)


def test_lag_1_is_no_advice_for_lag_free():
    found = advice(config(lag="free"), costs(100, 50), 4)
    assert {"env_groups": 2} in [each.changes for each in found]
    assert all(each.changes.get("lag") != 1 for each in found)


def test_environments_with_own_processes_leave_no_core_for_samplers():
    here = Costs(num_envs=8, num_steps=32, step=Linear(each=1e-4), act=Linear(), update=1e-4)
    own = replace(here, env_cores=2)
    assert choose_engine(config(env_groups=2), here, 2).engine == "process"
    assert choose_engine(config(env_groups=2), own, 2).engine == "local"
    assert choose_engine(config(env_groups=2), own, 4).engine == "process"
    even = replace(own, update=8 * 32 * 1e-4)
    assert predict(even, two_samplers(1), 2).speedup == pytest.approx(2 / 1.5)


def test_borrowed_cores_count_for_one_process():
    """One that updates with two threads while nobody collects gains less from a lag."""
    shared = costs(100, 1_000, threaded_update=520 * 256 * MICROSECOND, borrows=True)
    assert choose_engine(config(lag=1), costs(500, 500), 2).engine == "process"
    assert choose_engine(config(lag=1), shared, 2).engine == "local"
    even = replace(shared, step=costs(500, 1_000).step)
    assert choose_engine(config(lag=1), even, 2).engine == "local"
    assert choose_engine(config(lag=1, num_threads=1), even, 2).engine == "process"


@pytest.mark.parametrize(
    ("settings", "cores", "reason"),
    [
        ({"env_groups": 2}, 1, "there is one core"),
        ({}, 2, "env_groups 1, lag 0 and learner_shards 1 leave nothing to divide"),
        ({"env_groups": 2, "num_samplers": 0}, 2, "num_samplers and num_learners ask for no other process"),
        (
            {"env_groups": 2, "num_samplers": 1},
            2,
            "1 sampler and 1 learner are expected to give only 1.00 times the speed of one process",
        ),
        (
            {"env_groups": 2},
            2,
            "2 samplers and 1 learner are expected to give 2.0 times the speed of one process",
        ),
    ],
)
def test_the_reason_for_an_engine(settings, cores, reason):
    assert choose_engine(config(engine="auto", **settings), costs(1_000, 1), cores).reason == reason
