"""Image encoders that know their own backward: the same features and gradients as by autograd."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.algorithms.optimizers import FlatAdam
from rl_training.models.cnn import AutoCNN, ImpalaCNN, NatureCNN, SmallCNN
from rl_training.models.encoders import make_encoder
from rl_training.models.fast.convolutions import explicit_encoder
from rl_training.models.images import ImageReading, image_leaves
from rl_training.models.inputs import ObservationInputs

BYTES: dict[str, Any] = {"low": 0, "high": 255, "dtype": np.uint8}
CASES = {
    "planes": (NatureCNN, BYTES | {"shape": (4, 84, 84)}),
    "pixels": (NatureCNN, BYTES | {"shape": (84, 84, 3)}),
    "one plane": (NatureCNN, BYTES | {"shape": (48, 48)}),
    "rows that the stride does not divide": (NatureCNN, BYTES | {"shape": (2, 40, 45)}),
    "floats with an offset": (NatureCNN, {"low": -2, "high": 6, "dtype": np.float64, "shape": (2, 36, 40)}),
    "bytes with an offset": (NatureCNN, {"low": 7, "high": 9, "dtype": np.uint8, "shape": (2, 36, 40)}),
    "small": (SmallCNN, BYTES | {"shape": (10, 10, 4)}),
    "small planes": (SmallCNN, BYTES | {"shape": (3, 33, 36)}),
    "auto": (AutoCNN, {"low": 0, "high": 1, "dtype": np.bool_, "shape": (3, 12, 12)}),
}


@pytest.fixture(autouse=True)
def double() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def built(encoder: Any, space: spaces.Box) -> tuple[nn.Module, ObservationInputs]:
    inputs = ObservationInputs(space, image_leaves(space, ImageReading(any_size=True)))
    return make_encoder(encoder, inputs, 16, {}, torch.Generator().manual_seed(0)), inputs


def images(space: spaces.Box, inputs: ObservationInputs, rows: int, seed: int = 0) -> Tensor:
    rng = np.random.default_rng(seed)
    low, high = float(space.low.min()), float(space.high.max())
    seen = torch.from_numpy(rng.uniform(low, high, (rows, *space.shape)).round().astype(space.dtype))
    return inputs.images[""].channel_first(seen)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", CASES)
def test_features_and_gradients_are_those_of_autograd(name: str, rows: int) -> None:
    kind, described = CASES[name]
    space = spaces.Box(**described)
    encoder, inputs = built(kind, space)
    optimizer = FlatAdam(encoder.parameters())
    known = explicit_encoder(encoder, optimizer.gradient_of)
    assert known is not None
    seen = images(space, inputs, rows)
    before = seen.clone()
    expected = encoder(seen)
    gradient = torch.randn_like(expected)
    torch.testing.assert_close(known.forward(seen), expected.detach(), rtol=1e-12, atol=1e-12)
    known.backward(gradient)
    for parameter, wanted in zip(
        encoder.parameters(), torch.autograd.grad(expected, list(encoder.parameters()), gradient), strict=True
    ):
        torch.testing.assert_close(optimizer.gradient_of(parameter), wanted, rtol=1e-11, atol=1e-12)
    assert torch.equal(seen, before), "what was seen stays as it was"


def test_it_reads_the_weights_of_this_moment() -> None:
    space = spaces.Box(0, 255, (4, 40, 40), np.uint8)
    encoder, inputs = built(NatureCNN, space)
    known = explicit_encoder(encoder)
    assert known is not None
    seen = images(space, inputs, 3)
    known.forward(seen)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.mul_(1.5)
    torch.testing.assert_close(known.forward(seen), encoder(seen).detach(), rtol=1e-12, atol=1e-12)


def test_without_gradients_nothing_is_kept() -> None:
    space = spaces.Box(0, 255, (4, 40, 40), np.uint8)
    encoder, inputs = built(NatureCNN, space)
    known = explicit_encoder(encoder)
    assert known is not None
    known.forward(images(space, inputs, 3))
    with pytest.raises(AssertionError, match="forward comes first"):
        known.backward(torch.zeros(3, 16))


def test_what_is_not_known_is_left_to_autograd() -> None:
    space = spaces.Box(0, 255, (4, 40, 40), np.uint8)
    assert explicit_encoder(built(ImpalaCNN, space)[0]) is None

    class Own(NatureCNN):
        """Somebody's own."""

    assert explicit_encoder(built(Own, space)[0]) is None
    several = spaces.Dict({"a": space, "b": space})
    inputs = ObservationInputs(several, image_leaves(several, ImageReading()))
    assert explicit_encoder(make_encoder(NatureCNN, inputs, 16, {}, torch.Generator())) is None

    frozen, _ = built(NatureCNN, space)
    next(frozen.parameters()).requires_grad_(False)
    assert explicit_encoder(frozen, FlatAdam(frozen.parameters()).gradient_of) is None
