"""Encoders as a user would write them, right and wrong, for the tests of all folders."""

from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn


def width(space: Space[Any]) -> int:
    """Return how many numbers an observation becomes: a one-hot for Discrete, otherwise its size."""
    if isinstance(space, spaces.Dict):
        return sum(width(part) for part in space.spaces.values())
    return int(space.n) if isinstance(space, spaces.Discrete) else int(np.prod(space.shape or ()))


class Plain(nn.Module):
    """A hidden layer with LayerNorm, for plain and Dict observations."""

    def __init__(self, observation_space: Space[Any], features_dim: int, scale: float = 1.0) -> None:
        super().__init__()
        self.features_dim, self.scale = features_dim, scale
        self.layers = nn.Sequential(
            nn.Linear(width(observation_space), features_dim), nn.LayerNorm(features_dim), nn.ReLU()
        )

    def forward(self, inputs: Any) -> Tensor:
        parts = list(inputs.values()) if isinstance(inputs, dict) else [inputs]
        flat = torch.cat([part.flatten(1) for part in parts], dim=-1)
        return self.scale * self.layers(flat)


class Sigmoid(nn.Module):
    """Reads the numbers as they lie in memory: the last bits of a sigmoid may depend on that."""

    def __init__(self, observation_space: Space[Any], features_dim: int) -> None:
        super().__init__()
        self.features_dim = features_dim
        self.layer = nn.Linear(width(observation_space), features_dim)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.sigmoid(self.layer(torch.sigmoid(inputs)))


class Dropping(Plain):
    """Forgets half of its features while it learns."""

    def __init__(self, observation_space: Space[Any], features_dim: int) -> None:
        super().__init__(observation_space, features_dim)
        self.dropout = nn.Dropout(0.5)

    def forward(self, inputs: Any) -> Tensor:
        return self.dropout(super().forward(inputs))


class Spare(Plain):
    """Has parameters that no forward pass uses."""

    def __init__(self, observation_space: Space[Any], features_dim: int) -> None:
        super().__init__(observation_space, features_dim)
        self.unused = nn.Linear(3, 7)


class Batched(Plain):
    """Keeps statistics of its batches."""

    def __init__(self, observation_space: Space[Any], features_dim: int) -> None:
        super().__init__(observation_space, features_dim)
        self.norm = nn.BatchNorm1d(features_dim)

    def forward(self, inputs: Any) -> Tensor:
        return self.norm(super().forward(inputs))


class Frozen(Plain):
    """Was trained elsewhere, and stays as it is; a layer after it learns."""

    def __init__(self, observation_space: Space[Any], features_dim: int) -> None:
        super().__init__(observation_space, features_dim)
        self.after = nn.Linear(features_dim, features_dim)
        self.layers.requires_grad_(False)
        with torch.no_grad():
            for parameter in self.layers.parameters():
                parameter.fill_(0.25)

    def forward(self, inputs: Any) -> Tensor:
        return self.after(super().forward(inputs))


class Lazy(nn.Module):
    """Learns the size of its inputs when it sees them."""

    def __init__(self, observation_space: Space[Any], features_dim: int) -> None:
        super().__init__()
        self.features_dim = features_dim
        self.layer = nn.LazyLinear(features_dim)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs)


class Wrong(Plain):
    """Wrong in the way it is told to be."""

    def __init__(self, observation_space: Space[Any], features_dim: int, how: str) -> None:
        super().__init__(observation_space, features_dim)
        self.how = how
        if how == "constructor":
            raise RuntimeError("no such file: weights.pt")
        if how == "width":
            self.features_dim = features_dim + 1
        if how == "no width":
            del self.features_dim

    def forward(self, inputs: Any) -> Any:
        features = super().forward(inputs)
        if self.how == "nan":
            return features * torch.nan
        if self.how == "flat":
            return features.flatten()
        if self.how == "tuple":
            return (features,)
        if self.how == "forward":
            return features @ torch.zeros(999, 1)
        return features


class Pretrained(Plain):
    """Wholly frozen, with statistics of the data it was trained on, and a mask of infinities."""

    def __init__(self, observation_space: Space[Any], features_dim: int, weights: str | None = None) -> None:
        super().__init__(observation_space, features_dim)
        self.norm = nn.BatchNorm1d(features_dim)
        self.register_buffer("mask", torch.full((2,), -torch.inf))
        if weights is not None:
            self.load_state_dict(torch.load(weights, weights_only=True))
        self.requires_grad_(False)

    def forward(self, inputs: Any) -> Tensor:
        return self.norm(super().forward(inputs))


class Rebinding(Plain):
    """Puts another tensor in the place of its buffer whenever it learns."""

    def __init__(self, observation_space: Space[Any], features_dim: int) -> None:
        super().__init__(observation_space, features_dim)
        self.register_buffer("mean", torch.zeros(features_dim))

    def forward(self, inputs: Any) -> Tensor:
        features = super().forward(inputs)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * features.detach().mean(0)
        return features - self.mean


NOT_A_CLASS = 3


class InPlace(Plain):
    """Writes into its inputs."""

    def forward(self, inputs: Any) -> Tensor:
        inputs /= 255
        return super().forward(inputs)


class NanLater(Plain):
    """Right when it is tried, and wrong after a while."""

    calls = 0

    def forward(self, inputs: Any) -> Tensor:
        self.calls += 1
        return super().forward(inputs) * (torch.nan if self.calls > 8 else 1.0)
