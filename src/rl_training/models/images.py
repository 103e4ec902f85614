"""Images among observations: which entries they are, how they lie in memory, and how they become numbers.

They travel in the type the environment gave them, a byte per value as a rule, and become floats when the encoder reads
them: a rollout or a batch of floats would be four times as large.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from rl_training.core.errors import UserError
from rl_training.core.spaces import float_dtype, observation_leaves
from rl_training.core.types import Obs

Channels: TypeAlias = Literal["auto", "first", "last"]

SMALLEST_IMAGE = 7
"""What has a shorter side is no image unless it is called one: a few vectors on top of each other, perhaps."""


@dataclass(frozen=True)
class ImageReading:
    """Which Boxes count as images, and how they are read."""

    scale: float | None = None
    """What values are multiplied by; None brings the bounds of the space to 0 and 1."""
    channels: Channels = "auto"
    """Which axis holds the channels; auto is the smaller of first and last."""
    smallest_side: int = 1
    """Images with a shorter side are taken for numbers."""
    planes: bool = True
    """Whether a Box of rank 2 is an image of one channel, if it is not too small for one."""


READING = ImageReading()


@dataclass(frozen=True)
class ImageLeaf:
    """One image entry: images [B, ...] of `space` are read as [B, channels, height, width]."""

    space: spaces.Box
    channels: int
    height: int
    width: int
    channels_last: bool
    offset: float
    factor: float

    def channel_first(self, images: Tensor) -> Tensor:
        """Return images [B, C, H, W] of their own type, as a view."""
        if images.dim() == 3:
            return images.unsqueeze(1)
        return images.permute(0, 3, 1, 2) if self.channels_last else images

    def scaled(self, images: Tensor) -> Tensor:
        """Return floats [B, C, H, W] with the channels of a pixel side by side in memory: convolutions are faster so.

        The layout is changed before the type: bytes are less to move.
        """
        pixels = images.contiguous(memory_format=torch.channels_last)
        return (pixels if self.offset == 0.0 else pixels - self.offset) * self.factor

    @property
    def encoder_space(self) -> spaces.Box:
        """What an encoder is told of its inputs."""
        low, high = ((bound - self.offset) * self.factor for bound in _bounds(self.space))
        return spaces.Box(low, high, (self.channels, self.height, self.width), float_dtype())


def image_leaves(space: Space[Any], reading: ImageReading) -> dict[str, ImageLeaf]:
    """Return the image entries of an observation by flattened key."""
    found = {}
    for key, leaf in observation_leaves(space).items():
        rank = len(leaf.shape or ())
        if isinstance(leaf, spaces.Box) and (rank == 3 or (rank == 2 and reading.planes)):
            image = _image_leaf(key, leaf, reading)
            smallest = reading.smallest_side if rank == 3 else max(reading.smallest_side, SMALLEST_IMAGE)
            if min(image.height, image.width) >= smallest:
                found[key] = image
    return found


def _image_leaf(key: str, space: spaces.Box, reading: ImageReading) -> ImageLeaf:
    shape = tuple(int(side) for side in space.shape)
    last = len(shape) == 3 and _channels_last(key, shape, reading)
    channels, height, width = (1, *shape) if len(shape) == 2 else (shape[2], *shape[:2]) if last else shape
    offset, factor = 0.0, reading.scale
    if factor is None:
        low, high = _bounds(space)
        bounded = math.isfinite(low) and math.isfinite(high) and high > low
        offset, factor = (low, 1.0 / (high - low)) if bounded else (0.0, 1.0)
    return ImageLeaf(space, channels, height, width, channels_last=last, offset=offset, factor=factor)


def _channels_last(key: str, shape: tuple[int, ...], reading: ImageReading) -> bool:
    if reading.channels != "auto":
        return reading.channels == "last"
    if shape[0] == shape[2] and min(shape) >= reading.smallest_side:
        where = f" (entry '{key}')" if key else ""
        raise UserError(
            f"image observations {shape}{where} may have their channels first or last; say which with image_channels"
        )
    return shape[2] < shape[0]


def _bounds(space: spaces.Box) -> tuple[float, float]:
    return float(np.min(space.low)), float(np.max(space.high))


def encoder_space(space: Space[Any], images: Mapping[str, ImageLeaf]) -> Space[Any]:
    """Return the space with images as encoders get them; nested ones under keys such as `a/b` if there are images."""
    if not images:
        return space
    if "" in images:
        return images[""].encoder_space
    leaves = observation_leaves(space)
    return spaces.Dict(
        {key: images[key].encoder_space if key in images else leaf for key, leaf in leaves.items()}
    )


class ScaledImages(nn.Module):
    """An encoder that is handed its images as scaled floats; the only place where they become floats."""

    def __init__(self, encoder: nn.Module, images: Mapping[str, ImageLeaf]) -> None:
        super().__init__()
        self.encoder, self.images = encoder, dict(images)

    @property
    def features_dim(self) -> int:
        """The encoder's."""
        width: Any = self.encoder.features_dim
        return int(width)

    def forward(self, inputs: Obs) -> Tensor:
        """Return features [B, D] of images [B, C, H, W] in their own types, and of what lies beside them."""
        if isinstance(inputs, Tensor):
            features: Tensor = self.encoder(self.images[""].scaled(inputs))
            return features
        scaled = {
            key: self.images[key].scaled(part) if key in self.images else part for key, part in inputs.items()
        }
        together: Tensor = self.encoder(scaled)
        return together
