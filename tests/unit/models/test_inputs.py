from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces

from rl_training.core.errors import UserError
from rl_training.core.types import leaves
from rl_training.envs.observations import nested_leaves
from rl_training.models.inputs import ObservationInputs

SPACES = {
    "box": spaces.Box(-5, 5, (3,), np.float32),
    "float64 box": spaces.Box(-5, 5, (3,), np.float64),
    "scalar box": spaces.Box(-5, 5, (), np.float32),
    "matrix box": spaces.Box(-5, 5, (2, 3), np.float32),
    "byte box": spaces.Box(0, 255, (4,), np.uint8),
    "discrete": spaces.Discrete(4),
    "started discrete": spaces.Discrete(4, start=-2),
    "multi discrete": spaces.MultiDiscrete([2, 5, 3]),
    "started multi discrete": spaces.MultiDiscrete([2, 3], start=[10, -1]),
    "matrix multi discrete": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "single multi discrete": spaces.MultiDiscrete([6]),
    "multi binary": spaces.MultiBinary(4),
    "matrix multi binary": spaces.MultiBinary((2, 2)),
    "dict": spaces.Dict(
        {"x": spaces.Box(-1, 1, (2,)), "in": spaces.Dict({"d": spaces.Discrete(3, start=1)})}
    ),
    "tuple": spaces.Tuple([spaces.MultiBinary(2), spaces.Box(-1, 1, (2, 2)), spaces.MultiDiscrete([2, 2])]),
}


def sampled(space: Space[Any], rows: int = 40) -> Any:
    """Random observations [rows, ...], flattened as the stepper does."""
    space.seed(0)
    samples = [dict(nested_leaves(space.sample())) for _ in range(rows)]
    batch = {key: np.stack([sample[key] for sample in samples]) for key in samples[0]}
    return batch.get("", batch)


def to_torch(obs: Any) -> Any:
    tensors = {key: torch.from_numpy(array) for key, array in leaves(obs)}
    return tensors.get("", tensors)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_torch_and_numpy_encode_alike(space: Space[Any]) -> None:
    encoder, obs = ObservationInputs(space), sampled(space)
    features, in_numpy = encoder.vector(to_torch(obs)), encoder.vector_numpy(obs)
    assert features.shape == in_numpy.shape == (40, encoder.size)
    assert features.dtype == torch.float32
    assert in_numpy.dtype == np.float32
    np.testing.assert_array_equal(features.numpy(), in_numpy)
    assert len(np.unique(in_numpy, axis=0)) > 1


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_features_have_the_default_type(space: Space[Any]) -> None:
    encoder, obs = ObservationInputs(space), sampled(space)
    assert encoder.vector(to_torch(obs)).dtype == torch.float64
    assert encoder.vector_numpy(obs).dtype == np.float64


@pytest.mark.parametrize(
    ("space", "obs", "expected"),
    [
        (spaces.Discrete(3), [0, 2], [[1, 0, 0], [0, 0, 1]]),
        (spaces.Discrete(3, start=5), [5, 7], [[1, 0, 0], [0, 0, 1]]),
        (spaces.Discrete(3, start=-1), [-1, 0], [[1, 0, 0], [0, 1, 0]]),
        (spaces.MultiDiscrete([2, 3]), [[1, 0], [0, 2]], [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]),
        (spaces.MultiDiscrete([2, 3], start=[4, -1]), [[5, -1]], [[0, 1, 1, 0, 0]]),
        (spaces.MultiDiscrete([[2], [2]]), [[[1], [0]]], [[0, 1, 1, 0]]),
        (spaces.MultiBinary(3), [[1, 0, 1]], [[1, 0, 1]]),
        (spaces.Box(-9, 9, (2, 2)), [[[1.0, 2.0], [3.0, 4.0]]], [[1, 2, 3, 4]]),
        (spaces.Box(0, 255, (2,), np.uint8), [[200, 3]], [[200, 3]]),
    ],
)
def test_known_encodings(space: Space[Any], obs: list[Any], expected: list[Any]) -> None:
    array = np.array(obs, space.dtype)
    assert ObservationInputs(space).vector_numpy(array).tolist() == expected
    assert ObservationInputs(space).vector(torch.from_numpy(array)).tolist() == expected


def test_entries_are_joined_in_the_order_of_the_space_whatever_the_order_given() -> None:
    space = spaces.Dict({"a": spaces.Box(-9, 9, (2,)), "b": spaces.Discrete(2)})
    a, b = np.array([[3.0, 4.0]], np.float32), np.array([1])
    assert ObservationInputs(space).vector_numpy({"b": b, "a": a}).tolist() == [[3, 4, 0, 1]]
    in_torch = ObservationInputs(space).vector({"b": torch.from_numpy(b), "a": torch.from_numpy(a)})
    assert in_torch.tolist() == [[3, 4, 0, 1]]


@pytest.mark.parametrize(
    ("name", "continuous"),
    [
        ("box", [True] * 3),
        ("byte box", [True] * 4),
        ("discrete", [False] * 4),
        ("multi discrete", [False] * 10),
        ("multi binary", [False] * 4),
        ("dict", [False] * 3 + [True] * 2),
        ("tuple", [False] * 2 + [True] * 4 + [False] * 4),
    ],
)
def test_only_box_features_are_continuous(name: str, continuous: list[bool]) -> None:
    assert ObservationInputs(SPACES[name]).continuous.tolist() == continuous


def test_unsupported_spaces_are_refused() -> None:
    with pytest.raises(UserError, match="Text"):
        ObservationInputs(spaces.Text(3))
