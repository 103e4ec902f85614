"""Weights and statistics of a policy as one array of bytes, so that a copy of the policy can act elsewhere."""

from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.errors import UserError
from rl_training.core.types import Array

ALIGNMENT = 64


class Place(NamedTuple):
    """Where one tensor lies in the bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    stop: int


class PackedModule:
    """Packs the state of a module, always in the same layout; a module that is built alike can unpack it."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.places: list[Place] = []
        stop = 0
        for name, tensor in module.state_dict().items():
            if not isinstance(tensor, Tensor):
                raise UserError(
                    f"'{name}' of {type(module).__name__} is not a tensor, so other samplers and opponents cannot "
                    "receive it; leave it out of state_dict, or use engine 'local' with env_groups 1 and lag 0, and "
                    "opponents self"
                )
            start = -(-stop // ALIGNMENT) * ALIGNMENT
            stop = start + tensor.element_size() * prod(tensor.shape)
            self.places.append(Place(name, tuple(tensor.shape), tensor.dtype, start, stop))
        self.nbytes = stop

    def pack(self) -> Array:
        """Return a copy of the state [nbytes], uint8."""
        packed = np.zeros(self.nbytes, np.uint8)
        for place, tensor in zip(self.places, self.module.state_dict().values(), strict=True):
            content = tensor.detach().to("cpu").reshape(-1).view(torch.uint8)
            packed[place.start : place.stop] = content.numpy()
        return packed

    def unpack(self, packed: Array) -> None:
        """Load what `pack` returned, in place."""
        if packed.shape != (self.nbytes,):
            raise ValueError(f"there are {packed.size} bytes, but the module has {self.nbytes}")
        content = torch.from_numpy(packed)
        self.module.load_state_dict(
            {
                place.name: content[place.start : place.stop].view(place.dtype).view(place.shape)
                for place in self.places
            }
        )


def share_storage(module: nn.Module, other: nn.Module) -> None:
    """Let all parameters and buffers of a module be those of another one that was built alike."""
    for name in ("parameters", "buffers"):
        for mine, theirs in zip(getattr(module, name)(), getattr(other, name)(), strict=True):
            mine.data = theirs.data
