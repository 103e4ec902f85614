"""What is stored per step: the observation and, in reserved entries beside it, an action mask and what critics read.

As part of observations, reserved entries are in rollouts, replay, final observations, blocks and checkpoints without
further code. They are never features of the actor. `EnvSpec.critic_space` describes what only critics read: a plain
space is stored under `CRITIC_KEY`, and the leaves of a Dict as `/critic/` and their own keys, such as `/critic/state`.
"""

from typing import Any, TypeVar

import numpy as np
from gymnasium import Space, spaces

from rl_training.core.errors import UserError
from rl_training.core.spaces.layout import observation_leaves
from rl_training.core.spaces.masks import MASK_KEY, mask_counts, split_mask
from rl_training.core.types import EnvSpec, joined

CRITIC_KEY = "/critic"
"""The reserved entry of what only critics read; environments must not use this name."""
INSIDE = f"{CRITIC_KEY}/"

ArrayT = TypeVar("ArrayT")


def stored_space(spec: EnvSpec) -> Space[Any]:
    """Return the space of what is stored per step: the observation, and the reserved entries if there are any."""
    if not spec.masked and spec.critic_space is None:
        return spec.observation_space
    for key in observation_leaves(spec.observation_space):
        if key == MASK_KEY or is_for_critic(key):
            raise UserError(f"an observation has an entry '{key}', which is a reserved name; rename it")
    # flattened keys omit the empty first part, so the entries keep their names
    entries: list[tuple[str, Space[Any]]] = [("", spec.observation_space)]
    if spec.critic_space is not None:
        entries.append((CRITIC_KEY, spec.critic_space))
    if spec.masked:
        size = sum(mask_counts(spec.action_space) or ())
        entries.append((MASK_KEY, spaces.Box(0, 1, (size,), np.bool_)))
    return spaces.Dict(entries)


def is_for_critic(key: str) -> bool:
    """Return whether a flattened key is a reserved one of what only critics read."""
    return key == CRITIC_KEY or key.startswith(INSIDE)


def split_critic(
    obs: ArrayT | dict[str, ArrayT],
) -> tuple[ArrayT | dict[str, ArrayT], ArrayT | dict[str, ArrayT] | None]:
    """Return an observation without what only critics read, and this as an observation of `critic_space`.

    The second is None if there is nothing of the kind.

    >>> split_critic({"": 1, "/critic/state": 2})
    (1, {'state': 2})
    """
    if not isinstance(obs, dict):
        return obs, None
    entries = {
        key.removeprefix(INSIDE) if key != CRITIC_KEY else "": part
        for key, part in obs.items()
        if is_for_critic(key)
    }
    if not entries:
        return obs, None
    return joined({key: part for key, part in obs.items() if not is_for_critic(key)}), joined(entries)


def with_critic(obs: ArrayT | dict[str, ArrayT], entries: ArrayT | dict[str, ArrayT]) -> dict[str, ArrayT]:
    """Return an observation with what only critics read as reserved entries: the inverse of `split_critic`."""
    seen = obs if isinstance(obs, dict) else {"": obs}
    if not isinstance(entries, dict):
        return {**seen, CRITIC_KEY: entries}
    return {**seen, **{f"{INSIDE}{key}": part for key, part in entries.items()}}


def under_own_keys(obs: ArrayT | dict[str, ArrayT]) -> ArrayT | dict[str, ArrayT]:
    """Return a stored observation without its mask, with the critic's entries under the environment's own keys.

    >>> under_own_keys({"seen": 1, "/critic/state": 2, "/action_mask": 3})
    {'seen': 1, 'state': 2}
    """
    seen = split_mask(obs)[0]
    if not isinstance(seen, dict) or not any(map(is_for_critic, seen)):
        return seen
    return {key.removeprefix(INSIDE): part for key, part in seen.items()}
