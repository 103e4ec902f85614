"""Action masks, stored in a reserved entry of an observation, which is never a feature.

A mask is true for allowed actions: Discrete [n]; MultiDiscrete all components concatenated [n_1 + n_2 + …]; MultiBinary
a pair for each component, first "0 is allowed", then "1 is allowed" [2n]. How they are
stored with observations: `stored.py`.
"""

import math
from typing import Any, TypeVar

import numpy as np
from gymnasium import Space, spaces

from rl_training.core.types import Array, joined

MASK_KEY = "/action_mask"
"""The reserved entry; environments must not use this name."""
FORBIDDEN = -1e9
"""The logit of forbidden actions: their probability is 0, and 0 times its logarithm is finite."""

ArrayT = TypeVar("ArrayT")


def mask_counts(space: Space[Any]) -> list[int] | None:
    """Return the number of mask entries of each component of an action; None for actions that cannot be masked.

    >>> mask_counts(spaces.MultiDiscrete([2, 3]))
    [2, 3]
    >>> mask_counts(spaces.MultiBinary(2))
    [2, 2]
    """
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(count) for count in space.nvec.reshape(-1)]
    if isinstance(space, spaces.MultiBinary):
        return [2] * int(np.prod(space.shape))
    return None


def split_mask(obs: ArrayT | dict[str, ArrayT]) -> tuple[ArrayT | dict[str, ArrayT], ArrayT | None]:
    """Return an observation without its mask, and the mask (None if there is none)."""
    if not isinstance(obs, dict) or MASK_KEY not in obs:
        return obs, None
    return joined({key: part for key, part in obs.items() if key != MASK_KEY}), obs[MASK_KEY]


def with_mask(obs: ArrayT | dict[str, ArrayT], mask: ArrayT) -> dict[str, ArrayT]:
    """Return an observation with its mask as an entry."""
    return {**(obs if isinstance(obs, dict) else {"": obs}), MASK_KEY: mask}


class NoMask(ValueError):
    """Raised for an invalid mask; the message continues a text such as "an action mask"."""


def as_masks(said: Any, *shape: int) -> Array:
    """Return a mask [M], or masks [N, M], as bools; raise `NoMask` for anything but ones and zeros.

    The components of a mask may be separate arrays, as in Gymnasium's own spaces.
    """
    parts = said
    if isinstance(said, tuple | list) and len(shape) == 1 and any(np.ndim(part) for part in said):
        parts = np.concatenate([np.reshape(part, -1) for part in said])
    try:
        array = np.asarray(parts)
    except ValueError:
        raise NoMask(f"of parts that differ in length; concatenate its entries to shape {shape}") from None
    if array.dtype == object and array.size:  # one list each, as Gymnasium collects them
        return np.stack([as_masks(row, *shape[1:]) for row in array]) if len(shape) == 2 else _refused(said)
    if array.dtype.kind not in "biuf":
        return _refused(said)
    if array.size != math.prod(shape) or (len(shape) == 2 and len(array) != shape[0]):
        raise NoMask(f"of shape {array.shape} instead of {shape}")
    allowed: Array = array == 1
    if array.dtype != np.bool_ and not (allowed | (array == 0)).all():
        odd = array[~(allowed | (array == 0))].reshape(-1)[0]
        raise NoMask(f"with {odd} in it; use 1 or true for allowed actions, and 0 or false for others")
    return allowed.reshape(shape)


def _refused(said: Any) -> Array:
    kind = "None" if said is None else f"a {type(said).__name__}"
    raise NoMask(f"that is {kind} instead of ones and zeros")


def possible(masks: Array, counts: list[int]) -> Array:
    """Return which rows [N] of masks [N, M] allow at least one choice in every component of an action."""
    starts = np.cumsum([0, *counts[:-1]])
    return np.asarray(np.logical_or.reduceat(masks, starts, axis=1).all(axis=1))


def apply_mask(numbers: Any, mask: Any, fill: float = FORBIDDEN, xp: Any = np) -> Any:
    """Return logits or values [N, A] with `fill` where the mask forbids an action; unchanged if there is no mask.

    `xp` is the library of the numbers, NumPy or torch.

    >>> apply_mask(np.array([[1.0, 2.0]]), np.array([[True, False]]), -np.inf)
    array([[  1., -inf]])
    """
    return numbers if mask is None else xp.where(mask, numbers, fill)


def random_actions(mask: Array | None, rows: int, count: int, rng: np.random.Generator) -> Array:
    """Return uniformly random choices [N] among `count` actions, or among those that a mask [N, A] allows."""
    return rng.integers(0, count, rows) if mask is None else random_allowed(mask, rng)


def random_allowed(allowed: Array, rng: np.random.Generator) -> Array:
    """Return a uniformly random allowed choice [N] for each row [N, A]."""
    counts = np.cumsum(allowed, axis=1)
    number = rng.integers(0, counts[:, -1])
    return np.asarray((counts > number[:, None]).argmax(axis=1))
