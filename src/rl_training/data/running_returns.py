"""The discounted returns of the running episodes so far, for the statistics that scale rewards."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from rl_training.core.types import State


class RewardScaler(Protocol):
    """Keeps statistics of returns and scales rewards with them."""

    def update(self, rewards: Tensor, dones: Tensor, valid: Tensor, carry: Tensor) -> None: ...
    def update_own_turns(
        self, rewards: Tensor, dones: Tensor, valid: Tensor, carry: Tensor, unfinished: Tensor
    ) -> None: ...
    def __call__(self, rewards: Tensor) -> Tensor: ...


class RunningReturns:
    """The return so far of each row [N]; with `turns`, over its own actions."""

    def __init__(self, num_rows: int, *, turns: bool) -> None:
        self.carry = torch.zeros(num_rows, dtype=torch.float64)
        self.unfinished = torch.zeros(num_rows, dtype=torch.bool) if turns else None
        """Whether the row has acted in its episode, so that what it is paid counts."""

    def update(self, scaler: RewardScaler, rewards: Tensor, dones: Tensor, valid: Tensor) -> None:
        """Advance by the steps [T, N] and update the statistics."""
        if self.unfinished is None:
            scaler.update(rewards, dones, valid, self.carry)
        else:
            scaler.update_own_turns(rewards, dones, valid, self.carry, self.unfinished)

    def forget(self, rows: Sequence[int]) -> None:
        """Begin again in rows whose episode does not continue."""
        self.carry[list(rows)] = 0.0
        if self.unfinished is not None:
            self.unfinished[list(rows)] = False

    def state_dict(self) -> State:
        state = {"running_returns": self.carry.clone()}
        return state if self.unfinished is None else {**state, "unfinished": self.unfinished.clone()}

    def load_state_dict(self, state: State) -> None:
        """Restore the returns; those of another number of rows are ignored."""
        if len(state["running_returns"]) != len(self.carry):
            return
        self.carry.copy_(state["running_returns"])
        if self.unfinished is not None:
            self.unfinished.copy_(state["unfinished"])
