"""From observations of any supported space to vectors of numbers, in torch and in NumPy; without parameters."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from rl_training.core.spaces.layout import float_dtype, observation_leaves
from rl_training.core.types import Array, Obs, ObsArray
from rl_training.models.images import ImageLeaf


class ObservationInputs:
    """Concatenates all leaves but images: Box unchanged, Discrete and MultiDiscrete one-hot, MultiBinary as 0 and 1.

    `vector` returns all numbers [B, D]. `arranged` turns such a vector into an encoder's inputs, with the images in
    their own type and channel-first: a tensor [B, ...] for a plain space, a dict of tensors for a Dict. `continuous`
    [D] marks the numbers that come from a Box: only those are normalised.
    """

    def __init__(self, space: Space[Any], images: Mapping[str, ImageLeaf] | None = None) -> None:
        self.space, self.images = space, dict(images or {})
        self._leaves = [
            _Leaf(key, leaf) for key, leaf in observation_leaves(space).items() if key not in self.images
        ]
        self.size = sum(leaf.size for leaf in self._leaves)
        marks = [torch.full((leaf.size,), leaf.continuous) for leaf in self._leaves]
        self.continuous = torch.cat(marks) if marks else torch.zeros(0, dtype=torch.bool)

    def vector(self, obs: Obs) -> Tensor:
        if isinstance(obs, Tensor):
            return self._leaves[0].vector(obs) if self._leaves else torch.zeros(len(obs), 0)
        if not self._leaves:
            return torch.zeros(len(next(iter(obs.values()))), 0)
        return torch.cat([leaf.vector(obs[leaf.key]) for leaf in self._leaves], dim=-1)

    def vector_numpy(self, obs: ObsArray) -> Array:
        """Return numbers [N, D]; a plain float Box of one dimension is passed through without a copy."""
        if not isinstance(obs, dict):
            return self._leaves[0].vector_numpy(obs)
        return np.concatenate([leaf.vector_numpy(obs[leaf.key]) for leaf in self._leaves], axis=-1)

    def arranged(self, vector: Tensor, obs: Obs) -> Obs:
        """Return the parts of a vector [B, D] in the shapes of their leaves, and the images of `obs`, all as views."""
        if isinstance(obs, Tensor) and self.images:
            return self.images[""].channel_first(obs)
        parts = torch.split(vector, [leaf.size for leaf in self._leaves], dim=-1)
        shaped = {
            leaf.key: part.reshape(len(part), *leaf.shape)
            for leaf, part in zip(self._leaves, parts, strict=True)
        }
        if isinstance(obs, Tensor):
            return shaped[""]
        return shaped | {key: image.channel_first(obs[key]) for key, image in self.images.items()}


class _Leaf:
    def __init__(self, key: str, space: Space[Any]) -> None:
        self.key = key
        self.dtype = float_dtype()
        self.continuous = isinstance(space, spaces.Box)
        # categories per component; empty for numbers
        self.counts: list[int] = []
        if isinstance(space, spaces.Discrete):
            self.counts, self.start = [int(space.n)], np.array([space.start])
        elif isinstance(space, spaces.MultiDiscrete):
            self.counts, self.start = [int(n) for n in space.nvec.reshape(-1)], space.start.reshape(-1)
        self.shape: tuple[int, ...] = (sum(self.counts),) if self.counts else tuple(space.shape or ())
        self.size = int(np.prod(self.shape))
        if self.counts:
            # index of category 0 of each component, so that one scatter writes all one-hots
            self.offsets = np.cumsum([0, *self.counts[:-1]]) - self.start

    def vector(self, obs: Tensor) -> Tensor:
        flat = obs.reshape(len(obs), -1)
        if not self.counts:
            return flat.to(torch.get_default_dtype())
        index = flat.long() + torch.as_tensor(self.offsets, device=flat.device)
        # F.one_hot would allocate integers of twice the size first
        return torch.zeros(len(flat), self.size, device=flat.device).scatter_(1, index, 1.0)

    def vector_numpy(self, obs: Array) -> Array:
        flat = obs.reshape(len(obs), -1)
        if not self.counts:
            return flat.astype(self.dtype, copy=False)
        numbers = np.zeros((len(flat), self.size), self.dtype)
        np.put_along_axis(numbers, flat + self.offsets, 1.0, axis=1)
        return numbers
