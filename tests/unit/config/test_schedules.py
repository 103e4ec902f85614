import math
from typing import Any

import pytest

from rl_training.algorithms.ppo import PPOConfig
from rl_training.config import TrainConfig, config_from_dict
from rl_training.config.schedules import ScheduledSetting, ScheduleName
from rl_training.core.errors import ConfigError, RunFault, UserError
from rl_training.core.types import Progress


def scheduled(initial: float, schedule: Any, fraction: float) -> float:
    return ScheduledSetting("the setting", initial, schedule).at(fraction)


@pytest.mark.parametrize(
    ("schedule", "fraction", "expected"),
    [
        ("constant", 0.0, 2.0),
        ("constant", 0.7, 2.0),
        ("linear", 0.0, 2.0),
        ("linear", 0.25, 1.5),
        ("linear", 1.0, 0.0),
        ("cosine", 0.0, 2.0),
        ("cosine", 0.25, 1.0 + math.cos(math.pi / 4)),
        ("cosine", 0.5, 1.0),
        ("cosine", 1.0, 0.0),
    ],
)
def test_values_along_the_budget(schedule: ScheduleName, fraction: float, expected: float) -> None:
    assert scheduled(2.0, schedule, fraction) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize(("outside", "edge"), [(-0.5, 0.0), (1.0001, 1.0), (7.0, 1.0)])
def test_fractions_outside_the_budget_give_its_edges(
    schedule: ScheduleName, outside: float, edge: float
) -> None:
    assert scheduled(2.0, schedule, outside) == scheduled(2.0, schedule, edge)


def test_progress_is_done_exactly_when_the_budget_is_used_up() -> None:
    assert not Progress(timesteps=99, total_timesteps=100).done
    assert Progress(timesteps=100, total_timesteps=100).done
    assert Progress(timesteps=101, total_timesteps=100).done


@pytest.mark.parametrize(("timesteps", "fraction"), [(0, 0.0), (25, 0.25), (100, 1.0), (140, 1.0)])
def test_progress_fraction_never_exceeds_one(timesteps: int, fraction: float) -> None:
    assert Progress(timesteps=timesteps, total_timesteps=100).fraction == fraction


def test_progress_without_a_budget_is_complete() -> None:
    assert Progress().fraction == 1.0
    assert Progress().done


def test_advanced_adds_to_a_new_record() -> None:
    start = Progress(timesteps=5, updates=2, total_timesteps=50)
    assert start.advanced(timesteps=3, updates=1) == Progress(timesteps=8, updates=3, total_timesteps=50)
    assert start == Progress(timesteps=5, updates=2, total_timesteps=50)


POINTS = [[0, 1], [0.5, 0.1], [0.5, 2], [1, 0.01]]


def halved(fraction: float) -> float:
    return 1.0 - 0.5 * fraction


def late_nan(fraction: float) -> float:
    return math.nan if 0.5 < fraction < 0.6 else 1.0


def raises(fraction: float) -> float:
    raise ValueError("no idea")


NO_FUNCTION = 3.0


@pytest.mark.parametrize(
    ("schedule", "fraction", "expected"),
    [
        ("linear:0.1", 0.0, 2.0),
        ("linear:0.1", 0.5, 1.1),
        ("linear:0.1", 1.0, 0.2),
        ("linear:2", 1.0, 4.0),
        ("cosine:0.1", 0.0, 2.0),
        ("cosine:0.1", 0.5, 1.1),
        ("cosine:0.1", 1.0, 0.2),
        (POINTS, 0.0, 2.0),
        (POINTS, 0.25, 1.1),
        (POINTS, 0.5, 4.0),
        (POINTS, 1.0, 0.02),
        ([[0.2, 0.5], [0.8, 1.5]], 0.1, 1.0),
        ([[0.2, 0.5], [0.8, 1.5]], 0.9, 3.0),
        (halved, 0.5, 1.5),
        (f"{__name__}:halved", 1.0, 1.0),
        (f"{__name__}:halved", 7.0, 1.0),
    ],
)
def test_values_along_the_budget_of_what_users_write(schedule: Any, fraction: float, expected: float) -> None:
    assert scheduled(2.0, schedule, fraction) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["linear", "cosine"])
