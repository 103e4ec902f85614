from typing import Any

import numpy as np
import pytest

from rl_training.core.errors import EnvironmentFault
from rl_training.data.n_step import NStepWindow

DTYPE = np.dtype(
    [
        ("obs", np.float32),
        ("next_obs", np.float32),
        ("actions", np.int64),
        ("rewards", np.float32),
        ("discounts", np.float32),
    ]
)


def make_window(n: int, num_envs: int = 1, gamma: float = 0.5) -> NStepWindow:
    return NStepWindow(DTYPE, n=n, gamma=gamma, num_envs=num_envs)


def take_step(
    window: NStepWindow,
    number: int,
    reward: Any = 1.0,
    *,
    terminated: Any = False,
    truncated: Any = False,
    valid: Any = True,
) -> list[tuple[float, ...]]:
    """Observe `number`, do it, see `number + 1`; return (obs, action, reward, discount, next_obs) of finished ones."""
    n = len(window.time)
    rows = np.zeros(n, np.bool_)
    terminated, truncated, valid = rows | terminated, rows | truncated, rows | valid
    seen, done = np.full(n, number, np.float32), np.arange(n) + 10 * number
    window.begin({"obs": seen, "actions": done})
    seen[:], done[:] = -1.0, -1  # the environments overwrite what was seen
    finished = window.complete(
        np.zeros(n) + reward,
        terminated,
        terminated | truncated,
        valid,
        {"next_obs": np.full(n, number + 1, np.float32)},
    )
    return [
        (float(r["obs"]), int(r["actions"]), float(r["rewards"]), float(r["discounts"]), float(r["next_obs"]))
        for r in finished
    ]


def test_one_step_transitions_are_finished_at_once() -> None:
    window = make_window(1, num_envs=2)
    assert take_step(window, 3, [1.0, 2.0]) == [(3, 30, 1, 0.5, 4), (3, 31, 2, 0.5, 4)]


def test_one_step_discounts_are_zero_where_terminated_and_kept_at_truncation() -> None:
    rows = take_step(
        make_window(1, num_envs=3), 0, terminated=[True, False, True], truncated=[False, True, True]
    )
    assert [row[3] for row in rows] == [0.0, 0.5, 0.0]


def test_a_transition_waits_for_n_rewards() -> None:
    window = make_window(3)
    assert take_step(window, 0, 1.0) == []
    assert take_step(window, 1, 2.0) == []
    assert take_step(window, 2, 4.0) == [(0, 0, 1 + 2 / 2 + 4 / 4, 0.125, 3)]
    assert take_step(window, 3, 8.0) == [(1, 10, 2 + 4 / 2 + 8 / 4, 0.125, 4)]


def test_an_end_finishes_all_that_wait_with_the_rewards_that_came() -> None:
    window = make_window(3)
    for number in range(3):
        take_step(window, number, 1.0)
    assert take_step(window, 3, 2.0, truncated=True) == [
        (1, 10, 1 + 1 / 2 + 2 / 4, 0.125, 4),
        (2, 20, 1 + 2 / 2, 0.25, 4),
        (3, 30, 2.0, 0.5, 4),
    ]


