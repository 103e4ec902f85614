"""Which observations are images, how they are laid out and scaled, and when they become floats."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces

from rl_training.core.errors import UserError
from rl_training.models.images import READING, ImageReading, ScaledImages, encoder_space, image_leaves
from rl_training.models.inputs import ObservationInputs


def image(*shape: int, dtype: Any = np.uint8, low: float = 0, high: float = 255) -> spaces.Box:
    return spaces.Box(low, high, shape, dtype)


class Same(torch.nn.Module):
    """Returns its input as it is, to be looked at."""

    features_dim = 1

    def forward(self, inputs: Any) -> Any:
        return inputs


def seen(space: Space[Any], obs: Any, reading: ImageReading = READING) -> Any:
    """Return what an encoder is handed for observations [B, ...]."""
    inputs = ObservationInputs(space, image_leaves(space, reading))
    tensors = (
        {k: torch.from_numpy(v) for k, v in obs.items()} if isinstance(obs, dict) else torch.from_numpy(obs)
    )
    return ScaledImages(Same(), inputs.images)(inputs.arranged(inputs.vector(tensors), tensors))


@pytest.mark.parametrize(
    ("shape", "channels", "height", "width"),
    [((3, 8, 9), 3, 8, 9), ((8, 9, 3), 3, 8, 9), ((8, 9), 1, 8, 9), ((4, 84, 84), 4, 84, 84), ((10, 10, 4), 4, 10, 10),
     ((4, 5, 3), 3, 4, 5), ((1, 3, 3), 1, 3, 3)],
)  # fmt: skip
def test_the_channel_axis_is_the_smaller_of_first_and_last(
    shape: tuple[int, ...], channels: int, height: int, width: int
) -> None:
    space = image(*shape)
    obs = space.sample()[None]
    found = seen(space, obs)
    assert found.shape == (1, channels, height, width)
    expected = (
        obs
        if len(shape) == 3 and shape[0] == channels
        else np.moveaxis(obs.reshape(1, height, width, -1), 3, 1)
    )
    np.testing.assert_allclose(found.numpy(), expected.reshape(found.shape) / 255, rtol=1e-6)


def test_a_tie_is_decided_by_the_setting_and_never_guessed() -> None:
    space = image(8, 8, 8)
    with pytest.raises(UserError, match=r"image observations \(8, 8, 8\).*set image_channels"):
        image_leaves(space, READING)
    assert image_leaves(image(2, 2, 2), READING) == {}
    obs = space.sample()[None]
    first = seen(space, obs, ImageReading(channels="first"))
    last = seen(space, obs, ImageReading(channels="last"))
    np.testing.assert_allclose(first.numpy(), obs / 255, rtol=1e-6)
    np.testing.assert_allclose(last.numpy(), np.moveaxis(obs, 3, 1) / 255, rtol=1e-6)


@pytest.mark.parametrize(
    ("space", "value", "scale", "number"),
    [
        (image(8, 8), 51, None, 0.2),
        (image(8, 8), 10, 0.1, 1.0),
        (image(8, 8, dtype=bool, low=0, high=1), True, None, 1.0),
        (image(8, 8, dtype=np.float32, low=-1, high=3), 1.0, None, 0.5),
        (image(8, 8, dtype=np.float32, low=-np.inf, high=np.inf), 7.0, None, 7.0),
        (image(8, 8, dtype=np.int16, low=100, high=300), 150, None, 0.25),
        (image(8, 8, dtype=np.float32, low=-1e38, high=1e38), 7.0, None, 7.0),
    ],
)
def test_values_are_scaled_by_the_bounds_of_the_space(
    space: spaces.Box, value: Any, scale: float | None, number: float
) -> None:
    obs = np.full((2, 8, 8), value, space.dtype)
    found = seen(space, obs, ImageReading(scale=scale))
    assert found.dtype == torch.get_default_dtype()
    torch.testing.assert_close(found, torch.full((2, 1, 8, 8), number))


def test_images_keep_their_type_until_the_encoder_reads_them() -> None:
    space = spaces.Dict({"cam": image(8, 9, 3), "speed": spaces.Box(-1, 1, (2,)), "gear": spaces.Discrete(3)})
    inputs = ObservationInputs(space, image_leaves(space, READING))
    obs = {
        "cam": torch.zeros(5, 8, 9, 3, dtype=torch.uint8),
        "speed": torch.ones(5, 2),
        "gear": torch.full((5,), 2),
    }
    arranged = inputs.arranged(inputs.vector(obs), obs)
    assert isinstance(arranged, dict)
    assert arranged["cam"].dtype == torch.uint8
    assert arranged["cam"].shape == (5, 3, 8, 9)
    assert arranged["cam"].data_ptr() == obs["cam"].data_ptr()
    assert arranged["gear"].tolist() == [[0, 0, 1]] * 5
    assert inputs.size == 5
    assert inputs.continuous.tolist() == [False, False, False, True, True]


def test_an_encoder_is_told_the_space_of_what_it_reads() -> None:
    space = spaces.Dict({"cam": image(8, 9, 3), "speed": spaces.Box(-1, 1, (2,))})
    told = encoder_space(space, image_leaves(space, READING))
    assert told["cam"] == spaces.Box(0, 1, (3, 8, 9), np.float32)
    assert told["speed"] == space["speed"]
    plain = spaces.Box(-1, 1, (4,))
    assert encoder_space(plain, {}) is plain


@pytest.mark.parametrize("shape", [(4, 84, 84), (84, 84, 3), (84, 84)])
def test_convolutions_get_the_channels_of_a_pixel_side_by_side(shape: tuple[int, ...]) -> None:
    found = seen(image(*shape), np.zeros((2, *shape), np.uint8))
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_what_is_too_small_for_an_image_stays_a_vector_beside_one() -> None:
    space = spaces.Dict({"cam": image(8, 9, 3), "cube": image(2, 2, 2)})
    leaves = image_leaves(space, READING)
    assert list(leaves) == ["cam"]
    assert encoder_space(space, leaves)["cube"].shape == (8,)
    assert list(image_leaves(space, ImageReading(any_size=True))) == ["cam", "cube"]


def test_a_small_box_of_rank_2_is_a_few_vectors_and_one_of_rank_3_an_image() -> None:
    space = spaces.Dict({"cars": image(5, 5), "board": image(5, 5, 3), "plane": image(7, 7)})
    assert set(image_leaves(space, READING)) == {"board", "plane"}


@pytest.mark.parametrize("shape", [(0, 16, 3), (9, 9, 0), (0, 9, 9), (0, 9)])
def test_what_has_no_pixels_is_no_image(shape: tuple[int, ...]) -> None:
    assert image_leaves(image(*shape), READING) == {}


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("low", [0, 1])
def test_scaling_gives_the_numbers_of_the_plain_formula_and_leaves_the_batch_alone(
    dtype: Any, low: int
) -> None:
    [leaf] = image_leaves(spaces.Box(low, 200, (3, 8, 9), np.int64), READING).values()
    batch = torch.from_numpy(np.random.default_rng(0).integers(0, 200, (5, 3, 8, 9)).astype(dtype))
    before = batch.clone()
    found = leaf.scaled(batch)
    plain = (batch - leaf.offset if leaf.offset else batch) * leaf.factor
    assert found.dtype == plain.dtype
    assert torch.equal(found, plain)
    assert torch.equal(batch, before)
    assert found.is_contiguous(memory_format=torch.channels_last)