@pytest.mark.parametrize("end", [0.1, 0.3, 1 / 3, 1e-9])
def test_an_end_is_reached_exactly(name: str, end: float) -> None:
    assert scheduled(1.0, f"{name}:{end!r}", 1.0) == end
    assert scheduled(1.0, f"{name}:{end!r}", 0.0) == 1.0


@pytest.mark.parametrize(
    ("given", "saved"),
    [
        ("linear:0.1", "linear:0.1"),
        (POINTS, [[0.0, 1.0], [0.5, 0.1], [0.5, 2.0], [1.0, 0.01]]),
        ("[[0, 1], [1, 1e-3]]", [[0.0, 1.0], [1.0, 0.001]]),
        (halved, f"{__name__}:halved"),
        (
            "some.module:function",
            "some.module:function",
        ),  # imported when a run begins, not when a config is read
    ],
)
def test_a_config_keeps_it_and_reads_it_back(given: Any, saved: Any) -> None:
    config = TrainConfig(algo="ppo", env_id="X", algorithm=PPOConfig(learning_rate_schedule=given))
    data = config.to_dict()
    assert data["algorithm"]["learning_rate_schedule"] == saved
    assert config_from_dict(data) == config
    assert hash(config.algorithm.learning_rate_schedule) is not None


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        ("linaer", "did you mean 'linear'"),
        ("linear:-0.1", "number ≥ 0"),
        ("linear:nan", "number ≥ 0"),
        ("cosine:low", "number ≥ 0"),
        ("constant:0.1", "constant has no end value"),
        ("my_module.function", "module:function"),
        (0.5, "module:function"),
        (None, "module:function"),
        ([], "two"),
        ([[0, 1]], "two"),
        ([[0.5, 1], [0.2, 0.1]], "increase from 0 to 1"),
        ([[0, 1], [100_000, 0.1]], "increase from 0 to 1"),
        ([[0, 1], [1, -1]], "numbers ≥ 0"),
        ([[0, 1], [1, math.inf]], "numbers ≥ 0"),
        ([0, 1], "pairs"),
        ([[0, 1, 2]], "pairs"),
        ("[[0, 1], [0.5", r"\[\[0, 1\]"),
        (lambda fraction: 1.0, "top level of a module"),
    ],
)
def test_what_is_no_schedule_gets_a_sentence_with_key_value_and_remedy(value: Any, remedy: str) -> None:
    with pytest.raises(ConfigError, match=f"clip_coef_schedule is .*; .*{remedy}"):
        PPOConfig(clip_coef_schedule=value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module_here:f", "clip_coef_schedule 'no_such_module_here:f' cannot be imported"),
        (f"{__name__}:halve", "did you mean 'halved'"),
        (f"{__name__}:NO_FUNCTION", "float, not a function"),
        (f"{__name__}:raises", "raised ValueError at fraction 0: no idea"),
        ("math:sqrt2", "does not exist"),
        ("math:log1p", None),
        ("math:sin", None),
        ("math:log", "raised ValueError at fraction 0"),
        ("builtins:str", "returned '0.0' at fraction 0;"),
        ("builtins:list", "raised TypeError"),
        ("operator:neg", r"returned -0.25 at fraction 0.25; it must return a finite number ≥ 0"),
    ],
)
def test_a_function_is_tried_before_a_run_relies_on_it(name: str, words: str | None) -> None:
    if words is None:
        ScheduledSetting("clip_coef", 0.2, name)
        return
    with pytest.raises(UserError, match=words):
        ScheduledSetting("clip_coef", 0.2, name)


def test_a_function_that_fails_later_ends_the_run_with_a_sentence() -> None:
    setting = ScheduledSetting("learning_rate", 0.2, f"{__name__}:late_nan")
    with pytest.raises(RunFault, match=r"learning_rate_schedule '.*:late_nan' returned nan at fraction 0.55"):
        setting.at(0.55)
