"""Declared state: a component names the owners of its state once; saving, restoring and checking follow from that.

An owner is a module, an optimizer or anything else with `state_dict` and `load_state_dict`, a random generator, a
tensor, or a `Counter`. Its name is a path such as `learner/noise_rng`; the first part is the file it is saved in.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.seeding import generator_state, set_generator_state
from rl_training.core.types import State


@runtime_checkable
class Stateful(Protocol):
    """Saves and restores itself."""

    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> Any: ...


@dataclass
class Counter:
    """A whole number that is saved."""

    value: int = 0


Owner: TypeAlias = Stateful | nn.Module | np.random.Generator | Tensor | Counter
Owners: TypeAlias = Mapping[str, Owner]


def gather(owners: Owners) -> dict[str, State]:
    """Return the state of all owners, nested by the parts of their names; tensors are the live ones, not copies."""
    state: dict[str, State] = {}
    for name, owner in owners.items():
        *parents, last = name.split("/")
        place: State = state
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = _state_of(owner)
    return state


def scatter(owners: Owners, state: Mapping[str, State]) -> None:
    """Restore all owners in place from what `gather` returned; raise an error that names a value that is not finite."""
    for name, owner in owners.items():
        _restore(owner, _part_of(state, name))
    if (culprit := not_finite(owners, gather(owners))) is not None:
        raise ValueError(f"'{culprit}' holds a number that is not finite")


def learned(owners: Owners) -> Owners:
    """Return the owners with weights: networks, their target copies, single parameters.

    Optimizers, generators and counters are left out: a run that is fine-tuned from the weights has its own.
    """
    return {name: owner for name, owner in owners.items() if _is_weight(owner)}


def _is_weight(owner: Owner) -> bool:
    if isinstance(owner, Tensor):
        return owner.requires_grad
    return isinstance(owner, nn.Module) or isinstance(getattr(owner, "network", None), nn.Module)


def not_finite(owners: Owners, state: Mapping[str, State]) -> str | None:
    """Return the name of a weight, moment or statistic in `state` that is nan or infinite, None if there is none.

    `state` is what `gather(owners)` returned. Parameters of modules, tensors with a gradient and owners with
    `is_learned`, such as optimizers, must be finite. Buffers of modules may be infinite, as masks are, but not nan.
    Other owners are not checked.
    """
    for name, owner in owners.items():
        learned = owner.requires_grad if isinstance(owner, Tensor) else getattr(owner, "is_learned", False)
        module = owner if isinstance(owner, nn.Module) else getattr(owner, "network", None)  # of a target
        buffers = {key for key, _ in module.named_buffers()} if isinstance(module, nn.Module) else set()
        if not learned and not isinstance(owner, nn.Module):
            continue
        for path, tensor in _tensors(_part_of(state, name), name):
            is_buffer = path.removeprefix(f"{name}/") in buffers
            if bool((torch.isnan(tensor) if is_buffer else ~torch.isfinite(tensor)).any()):
                return path
    return None


def _part_of(state: Mapping[str, State], name: str) -> Any:
    part: Any = state
    for key in name.split("/"):
        part = part[key]
    return part


def _state_of(owner: Owner) -> Any:
    if isinstance(owner, np.random.Generator):
        return generator_state(owner)
    if isinstance(owner, Counter):
        return owner.value
    if isinstance(owner, Tensor):
        return owner.detach()
    return dict(owner.state_dict())


def _restore(owner: Owner, state: Any) -> None:
    if isinstance(owner, np.random.Generator):
        set_generator_state(owner, state)
    elif isinstance(owner, Counter):
        owner.value = int(state)
    elif isinstance(owner, Tensor):
        if state.shape != owner.shape:  # copy_ would broadcast a smaller one
            raise ValueError(f"a tensor has shape {tuple(state.shape)} instead of {tuple(owner.shape)}")
        with torch.no_grad():
            owner.copy_(state)
    else:
        owner.load_state_dict(state)


def _tensors(state: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(state, Tensor):
        yield name, state
    elif isinstance(state, Mapping):
        for key, part in state.items():
            yield from _tensors(part, f"{name}/{key}")


def split_state(state: State, prefix: str = "") -> tuple[dict[str, Tensor], State]:
    """Return (tensors under paths such as `a/b`, the same nesting without them); nothing is copied.

    A "/" within a key is escaped in its path.
    """
    tensors: dict[str, Tensor] = {}
    plain: State = {}
    for key, value in state.items():
        path = f"{prefix}{key.replace('%', '%25').replace('/', '%2F')}"
        if isinstance(value, Tensor):
            tensors[path] = value
        elif isinstance(value, dict):
            inner, plain[key] = split_state(value, f"{path}/")
            tensors |= inner
        else:
            plain[key] = value
    return tensors, plain


def join_state(tensors: Mapping[str, Tensor], plain: State) -> State:
    """Put the tensors of `split_state` back into their places."""
    items = plain.items()
    state: State = {key: join_state({}, value) if isinstance(value, dict) else value for key, value in items}
    for path, tensor in tensors.items():
        *parents, name = [part.replace("%2F", "/").replace("%25", "%") for part in path.split("/")]
        place = state
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise ValueError(f"'{path}' is inside a value that is not a dict")
        place[name] = tensor
    return state


def as_arrays(state: Any) -> Any:
    """Return nested state with copies of its tensors as arrays, which other processes receive faster."""
    if isinstance(state, Tensor):
        return state.detach().cpu().numpy().copy()
    if isinstance(state, dict):
        return {key: as_arrays(value) for key, value in state.items()}
    return state


def as_tensors(state: Any) -> Any:
    """Return what `as_arrays` was made from; the arrays are not copied."""
    if isinstance(state, np.ndarray):
        return torch.from_numpy(state)
    if isinstance(state, dict):
        return {key: as_tensors(value) for key, value in state.items()}
    return state
