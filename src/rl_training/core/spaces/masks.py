"""Which actions are allowed, beside what is seen: one reserved entry of an observation, which is never a feature.

A mask is true for what is allowed: Discrete [n]; MultiDiscrete all components side by side [n_1 + n_2 + …];
MultiBinary a pair for each component, first "0 is allowed", then "1 is allowed" [2n]. As part of an observation it
reaches rollouts, replay, final observations, checkpoints and evaluations by the way that observations go.
"""

import math
from typing import Any, TypeVar

import numpy as np
from gymnasium import Space, spaces

from rl_training.core.errors import UserError
from rl_training.core.spaces.layout import observation_leaves
from rl_training.core.types import Array, EnvSpec, joined

MASK_KEY = "/action_mask"
"""Where it lies; an environment with an entry of this name is refused."""
FORBIDDEN = -1e9
"""The logit of what is not allowed: its probability is 0, and 0 times its logarithm still a number."""

ArrayT = TypeVar("ArrayT")


def mask_counts(space: Space[Any]) -> list[int] | None:
    """Return how many entries of a mask each component of an action has; None for actions that cannot be masked.

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


def stored_space(spec: EnvSpec) -> Space[Any]:
    """Return the space of what is stored per step: the observation, and the mask beside it if there is one."""
    if not spec.masked:
        return spec.observation_space
    if MASK_KEY in observation_leaves(spec.observation_space):
        raise UserError(f"an observation has an entry '{MASK_KEY}', a name that is taken; rename it")
    size = sum(mask_counts(spec.action_space) or ())
    mask: Space[Any] = spaces.Box(0, 1, (size,), np.bool_)
    # the entries of "" keep their own names, as flattened keys leave an empty first part out
    return spaces.Dict([("", spec.observation_space), (MASK_KEY, mask)])


def split_mask(obs: ArrayT | dict[str, ArrayT]) -> tuple[ArrayT | dict[str, ArrayT], ArrayT | None]:
    """Return what is seen, without the mask, and the mask; None if there is none."""
    if not isinstance(obs, dict) or MASK_KEY not in obs:
        return obs, None
    return joined({key: part for key, part in obs.items() if key != MASK_KEY}), obs[MASK_KEY]


def with_mask(obs: ArrayT | dict[str, ArrayT], mask: ArrayT) -> dict[str, ArrayT]:
    """Return an observation with its mask beside it."""
    return {**(obs if isinstance(obs, dict) else {"": obs}), MASK_KEY: mask}


class NoMask(ValueError):
    """What is wrong with something that was given as a mask, as the end of a sentence."""


def as_masks(said: Any, *shape: int) -> Array:
    """Return a mask [M], or masks [N, M], as truth values; raise `NoMask` for anything but ones and zeros.

    The components of a mask may come one by one, as Gymnasium's own spaces take them.
    """
    parts = said
    if isinstance(said, tuple | list) and len(shape) == 1 and any(np.ndim(part) for part in said):
        parts = np.concatenate([np.reshape(part, -1) for part in said])
    try:
        array = np.asarray(parts)
    except ValueError:
        raise NoMask(
            f"of parts that differ in length; all its entries are wanted side by side {shape}"
        ) from None
    if array.dtype == object and array.size:  # one list each, as Gymnasium collects them
        return np.stack([as_masks(row, *shape[1:]) for row in array]) if len(shape) == 2 else _refused(said)
    if array.dtype.kind not in "biuf":
        return _refused(said)
    if array.size != math.prod(shape) or (len(shape) == 2 and len(array) != shape[0]):
        raise NoMask(f"of shape {array.shape}, where {shape} is wanted")
    allowed: Array = array == 1
    if array.dtype != np.bool_ and not (allowed | (array == 0)).all():
        odd = array[~(allowed | (array == 0))].reshape(-1)[0]
        raise NoMask(f"with {odd} in it; use 1 or true for what is allowed, and 0 or false for the rest")
    return allowed.reshape(shape)


def _refused(said: Any) -> Array:
    kind = "None" if said is None else f"a {type(said).__name__}"
    raise NoMask(f"that is {kind}, where ones and zeros are wanted")


def possible(masks: Array, counts: list[int]) -> Array:
    """Return which rows [N] of masks [N, M] allow something in every component of an action."""
    starts = np.cumsum([0, *counts[:-1]])
    rows: Array = np.asarray(np.logical_or.reduceat(masks, starts, axis=1).all(axis=1))
    return rows


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
    """Return one of the allowed choices [N] of each row [N, A], all with the same chance."""
    counts = np.cumsum(allowed, axis=1)
    number = rng.integers(0, counts[:, -1])
    # the first choice that has more allowed ones up to and with it than `number`
    first: Array = (counts > number[:, None]).argmax(axis=1)
    return first
