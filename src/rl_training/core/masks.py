"""Which actions are allowed, beside what is seen: one reserved entry of an observation, which is never a feature.

A mask is true for what is allowed: Discrete [n]; MultiDiscrete all components side by side [n_1 + n_2 + …];
MultiBinary a pair for each component, first "0 is allowed", then "1 is allowed" [2n]. As part of an observation it
reaches rollouts, replay, final observations, checkpoints and evaluations by the way that observations go.
"""

from typing import Any, TypeVar

import numpy as np
from gymnasium import Space, spaces

from rl_training.core.types import Array, EnvSpec, joined

MASK_KEY = "/action_mask"
"""Where it lies: the flattened key of an environment's own entry never begins with a slash."""
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


def possible(masks: Array, counts: list[int]) -> Array:
    """Return which rows [N] of masks [N, M] allow something in every component of an action."""
    starts = np.cumsum([0, *counts[:-1]])
    rows: Array = np.asarray(np.logical_or.reduceat(masks, starts, axis=1).all(axis=1))
    return rows


def random_allowed(allowed: Array, rng: np.random.Generator) -> Array:
    """Return one of the allowed choices [N] of each row [N, A], all with the same chance."""
    counts = np.cumsum(allowed, axis=1)
    number = rng.integers(0, counts[:, -1])
    # the first choice that has more allowed ones up to and with it than `number`
    first: Array = (counts > number[:, None]).argmax(axis=1)
    return first
