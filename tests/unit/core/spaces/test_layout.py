from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces

from rl_training.core.errors import UserError
from rl_training.core.spaces.layout import (
    action_layout,
    float_dtype,
    leaf_dtype,
    observation_leaves,
    take_rows,
    zeros_for,
)
from rl_training.envs.observations import write_batch

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
NESTED = spaces.Dict(
    {
        "arm": spaces.Dict({"angle": BOX, "grip": spaces.Discrete(3)}),
        "pair": spaces.Tuple([spaces.MultiBinary(2), spaces.Dict({"x": spaces.MultiDiscrete([2, 4])})]),
    }
)


def test_a_plain_space_is_its_own_leaf() -> None:
    assert observation_leaves(BOX) == {"": BOX}


def test_nested_dicts_and_tuples_flatten_to_paths() -> None:
    assert observation_leaves(NESTED) == {
        "arm/angle": BOX,
        "arm/grip": spaces.Discrete(3),
        "pair/0": spaces.MultiBinary(2),
        "pair/1/x": spaces.MultiDiscrete([2, 4]),
    }


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(4), "Text is not supported"),
        (spaces.Dict({"a": spaces.Dict({"b": spaces.Text(4)})}), r"Text \(entry 'a/b'\)"),
        (spaces.Tuple([BOX, spaces.Sequence(BOX)]), r"Sequence \(entry '1'\)"),
        (spaces.Dict({}), "no entries"),
        (spaces.Dict({"a/b": BOX, "a": spaces.Dict({"b": BOX})}), "same key 'a/b'"),
    ],
)
def test_unsupported_observations_are_refused_by_name(space: Space[Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        observation_leaves(space)


def test_how_to_leave_out_an_entry_is_told_where_others_remain() -> None:
    remedy = "FilterObservation"
    with pytest.raises(
        UserError, match=f"or Dict/Tuple of these, or leave it out with gymnasium.wrappers.{remedy}"
    ):
        observation_leaves(spaces.Dict({"image": BOX, "mission": spaces.Text(4)}))
    for alone in (spaces.Text(4), spaces.Dict({"mission": spaces.Text(4)})):
        with pytest.raises(UserError) as refused:
            observation_leaves(alone)
        assert remedy not in str(refused.value)


def test_floats_are_kept_in_torchs_default_and_the_rest_as_it_is() -> None:
    assert leaf_dtype(spaces.Box(-1, 1, (2,), np.float64)) == np.float32
    assert leaf_dtype(spaces.Box(-1, 1, (2,), np.float16)) == np.float32
    assert leaf_dtype(spaces.Box(0, 255, (2,), np.uint8)) == np.uint8
    assert leaf_dtype(spaces.Discrete(3)) == np.int64


@pytest.mark.usefixtures("float64")
def test_the_default_float_follows_torch() -> None:
    assert float_dtype() == np.float64
    assert leaf_dtype(BOX) == np.float64


def test_zeros_for_has_the_leaves_shapes_behind_the_leading_ones() -> None:
    zeros = zeros_for(NESTED, 5, 3)
    assert isinstance(zeros, dict)
    assert {key: array.shape for key, array in zeros.items()} == {
        "arm/angle": (5, 3, 2),
        "arm/grip": (5, 3),
        "pair/0": (5, 3, 2),
        "pair/1/x": (5, 3, 2),
    }
    plain = zeros_for(spaces.Box(0, 9, (4, 2), np.int16), 3)
    assert isinstance(plain, np.ndarray)
    assert (plain.shape, plain.dtype) == ((3, 4, 2), np.int16)


def test_write_batch_writes_into_the_memory_it_is_given() -> None:
    target = {"a": np.zeros(2), "b": np.zeros((2, 1))}
    arrays = dict(target)
    write_batch(target, {"b": np.array([[3.0], [4.0]]), "a": np.array([1.0, 2.0])})
    assert target["a"] is arrays["a"]
    assert arrays["a"].tolist() == [1.0, 2.0]
    assert arrays["b"].tolist() == [[3.0], [4.0]]


@pytest.mark.parametrize("wrap", [lambda array: array, lambda array: {"a": array}])
def test_taken_rows_are_copies(wrap: Any) -> None:
    source = np.arange(6.0).reshape(3, 2)
    rows = take_rows(wrap(source), np.array([2, 0]))
    rows = rows["a"] if isinstance(rows, dict) else rows
    assert rows.tolist() == [[4.0, 5.0], [0.0, 1.0]]
    rows[:] = -1.0
    assert source.min() == 0.0


@pytest.mark.parametrize(
    ("space", "shape", "dtype"),
    [
        (spaces.Discrete(3, start=5), (), np.int64),
        (spaces.MultiDiscrete([2, 3]), (2,), np.int64),
        (spaces.MultiDiscrete(np.full((2, 3), 4)), (6,), np.int64),
        (spaces.MultiBinary((2, 2)), (4,), np.int64),
        (spaces.Box(-1, 1, (2, 3), np.float64), (6,), np.float32),
        (spaces.Box(-1, 1, (), np.float32), (1,), np.float32),
    ],
)
def test_stored_actions_are_scalars_or_flat_vectors(
    space: Space[Any], shape: tuple[int, ...], dtype: Any
) -> None:
    assert action_layout(space) == (shape, dtype)


@pytest.mark.parametrize("space", [spaces.Dict({"a": BOX}), spaces.Tuple([BOX]), spaces.Text(3)])
def test_unsupported_actions_are_refused_by_name(space: Space[Any]) -> None:
    with pytest.raises(UserError, match=type(space).__name__):
        action_layout(space)
