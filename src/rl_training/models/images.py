"""Images in observations: which entries are images, their memory layout, and their scaling.

Images keep the type of the environment, usually bytes, until the encoder reads them: floats take four times the memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from rl_training.core.spaces.images import Channels, channel_axis, height_and_width, is_image
from rl_training.core.spaces.layout import float_dtype, observation_leaves
from rl_training.core.types import Obs

WIDEST = 2.0**24
"""Bounds that are further apart are ignored: scaled by them, all images would look alike."""


@dataclass(frozen=True)
class ImageReading:
    """Which Boxes are images, and how they are read."""

    scale: float | None = None
    """The factor of pixel values; None scales the bounds of the space to 0 and 1."""
    channels: Channels = "auto"
    """Which axis holds the channels; auto is the smaller of first and last."""
    any_size: bool = False
    """Whether every Box of rank 3 is an image, however small."""
    planes: bool = True
    """Whether a Box of rank 2 is an image of one channel."""


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
        """Return images [B, C, H, W] of the same type, as a view."""
        if images.dim() == 3:
            return images.unsqueeze(1)
        return images.permute(0, 3, 1, 2) if self.channels_last else images

    def scaled(self, images: Tensor) -> Tensor:
        """Return floats [B, C, H, W] in channels-last memory format, which makes convolutions faster.

        The layout changes before the type, as bytes are faster to move. The conversion of integers makes a copy, which
        is scaled in place to save memory.
        """
        pixels = images.contiguous(memory_format=torch.channels_last)
        if pixels.is_floating_point():
            return (pixels if self.offset == 0.0 else pixels - self.offset) * self.factor
        floats = pixels.to(torch.get_default_dtype())
        if self.offset != 0.0:
            floats.sub_(self.offset)
        return floats.mul_(self.factor)

    @property
    def encoder_space(self) -> spaces.Box:
        """The space that an encoder gets for these images."""
        low, high = ((bound - self.offset) * self.factor for bound in _bounds(self.space))
        return spaces.Box(low, high, (self.channels, self.height, self.width), float_dtype())


def image_leaves(space: Space[Any], reading: ImageReading) -> dict[str, ImageLeaf]:
    """Return the image entries of an observation by flattened key."""
    found = {}
    for key, leaf in observation_leaves(space).items():
        rank = len(leaf.shape or ())
        if not isinstance(leaf, spaces.Box) or (rank == 2 and not reading.planes):
            continue
        if (rank == 3 and reading.any_size) or is_image(leaf, reading.channels, key):
            found[key] = _image_leaf(key, leaf, reading)
    return found


def _image_leaf(key: str, space: spaces.Box, reading: ImageReading) -> ImageLeaf:
    axis = channel_axis(space.shape, reading.channels, key)
    height, width = height_and_width(space.shape, reading.channels, key)
    channels = 1 if axis is None else int(space.shape[axis])
    offset, factor = 0.0, reading.scale
    if factor is None:
        low, high = _bounds(space)
        bounded = 0.0 < high - low <= WIDEST
        offset, factor = (low, 1.0 / (high - low)) if bounded else (0.0, 1.0)
    return ImageLeaf(space, channels, height, width, channels_last=axis == 2, offset=offset, factor=factor)


def _bounds(space: spaces.Box) -> tuple[float, float]:
    return float(np.min(space.low)), float(np.max(space.high))


def encoder_space(space: Space[Any], images: Mapping[str, ImageLeaf]) -> Space[Any]:
    """Return the space that encoders get: images as floats, nested entries under keys such as `a/b`."""
    if not images:
        return space
    if "" in images:
        return images[""].encoder_space
    leaves = observation_leaves(space)
    return spaces.Dict(
        {key: images[key].encoder_space if key in images else _flat(leaf) for key, leaf in leaves.items()}
    )


def _flat(space: Space[Any]) -> Space[Any]:
    """Flatten a space of rank 3 that is not an image, so that no encoder mistakes it for one."""
    if isinstance(space, spaces.Box) and len(space.shape) == 3:
        return spaces.Box(space.low.reshape(-1), space.high.reshape(-1), dtype=space.dtype.type)
    return space


class ScaledImages(nn.Module):
    """Wraps an encoder: converts images to scaled floats, and is the only place that does."""

    def __init__(self, encoder: nn.Module, images: Mapping[str, ImageLeaf]) -> None:
        super().__init__()
        self.encoder, self.images = encoder, dict(images)

    @property
    def features_dim(self) -> int:
        width: Any = self.encoder.features_dim
        return int(width)

    def forward(self, inputs: Obs) -> Tensor:
        """Return features [B, D] of images [B, C, H, W] in their own types and of the other inputs."""
        scaled: Obs
        if isinstance(inputs, Tensor):
            scaled = self.images[""].scaled(inputs)
        else:
            images = self.images
            scaled = {
                key: images[key].scaled(part) if key in images else part for key, part in inputs.items()
            }
        features: Tensor = self.encoder(scaled)
        return features
