from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces

from rl_training.core.errors import UserError
from rl_training.core.spaces.layout import zeros_for
from rl_training.envs.observations import batched, nested_leaves, write_batch, write_row

BOX = spaces.Box(-1, 1, (2,), np.float32)
NESTED = spaces.Dict({"a": spaces.Dict({"b": BOX}), "c": spaces.Tuple([spaces.Discrete(3), BOX])})


def one(value: float = 0.5) -> dict[str, Any]:
    return {"a": {"b": np.full(2, value)}, "c": (1, np.full(2, -value))}


def several(rows: int = 3) -> dict[str, Any]:
    return {"a": {"b": np.ones((rows, 2))}, "c": (np.arange(rows) % 3, np.zeros((rows, 2)))}


def test_leaves_of_an_observation_have_the_keys_of_its_space() -> None:
    assert list(dict(nested_leaves(one()))) == ["a/b", "c/0", "c/1"]
    assert list(nested_leaves(7)) == [("", 7)]


def test_a_nested_batch_is_written_in_place() -> None:
    target = zeros_for(NESTED, 3)
    assert isinstance(target, dict)
    arrays = dict(target)
    write_batch(target, several())
    assert all(target[key] is arrays[key] for key in arrays)
    assert arrays["a/b"].tolist() == [[1, 1]] * 3
    assert arrays["c/0"].tolist() == [0, 1, 2]


def test_a_row_is_written_and_its_neighbours_are_not() -> None:
    target = zeros_for(NESTED, 3)
    assert isinstance(target, dict)
    write_row(target, 1, one())
    assert target["a/b"].tolist() == [[0, 0], [0.5, 0.5], [0, 0]]
    assert target["c/0"].tolist() == [0, 1, 0]
    plain = zeros_for(BOX, 2)
    write_row(plain, 0, np.array([3.0, 4.0]))
    assert isinstance(plain, np.ndarray)
    assert plain.tolist() == [[3, 4], [0, 0]]


@pytest.mark.parametrize(
    ("space", "obs", "is_batch", "shape"),
    [
        (BOX, np.zeros(2), False, (1, 2)),
        (BOX, np.zeros((1, 2)), True, (1, 2)),
        (BOX, np.zeros((5, 2)), True, (5, 2)),
        (BOX, np.zeros((2, 2)), True, (2, 2)),
        (BOX, [0.1, 0.2], False, (1, 2)),
        (BOX, [[0.1, 0.2]], True, (1, 2)),
        (spaces.Discrete(3), 2, False, (1,)),
        (spaces.Discrete(3), np.int64(2), False, (1,)),
        (spaces.Discrete(3), np.array([2, 1]), True, (2,)),
        (spaces.MultiBinary((2, 2)), np.zeros((2, 2)), False, (1, 2, 2)),
        (spaces.MultiBinary((2, 2)), np.zeros((2, 2, 2)), True, (2, 2, 2)),
    ],
)
def test_one_observation_and_a_batch_are_told_apart(
    space: Space[Any], obs: Any, is_batch: bool, shape: tuple[int, ...]
) -> None:
    result, was_batch = batched(space, obs)
    assert isinstance(result, np.ndarray)
    assert (was_batch, result.shape) == (is_batch, shape)


def test_values_are_kept_and_types_follow_the_space() -> None:
    result, _ = batched(BOX, np.array([0.25, -0.5], np.float64))
    assert isinstance(result, np.ndarray)
    assert (result.dtype, result.tolist()) == (np.float32, [[0.25, -0.5]])


@pytest.mark.parametrize(("obs", "is_batch", "rows"), [(one(), False, 1), (several(3), True, 3)])
def test_nested_observations_are_flattened(obs: Any, is_batch: bool, rows: int) -> None:
    result, was_batch = batched(NESTED, obs)
    assert isinstance(result, dict)
    assert was_batch is is_batch
    assert {key: array.shape for key, array in result.items()} == {
        "a/b": (rows, 2),
        "c/0": (rows,),
        "c/1": (rows, 2),
    }


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (BOX, np.zeros(3), r"shape \(3,\), the policy expects \(2,\)"),
        (BOX, np.zeros((2, 3)), r"shape \(2, 3\)"),
        (BOX, np.zeros((1, 1, 2)), r"shape \(1, 1, 2\)"),
        (BOX, 1.0, r"shape \(\)"),
        (spaces.Discrete(3), np.zeros((2, 2)), r"shape \(2, 2\)"),
        (BOX, {"a": np.zeros(2)}, r"entries \['a'\]"),
        (spaces.Dict({"a": BOX}), np.zeros(2), r"expects \['a'\]"),
        (spaces.Dict({"a": BOX}), {"a": np.zeros(2), "b": np.zeros(2)}, r"entries \['a', 'b'\]"),
        (spaces.Dict({"a": BOX, "b": BOX}), {"a": np.zeros(2)}, r"expects \['a', 'b'\]"),
        (spaces.Dict({"a": BOX}), {"a": np.zeros(5)}, r"entry 'a' has shape \(5,\)"),
        (spaces.Dict({"a": BOX, "b": BOX}), {"a": np.zeros((2, 2)), "b": np.zeros((3, 2))}, "batch size"),
        (spaces.Dict({"a": BOX, "b": BOX}), {"a": np.zeros((1, 2)), "b": np.zeros(2)}, "batch size"),
    ],
)
def test_wrong_shapes_and_keys_are_refused(space: Space[Any], obs: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        batched(space, obs)


BYTES = spaces.Box(0, 255, (2, 2), np.uint8)


@pytest.mark.parametrize(
    ("obs", "numbers"),
    [
        (np.full((2, 2), 0.5), "0.5 to 0.5 of type float64"),
        (np.full((2, 2), 300), "300 to 300 of type int64"),
        (np.full((2, 2), -1), "-1 to -1 of type int64"),
        (np.full((2, 2), np.nan), "nan to nan of type float64"),
    ],
)
def test_numbers_that_the_type_of_the_space_cannot_hold_are_refused(obs: Any, numbers: str) -> None:
    """An image divided by 255 would be a black one."""
    with pytest.raises(
        UserError, match=f"observation has numbers from {numbers}, which uint8 cannot represent"
    ):
        batched(BYTES, obs)
    with pytest.raises(UserError, match="observation entry 'a' has numbers"):
        batched(spaces.Dict({"a": BYTES}), {"a": obs})


def test_numbers_that_it_can_hold_may_come_in_any_type() -> None:
    for given in (
        [[1, 2], [3, 255]],
        np.array([[1.0, 2.0], [3.0, 255.0]]),
        np.array([[1, 2], [3, 255]], np.int16),
    ):
        result, _ = batched(BYTES, given)
        assert result.dtype == np.uint8  # type: ignore[union-attr]
        np.testing.assert_array_equal(result, [[[1, 2], [3, 255]]])
