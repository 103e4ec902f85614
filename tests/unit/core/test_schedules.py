import math

import pytest

from rl_training.config.schedules import ScheduleName, scheduled
from rl_training.core.types import Progress


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