@pytest.mark.parametrize("n", [2, 3, 5])
def test_discounts_of_a_terminated_episode_are_zero_for_every_window_that_reaches_its_end(n: int) -> None:
    window = make_window(n)
    rows = [row for number in range(6) for row in take_step(window, number, terminated=number == 5)]
    assert [row[0] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert [row[3] for row in rows] == [0.5**n] * (6 - n) + [0.0] * n


def test_termination_wins_over_truncation() -> None:
    assert [row[3] for row in take_step(make_window(2), 0, terminated=True, truncated=True)] == [0.0]


@pytest.mark.parametrize("n", [2, 4])
def test_nothing_of_an_episode_reaches_the_next_one(n: int) -> None:
    window = make_window(n)
    take_step(window, 0, 1000.0)
    take_step(window, 1, 1000.0, truncated=True)
    rows = [row for number in range(7, 7 + n) for row in take_step(window, number, 1.0)]
    assert rows == [(7, 70, sum(0.5**k for k in range(n)), 0.5**n, 7 + n)]


def test_an_episode_shorter_than_the_window_keeps_its_own_power_of_gamma() -> None:
    window = make_window(5)
    take_step(window, 0, 1.0)
    assert [row[3] for row in take_step(window, 1, 1.0, truncated=True)] == [0.25, 0.5]


def test_dead_rows_leave_no_trace() -> None:
    for n in (1, 2, 3):
        window, plain = make_window(n), make_window(n)
        for each in (window, plain):
            take_step(each, 0)
            take_step(each, 1, truncated=True)
        assert take_step(window, 50, 1000.0, valid=False) == []
        for number in range(2, 6):
            assert take_step(window, number) == take_step(plain, number)


def test_a_dead_row_adds_nothing_to_what_waits() -> None:
    window = make_window(3)
    take_step(window, 0)
    take_step(window, 1)
    assert take_step(window, 50, 1000.0, valid=False) == []
    assert take_step(window, 2) == [(0, 0, 1.75, 0.125, 3)]


def test_environments_do_not_see_each_others_ends_and_dead_rows() -> None:
    window = make_window(2, num_envs=2)
    take_step(window, 0)
    rows = take_step(window, 1, [4.0, 8.0], terminated=[True, False])
    assert rows == [(0, 0, 3.0, 0.0, 2), (0, 1, 5.0, 0.25, 2), (1, 10, 4.0, 0.0, 2)]
    assert take_step(window, 2, [100.0, 2.0], valid=[False, True]) == [(1, 11, 9.0, 0.25, 3)]
    assert take_step(window, 3) == [(2, 21, 2.5, 0.25, 4)]
    assert take_step(window, 4) == [(3, 30, 1.5, 0.25, 5), (3, 31, 1.5, 0.25, 5)]


def test_forgotten_environments_start_anew_and_the_others_go_on() -> None:
    window = make_window(3, num_envs=2)
    take_step(window, 0, 1000.0)
    take_step(window, 1, 1000.0)
    window.forget([0])
    assert [row[:2] for row in take_step(window, 2)] == [(0, 1)]
    assert [row[:2] for row in take_step(window, 3)] == [(1, 11)]
    assert take_step(window, 4) == [(2, 20, 1.75, 0.125, 5), (2, 21, 1.75, 0.125, 5)]


def test_a_restored_window_finishes_what_was_waiting() -> None:
    window, copy = make_window(4, num_envs=2), make_window(4, num_envs=2)
    for number in range(6):
        take_step(window, number, [1.0, 2.0], truncated=[number == 2, False])
    copy.load_state_dict(window.state_dict())
    for number in range(6, 12):
        ended = [False, number == 8]
        assert take_step(copy, number, 3.0, terminated=ended) == take_step(
            window, number, 3.0, terminated=ended
        )


def test_a_saved_window_does_not_move_with_the_original() -> None:
    window, copy = make_window(3), make_window(3)
    take_step(window, 0)
    state = window.state_dict()
    for number in range(20, 25):
        take_step(window, number)
    copy.load_state_dict(state)
    take_step(copy, 1)
    assert take_step(copy, 2) == [(0, 0, 1.75, 0.125, 3)]


def test_the_windows_of_another_number_of_environments_are_dropped() -> None:
    window, other = make_window(2, num_envs=2), make_window(2, num_envs=3)
    take_step(window, 0, 1000.0)
    other.load_state_dict(window.state_dict())
    assert take_step(other, 5) == []
    assert [row[:3] for row in take_step(other, 6)] == [(5, 50 + env, 1.5) for env in range(3)]


def test_a_window_of_no_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="n_step must be 1 or more, got 0"):
        make_window(0)


def test_a_sum_that_does_not_fit_is_refused_before_it_leaves_the_window() -> None:
    window = make_window(3, num_envs=2, gamma=1.0)
    assert take_step(window, 0, [1.0, 3e38]) == []
    with pytest.raises(
        EnvironmentFault, match=r"environment 1 .* over 3 steps .* float32, at step 2 of its episode"
    ):
        take_step(window, 1, [1.0, 3e38])
