"""From observations of any supported space to one feature vector, in torch and in NumPy alike."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import Space, spaces
from torch import Tensor

from rl_training.core.spaces import float_dtype, observation_leaves
from rl_training.core.types import Array, Obs, ObsArray


class VectorEncoder:
    """Concatenates the leaves of an observation: Box flattened, Discrete and MultiDiscrete one-hot, MultiBinary 0/1.

    `continuous` [D] marks the features that come from a Box: only those are ever normalised.
    """

    def __init__(self, space: Space[Any]) -> None:
        self._leaves = [_LeafEncoder(key, leaf) for key, leaf in observation_leaves(space).items()]
        self.size = sum(leaf.size for leaf in self._leaves)
        self.continuous = torch.cat([torch.full((leaf.size,), leaf.continuous) for leaf in self._leaves])

    def encode(self, obs: Obs) -> Tensor:
        """Return features [B, D]."""
        if isinstance(obs, Tensor):
            return self._leaves[0].encode(obs)
        return torch.cat([leaf.encode(obs[leaf.key]) for leaf in self._leaves], dim=-1)

    def encode_numpy(self, obs: ObsArray) -> Array:
        """Return features [N, D]; a plain float Box of one dimension is passed through without a copy."""
        if not isinstance(obs, dict):
            return self._leaves[0].encode_numpy(obs)
        return np.concatenate([leaf.encode_numpy(obs[leaf.key]) for leaf in self._leaves], axis=-1)


class _LeafEncoder:
    def __init__(self, key: str, space: Space[Any]) -> None:
        self.key = key
        self.dtype = float_dtype()
        self.continuous = isinstance(space, spaces.Box)
        self.counts: list[int] = []  # categories per component; empty for what is already a number
        if isinstance(space, spaces.Discrete):
            self.counts, self.start = [int(space.n)], np.array([space.start])
        elif isinstance(space, spaces.MultiDiscrete):
            self.counts, self.start = [int(n) for n in space.nvec.reshape(-1)], space.start.reshape(-1)
        self.size = sum(self.counts) if self.counts else int(np.prod(space.shape or ()))
        if self.counts:
            # feature index of category 0 of each component, so that one scatter writes all one-hots
            self.offsets = np.cumsum([0, *self.counts[:-1]]) - self.start

    def encode(self, obs: Tensor) -> Tensor:
        flat = obs.reshape(len(obs), -1)
        if not self.counts:
            return flat.to(torch.get_default_dtype())
        index = flat.long() + torch.as_tensor(self.offsets, device=flat.device)
        if len(self.counts) == 1:
            return F.one_hot(index[:, 0], self.size).to(torch.get_default_dtype())
        return torch.zeros(len(flat), self.size, device=flat.device).scatter_(1, index, 1.0)

    def encode_numpy(self, obs: Array) -> Array:
        flat = obs.reshape(len(obs), -1)
        if not self.counts:
            return flat.astype(self.dtype, copy=False)
        features = np.zeros((len(flat), self.size), self.dtype)
        np.put_along_axis(features, flat + self.offsets, 1.0, axis=1)
        return features
