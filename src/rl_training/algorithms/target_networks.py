"""Target networks: slowly moving copies for bootstrapping."""

import copy

import torch
from torch import Tensor, nn

from rl_training.algorithms.optimizers import flatten_parameters
from rl_training.core.errors import UserError
from rl_training.core.types import State


class TargetNetwork:
    """A copy of `online` that follows it; `flat` is the vector the online parameters are views of.

    One operation moves all parameters. Buffers, such as running statistics, are copied as they are; frozen parameters
    stay the copies they are.
    """

    is_learned = True

    def __init__(self, online: nn.Module, flat: Tensor) -> None:
        try:
            self.network = copy.deepcopy(online)
        except Exception as error:
            raise UserError(
                f"a target network needs a copy, and this one cannot be copied: {type(error).__name__}: {error}"
            ) from error
        self._flat = flatten_parameters([p for p in self.network.parameters() if p.requires_grad])
        self.network.requires_grad_(False)
        self._online_flat = flat
        if len(flat) != len(self._flat):
            raise ValueError(f"{len(flat)} numbers belong to a network of {len(self._flat)}")
        self._online = online
        self._has_buffers = any(True for _ in online.buffers())

    @torch.no_grad()
    def follow(self, tau: float = 1.0) -> None:
        """Move towards the online network by the fraction `tau`; 1 copies it."""
        if tau == 1.0:
            self._flat.copy_(self._online_flat)
        else:
            self._flat.lerp_(self._online_flat, tau)
        if self._has_buffers:  # look them up again: a module may have replaced its buffers
            for mine, online in zip(self.network.buffers(), self._online.buffers(), strict=True):
                mine.copy_(online)

    def state_dict(self) -> State:
        """Return parameters and buffers."""
        return dict(self.network.state_dict())

    def load_state_dict(self, state: State) -> None:
        """Restore them in place."""
        self.network.load_state_dict(state)
