import numpy as np
import pytest

from rl_training.core.rows import Rows


def test_one_row_per_environment_is_the_identity() -> None:
    rows, mask = Rows.one_per_env(3), np.array([True, False, True])
    assert (len(rows), rows.num_envs, rows.of([2, 0])) == (3, 3, [2, 0])
    assert rows.any(mask) is mask
    assert rows.all(mask) is mask
    assert rows.spread(mask) is mask
    assert rows.agents.tolist() == [0, 0, 0]


def test_several_rows_of_one_environment() -> None:
    rows = Rows(envs=[0, 1, 0, 1, 2], agents=[0, 0, 1, 1, 0])  # agent-major
    mask = np.array([True, True, False, True, False])
    assert (len(rows), rows.num_envs, rows.of([0, 2])) == (5, 3, [0, 2, 4])
    assert rows.any(mask).tolist() == [True, True, False]
    assert rows.all(mask).tolist() == [False, True, False]
    assert rows.total(np.array([1.0, 2.0, 3.0, 4.0, 5.0])).tolist() == [4.0, 6.0, 5.0]
    assert rows.spread(np.array([False, True, True])).tolist() == [False, True, False, True, True]


def test_an_environment_whose_rows_are_all_elsewhere_is_refused() -> None:
    with pytest.raises(ValueError, match=r"numbered \[0, 2\]"):
        Rows(envs=[0, 2], agents=[0, 0])
    with pytest.raises(ValueError, match="2 rows have an environment and 1 an agent"):
        Rows(envs=[0, 1], agents=[0])
