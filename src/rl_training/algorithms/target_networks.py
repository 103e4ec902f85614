"""Target networks: slowly moving copies for bootstrapping."""

import copy

import torch
from torch import Tensor, nn

from rl_training.algorithms.optimizers import flatten_parameters
from rl_training.core.errors import UserError
from rl_training.core.types import State


class TargetNetwork:
    """A copy of `online` that follows it; `flat` is the vector of its parameters.

    One operation moves all parameters. Buffers, such as running statistics, are copied; frozen parameters are kept.
    """

    is_learned = True

    def __init__(self, online: nn.Module, flat: Tensor) -> None:
        """The argument `flat` is the vector of the online parameters."""
        try:
            self.network = copy.deepcopy(online)
        except Exception as error:
            raise UserError(
                f"the network cannot be copied to make a target network: {type(error).__name__}: {error}"
            ) from error
        self.flat = flatten_parameters([p for p in self.network.parameters() if p.requires_grad])
        self.network.requires_grad_(False)
        self._online_flat = flat
        if len(flat) != len(self.flat):
            raise ValueError(f"flat has {len(flat)} numbers, but the network has {len(self.flat)} parameters")
        self._online = online
        self._has_buffers = any(True for _ in online.buffers())

    @torch.no_grad()
    def follow(self, tau: float = 1.0) -> None:
        """Move towards the online network by the fraction `tau`; 1 copies it."""
        if tau == 1.0:
            self.flat.copy_(self._online_flat)
        else:
            self.flat.lerp_(self._online_flat, tau)
        if self._has_buffers:  # looked up every time: a module may replace its buffers
            for mine, online in zip(self.network.buffers(), self._online.buffers(), strict=True):
                mine.copy_(online)

    def state_dict(self) -> State:
        return dict(self.network.state_dict())

    def load_state_dict(self, state: State) -> None:
        self.network.load_state_dict(state)
