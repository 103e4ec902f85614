"""Converts Gymnasium's nested observations to flat dicts of arrays."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import Space

from rl_training.core.errors import UserError
from rl_training.core.spaces.layout import leaf_dtype, observation_leaves
from rl_training.core.types import Array, ObsArray, joined


def nested_leaves(obs: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Iterate over the leaves of a nested observation with the keys of `observation_leaves`."""
    if isinstance(obs, dict):
        entries: Any = obs.items()
    elif isinstance(obs, tuple):
        entries = enumerate(obs)
    else:
        yield key, obs
        return
    for name, part in entries:
        yield from nested_leaves(part, f"{key}/{name}" if key else str(name))


def write_batch(target: ObsArray, obs: Any) -> None:
    """Write the observations of a vector environment, nested or plain, into `target` [N, ...] in place."""
    if isinstance(target, dict):
        parts = dict(nested_leaves(obs))
        for key, array in target.items():
            array[...] = parts[key]
    else:
        target[...] = obs


def write_row(target: ObsArray, row: int, obs: Any) -> None:
    """Write one environment's observation into row `row` of `target`."""
    if isinstance(target, dict):
        parts = dict(nested_leaves(obs))
        for key, array in target.items():
            array[row] = parts[key]
    else:
        target[row] = obs


def _cast(array: Array, dtype: np.dtype[Any], key: str) -> Array:
    """Return an array in the dtype of its space; integers must keep their values."""
    if array.dtype == dtype or np.issubdtype(dtype, np.floating):
        return array.astype(dtype, copy=False)
    with np.errstate(invalid="ignore"):
        cast: Array = array.astype(dtype)
    if not np.array_equal(cast, array):
        where = f" entry '{key}'" if key else ""
        raise UserError(
            f"observation{where} has numbers from {array.min()} to {array.max()} of type {array.dtype}, which {dtype} "
            "cannot represent; use the dtype of the environment"
        )
    return cast


def batched(space: Space[Any], obs: Any) -> tuple[ObsArray, bool]:
    """Return an observation as a batch [B, ...], and whether it was a batch already.

    Accepts the input of `predict`: one observation or a batch, nested as in `space`.
    """
    given = dict(nested_leaves(obs))
    expected = observation_leaves(space)
    if set(given) != set(expected):
        raise UserError(f"observation has entries {sorted(given)}, the policy expects {sorted(expected)}")
    arrays: dict[str, Array] = {}
    sizes: set[int | None] = set()
    for key, leaf in expected.items():
        array = np.asarray(given[key])
        shape = tuple(leaf.shape or ())
        if array.shape == shape:
            sizes.add(None)
            array = array[None]
        elif array.shape[1:] == shape and array.ndim == len(shape) + 1:
            sizes.add(len(array))
        else:
            where = f" entry '{key}'" if key else ""
            raise UserError(
                f"observation{where} has shape {array.shape}, the policy expects {shape} or a batch of it"
            )
        arrays[key] = _cast(array, np.dtype(leaf_dtype(leaf)), key)
    if len(sizes) != 1:
        raise UserError("the entries of the observation have different batch sizes")
    is_batch = sizes != {None}
    return joined(arrays), is_batch
