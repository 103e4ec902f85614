"""Converts actions between the policy's units and the environment's."""

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.core.spaces.layout import action_layout
from rl_training.core.types import Array


class ActionAdapter:
    """Converts stored actions [N, ...] to actions of the environment, and back; the input is not changed.

    Discrete families: shifted by the space's `start`. Box: a dimension with two finite bounds is mapped from
    [-1, 1] to [low, high], so any bounds suit the same initial policy; then everything is clipped to the
    bounds. The stored action and its log-probability stay unclipped.
    """

    def __init__(self, space: Space[Any]) -> None:
        action_layout(space)  # refuses unsupported spaces
        self.space = space
        self.start: Array | int | None = None
        self.scale: Array | None = None
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            start = np.asarray(space.start)
            self.start = start if np.any(start) else None
        if isinstance(space, spaces.Box):
            bounded = np.isfinite(space.low) & np.isfinite(space.high)
            low, high = (np.where(bounded, bound, 0.0) for bound in (space.low, space.high))
            self.scale = np.where(bounded, (high - low) / 2, 1.0)
            self.offset = (high + low) / 2

    def to_env(self, action: Array) -> Array:
        """Return the environment's own copy of `action` [N, ...]."""
        shaped = action.reshape(len(action), *(self.space.shape or ()))
        if self.scale is not None:
            assert isinstance(self.space, spaces.Box)
            scaled: Array = np.clip(shaped * self.scale + self.offset, self.space.low, self.space.high)
            return scaled.astype(self.space.dtype, copy=False)
        if self.start is not None:
            return shaped + self.start
        return shaped.astype(self.space.dtype)

    def from_env(self, action: Array) -> Array:
        """Return recorded actions [N, ...] of the environment as the policy stores them."""
        shape, dtype = action_layout(self.space)
        flat = np.asarray(action).reshape(-1, *shape)
        if self.scale is not None:
            scale, offset = self.scale.reshape(-1), self.offset.reshape(-1)
            safe = np.where(scale == 0, 1.0, scale)  # bounds that are equal leave no choice
            return ((flat - offset) / safe).astype(dtype, copy=False)
        if self.start is not None:
            flat = flat - np.reshape(self.start, shape)
        return flat.astype(dtype, copy=False)
