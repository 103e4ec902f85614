from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces

from rl_training.core.errors import UserError
from rl_training.core.spaces.action_units import ActionAdapter


def box(low: Any, high: Any, dtype: Any = np.float32) -> spaces.Box:
    return spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


@pytest.mark.parametrize(
    ("space", "action", "expected"),
    [
        (box([-2.0], [2.0]), [[0.5]], [[1.0]]),
        (box([2.0], [6.0]), [[-1.0], [0.0], [0.5], [1.0]], [[2.0], [4.0], [5.0], [6.0]]),
        (box([2.0], [6.0]), [[-3.0], [9.0]], [[2.0], [6.0]]),
        (box([-np.inf], [np.inf]), [[-37.5]], [[-37.5]]),
        (box([-np.inf], [1.0]), [[-50.0], [3.0]], [[-50.0], [1.0]]),
        (box([0.5], [np.inf]), [[-1.0], [70.0]], [[0.5], [70.0]]),
        (box([0.0, -np.inf, 1.0], [10.0, np.inf, np.inf]), [[0.0, 7.0, 0.0]], [[5.0, 7.0, 1.0]]),
        (box([[0.0, -1.0], [-4.0, 2.0]], [[2.0, 1.0], [0.0, 2.0]]), [[1, 0.5, 0, 9]], [[[2, 0.5], [-2, 2]]]),
        (spaces.Box(-2.0, 4.0, ()), [[1.0], [0.0]], [4.0, 1.0]),
        (spaces.Discrete(3), [0, 2], [0, 2]),
        (spaces.Discrete(3, start=5), [0, 2], [5, 7]),
        (spaces.Discrete(3, start=-1), [0, 2], [-1, 1]),
        (spaces.MultiDiscrete([3, 3]), [[0, 2]], [[0, 2]]),
        (spaces.MultiDiscrete([3, 3], start=[10, -2]), [[0, 2]], [[10, 0]]),
        (spaces.MultiDiscrete([[3, 3], [3, 3]], start=[[1, 2], [3, 4]]), [[0, 1, 2, 0]], [[[1, 3], [5, 4]]]),
        (spaces.MultiBinary(3), [[0, 1, 1]], [[0, 1, 1]]),
        (spaces.MultiBinary((2, 2)), [[0, 1, 1, 0]], [[[0, 1], [1, 0]]]),
    ],
    ids=str,
)
def test_actions_arrive_in_the_environments_units(space: Space[Any], action: Any, expected: Any) -> None:
    dtype = np.float32 if isinstance(space, spaces.Box) else np.int64
    result = ActionAdapter(space).to_env(np.array(action, dtype))
    np.testing.assert_allclose(result, np.array(expected), rtol=1e-6)
    assert result.shape == np.shape(expected)
    assert all(space.contains(np.asarray(one, space.dtype)) for one in result)
    if isinstance(space, spaces.Box):
        assert result.dtype == space.dtype


@pytest.mark.parametrize(
    "space",
    [
        box([2.0, -1.0], [6.0, 1.0]),
        box([-1.0, -1.0], [1.0, 1.0]),
        box([-np.inf, -np.inf], [np.inf, np.inf]),
        spaces.Discrete(3),
        spaces.Discrete(3, start=5),
        spaces.MultiDiscrete([3, 3]),
        spaces.MultiDiscrete([3, 3], start=[1, 2]),
        spaces.MultiBinary(2),
    ],
    ids=str,
)
def test_the_environment_gets_a_copy_of_its_own(space: Space[Any]) -> None:
    discrete = not isinstance(space, spaces.Box)
    action = np.ones(
        4 if isinstance(space, spaces.Discrete) else (4, 2), np.int64 if discrete else np.float32
    )
    before = action.copy()
    result = ActionAdapter(space).to_env(action)
    np.testing.assert_array_equal(action, before)
    result += 1  # an environment may do what it likes with its action
    np.testing.assert_array_equal(action, before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bounds_are_met_exactly(dtype: Any) -> None:
    space = box([-0.1, 0.3], [0.7, 1e-3 + 0.3], dtype)
    for side, bound in ((-1.0, space.low), (1.0, space.high)):
        result = ActionAdapter(space).to_env(np.full((1, 2), 5 * side, np.float32))
        np.testing.assert_array_equal(result[0], bound)
        assert space.contains(result[0])


@pytest.mark.parametrize(
    "space", [spaces.Tuple([spaces.Discrete(2)]), spaces.Dict({"a": spaces.Discrete(2)})]
)
def test_unsupported_spaces_are_refused(space: Space[Any]) -> None:
    with pytest.raises(UserError, match=type(space).__name__):
        ActionAdapter(space)
