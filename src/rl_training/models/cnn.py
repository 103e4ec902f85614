"""Convolutional encoders: one trunk per image of an observation; other entries are appended to the features."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from rl_training.core.errors import UserError
from rl_training.core.spaces.layout import observation_leaves
from rl_training.core.types import Obs
from rl_training.models.inputs import ObservationInputs

NATURE_FROM = 64
"""Encoder `auto` uses the small trunk for images with a smaller side, otherwise the one designed for 84 x 84."""


class ImageEncoder(nn.Module):
    """Images [B, C, H, W], alone or in a dict with vectors, to features [B, features_dim].

    Every image has its own trunk, followed by a layer to `features_dim`; other entries are appended unchanged.
    """

    smallest_side = 1

    def __init__(self, observation_space: Space[Any], features_dim: int = 256) -> None:
        super().__init__()
        leaves = observation_leaves(observation_space)
        images = {
            key: leaf for key, leaf in leaves.items() if isinstance(leaf, spaces.Box) and len(leaf.shape) == 3
        }
        self._keys = list(images)
        self._vectors = [key for key in leaves if key not in images]
        self.trunks = nn.ModuleList(self._tower(leaf, features_dim) for leaf in images.values())
        beside = sum(ObservationInputs(leaves[key]).size for key in self._vectors)
        self.features_dim = features_dim * len(images) + beside

    def trunk(self, channels: int, height: int, width: int) -> nn.Sequential:
        """Return convolutions for images of this shape; each encoder defines its own."""
        raise NotImplementedError("an image encoder must define trunk")

    def _tower(self, space: spaces.Box, features_dim: int) -> nn.Sequential:
        channels, height, width = (int(side) for side in space.shape)
        if min(height, width) < self.smallest_side:
            others = "flat" if isinstance(self, SmallCNN) else "small or flat"
            raise UserError(
                f"images of {height} x {width} are too small for encoder {type(self).__name__}, which needs "
                f"{self.smallest_side} x {self.smallest_side}; use encoder {others}"
            )
        with torch.device("meta"):  # only to infer shapes
            size = self.trunk(channels, height, width)(torch.zeros(1, channels, height, width)).numel()
        trunk = self.trunk(channels, height, width)
        return nn.Sequential(trunk, nn.Flatten(), nn.Linear(size, features_dim), nn.ReLU(inplace=True))

    def forward(self, inputs: Obs) -> Tensor:
        if isinstance(inputs, Tensor):
            features: Tensor = self.trunks[0](inputs)
            return features
        parts = [trunk(inputs[key]) for key, trunk in zip(self._keys, self.trunks, strict=True)]
        parts += [inputs[key].flatten(1) for key in self._vectors]
        return torch.cat(parts, dim=1)


class NatureCNN(ImageEncoder):
    """Three convolutions, doi:10.1038/nature14236: 8 x 8 by 4, 4 x 4 by 2, 3 x 3; designed for 84 x 84."""

    smallest_side = 36

    def trunk(self, channels: int, height: int, width: int) -> nn.Sequential:
        return nature_trunk(channels)


class SmallCNN(ImageEncoder):
    """Two convolutions of 16 and 32 filters of 3 x 3 for images of few pixels, such as boards and planes.

    The strides depend on the smaller side: 1 and 1 below 16 pixels, 2 and 1 below 32, otherwise 2 and 2.
    """

    smallest_side = 3

    def trunk(self, channels: int, height: int, width: int) -> nn.Sequential:
        return small_trunk(channels, min(height, width))


class ImpalaCNN(ImageEncoder):
    """Residual blocks, arXiv:1802.01561: per stage a convolution, a max-pool by 2 and two blocks."""

    smallest_side = 8

    def __init__(
        self,
        observation_space: Space[Any],
        features_dim: int = 256,
        *,
        channels: Sequence[int] = (16, 32, 32),
    ) -> None:
        self._stages = tuple(channels)
        super().__init__(observation_space, features_dim)

    def trunk(self, channels: int, height: int, width: int) -> nn.Sequential:
        """Return the stages; raise an error for images that would need gigabytes each."""
        known = 1 <= len(self._stages) <= 8 and all(isinstance(n, int) and n >= 1 for n in self._stages)
        if not known or max(self._stages) * height * width > 2**28:
            raise UserError(
                f"encoder ImpalaCNN cannot have channels {list(self._stages)} for images of {height} x {width}; use "
                "one to eight numbers, such as [16, 32, 32]"
            )
        layers: list[nn.Module] = []
        for before, after in pairwise((channels, *self._stages)):
            layers += [
                nn.Conv2d(before, after, 3, padding=1),
                nn.MaxPool2d(3, stride=2, padding=1),
                ResidualBlock(after),
                ResidualBlock(after),
            ]
        return nn.Sequential(*layers, nn.ReLU())


class ResidualBlock(nn.Module):
    """A residual block: adds two convolutions of its input to the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        changed: Tensor = self.second(torch.relu(self.first(torch.relu(images))))
        return images + changed


class AutoCNN(ImageEncoder):
    """The encoder `auto`: the trunk of NatureCNN for large images, that of SmallCNN for others."""

    def trunk(self, channels: int, height: int, width: int) -> nn.Sequential:
        side = min(height, width)
        return nature_trunk(channels) if side >= NATURE_FROM else small_trunk(channels, side)


def nature_trunk(channels: int) -> nn.Sequential:
    """Return the convolutions of NatureCNN."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, 8, stride=4),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 64, 4, stride=2),
        nn.ReLU(inplace=True),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(inplace=True),
    )


def small_trunk(channels: int, side: int) -> nn.Sequential:
    """Return the convolutions of SmallCNN for images with this smaller side."""
    strides = (1, 1) if side < 16 else (2, 1) if side < 32 else (2, 2)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, stride=strides[0], padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 32, 3, stride=strides[1], padding=1),
        nn.ReLU(inplace=True),
    )
