"""Nested state taken apart for the disk, tensors here and plain data there, and put together again."""

from collections.abc import Mapping

import torch
from torch import Tensor

from rl_training.core.errors import RunFault
from rl_training.core.types import State

NOT_LEARNED = ("source", "trainer", "envs", "generators")
"""Groups of a run's state that are no learner's: what was seen, logged and drawn."""
MAY_BE_INFINITE = ("log_alpha",)
"""Names in a learner's groups: a fixed temperature of 0 has a logarithm, too."""


def refuse_non_finite(
    state: Mapping[str, State], consequence: str, error: type[Exception] = RunFault
) -> None:
    """Raise if a weight or statistic of a learner is nan or infinite: nothing good can follow from it."""
    learned = {group: content for group, content in state.items() if group not in NOT_LEARNED}
    for path, tensor in split_state(learned)[0].items():
        checked = tensor.is_floating_point() and path.rpartition("/")[2] not in MAY_BE_INFINITE
        if checked and not bool(torch.isfinite(tensor).all()):
            raise error(f"{consequence}: '{path}' holds a number that is not finite")


def split_state(state: State, prefix: str = "") -> tuple[dict[str, Tensor], State]:
    """Return (tensors under paths such as `a/b`, the same nesting without them); nothing is copied."""
    tensors: dict[str, Tensor] = {}
    plain: State = {}
    for key, value in state.items():
        if "/" in key:
            raise ValueError(f"state has a key '{key}', but '/' separates the parts of a path")
        if isinstance(value, Tensor):
            tensors[f"{prefix}{key}"] = value
        elif isinstance(value, dict):
            inner, plain[key] = split_state(value, f"{prefix}{key}/")
            tensors |= inner
        else:
            plain[key] = value
    return tensors, plain


def join_state(tensors: Mapping[str, Tensor], plain: State) -> State:
    """Put the tensors of `split_state` back into their places."""
    state: State = {
        key: join_state({}, value) if isinstance(value, dict) else value for key, value in plain.items()
    }
    for path, tensor in tensors.items():
        *parents, name = path.split("/")
        place = state
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise ValueError(f"'{path}' lies inside of a value")
        place[name] = tensor
    return state
