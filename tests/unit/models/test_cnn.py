"""The convolutional encoders: which one reads what, how wide it is, and what is too small for it."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.core.errors import UserError
from rl_training.models.cnn import AutoCNN, ImpalaCNN, NatureCNN, SmallCNN
from rl_training.models.encoders import ENCODERS, chosen_encoder, encoder_size, make_encoder
from rl_training.models.images import READING, ImageReading, image_leaves
from rl_training.models.inputs import ObservationInputs


def image(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


def built(encoder: Any, space: Any, features_dim: int = 16, **arguments: Any) -> torch.nn.Module:
    inputs = ObservationInputs(space, image_leaves(space, ImageReading(any_size=True)))
    return make_encoder(encoder, inputs, features_dim, arguments, torch.Generator().manual_seed(0))


def weights(encoder: torch.nn.Module) -> list[tuple[int, ...]]:
    return [tuple(p.shape) for p in encoder.parameters() if p.dim() > 1]


def test_nature_has_its_published_layers() -> None:
    encoder = built(NatureCNN, image(4, 84, 84), 512)
    assert weights(encoder) == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 7 * 7 * 64)]


def test_impala_has_its_published_layers() -> None:
    encoder = built(ImpalaCNN, image(64, 64, 3), 256)
    convolutions = [shape for shape in weights(encoder) if len(shape) == 4]
    assert len(convolutions) == 15
    assert [shape[0] for shape in convolutions[::5]] == [16, 32, 32]
    assert weights(encoder)[-1] == (256, 32 * 8 * 8)
    assert weights(built(ImpalaCNN, image(64, 64, 3), 16, channels=[4, 8]))[-1] == (16, 8 * 16 * 16)


@pytest.mark.parametrize("shape", [(10, 10, 4), (7, 7, 3), (36, 36), (4, 42, 42), (16, 16, 3)])
def test_small_reads_tiny_images(shape: tuple[int, ...]) -> None:
    encoder = built(SmallCNN, image(*shape))
    leaf = image_leaves(image(*shape), READING)[""]
    images = torch.randint(255, (3, leaf.channels, leaf.height, leaf.width), dtype=torch.uint8)
    assert encoder(images).shape == (3, 16)


@pytest.mark.parametrize(
    ("encoder", "side", "needed"), [(NatureCNN, 35, 36), (ImpalaCNN, 7, 8), (SmallCNN, 2, 3)]
)
def test_an_image_too_small_gets_a_sentence_with_both(encoder: Any, side: int, needed: int) -> None:
    message = f"images of {side} x {side} are too small for encoder {encoder.__name__}, which needs {needed} x {needed}"
    with pytest.raises(UserError, match=message):
        built(encoder, image(1, side, side))
    assert built(encoder, image(needed, needed, 1)) is not None


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(-1, 1, (4,)), None),
        (spaces.Box(-1, 1, (4, 17)), None),
        (image(2, 2, 2), None),
        (image(5, 5), None),
        (image(5, 5, 3), AutoCNN),
        (image(7, 7, 3), AutoCNN),
        (image(84, 84), AutoCNN),
        (spaces.Dict({"a": spaces.Discrete(3), "cam": image(10, 10, 2)}), AutoCNN),
    ],
)
def test_auto_takes_a_cnn_for_images_and_flat_for_the_rest(space: Any, expected: Any) -> None:
    assert chosen_encoder("auto", None, space)[0] is expected
    assert chosen_encoder("flat", None, space)[0] is None


def test_auto_takes_the_large_trunk_for_large_images_only() -> None:
    space = spaces.Dict({"near": image(84, 84, 3), "far": image(10, 10, 3)})
    kernels = [shape[2] for shape in weights(built(AutoCNN, space)) if len(shape) == 4]
    assert kernels == [3, 3, 8, 4, 3]  # keys in alphabetical order, as Gymnasium sorts them


@pytest.mark.parametrize("name", list(ENCODERS))
def test_a_named_encoder_needs_an_image(name: str) -> None:
    with pytest.raises(
        UserError, match=f"encoder '{name}' reads images, and .* has none; use encoder auto or flat"
    ):
        chosen_encoder(name, None, spaces.Box(-1, 1, (4,)))


def test_vectors_follow_the_features_of_the_images() -> None:
    space = spaces.Dict(
        {"cam": image(10, 10, 3), "gear": spaces.Discrete(3), "speed": spaces.Box(-1, 1, (2, 2))}
    )
    inputs = ObservationInputs(space, image_leaves(space, READING))
    encoder = built(SmallCNN, space)
    obs = {
        "cam": torch.randint(255, (5, 10, 10, 3), dtype=torch.uint8),
        "gear": torch.tensor([0, 1, 2, 0, 1]),
        "speed": torch.rand(5, 2, 2),
    }
    features = encoder(inputs.arranged(inputs.vector(obs), obs))
    assert features.shape == (5, 16 + 3 + 4)
    assert encoder.features_dim == 23
    torch.testing.assert_close(features[:, 16:], inputs.vector(obs))


@pytest.mark.parametrize("name", list(ENCODERS))
def test_the_size_of_an_encoder_is_known_without_building_it(name: str) -> None:
    space = image(40, 40, 3)
    encoder, reading = chosen_encoder(name, None, space)
    module = built(encoder, space)
    assert encoder_size(encoder, reading, space, 16, {}) == (16, sum(p.numel() for p in module.parameters()))
    huge = encoder_size(encoder, reading, image(2**11, 2**11, 3), 2**14, {})
    assert huge[1] > 2**31


def test_an_encoder_of_the_users_own_gets_planes_as_they_are() -> None:
    assert chosen_encoder("own:Encoder", SmallCNN, image(8, 8))[1].planes is False
    assert chosen_encoder("auto", None, image(8, 8))[1].planes is True


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_images_of_any_float_are_read(dtype: Any) -> None:
    assert built(SmallCNN, spaces.Box(0, 1, (8, 8, 3), dtype)) is not None


@pytest.mark.parametrize("channels", [[], [0], [1.5], [512, 1], [1] * 9])
def test_stages_that_no_image_can_have_are_refused(channels: Any) -> None:
    side = 2896 if channels == [512, 1] else 32
    with pytest.raises(UserError, match=r"ImpalaCNN cannot have channels"):
        encoder_size(ImpalaCNN, READING, image(side, side, 1), 1, {"channels": channels})


def test_a_wrong_argument_of_a_named_encoder_gets_a_sentence() -> None:
    with pytest.raises(UserError, match=r"NatureCNN cannot be built: TypeError.*depth"):
        encoder_size(NatureCNN, READING, image(84, 84, 1), 16, {"depth": 3})
