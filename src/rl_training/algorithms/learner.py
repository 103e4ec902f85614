"""What every learner shares: state that follows from its owners, and a training mode that lasts while it learns."""

import contextlib
from collections.abc import Iterator, Mapping
from functools import lru_cache

import torch
from torch import Tensor, nn

from rl_training.core.state import Owners, gather, not_finite, scatter
from rl_training.core.types import State


class BaseLearner:
    """Declares once what it owns; saving, restoring and the check for finite numbers follow from that."""

    owners: Owners
    """By name; the first part of a name is the file it is saved in, and `model` is all that acting needs."""
    moded: tuple[nn.Module, ...] = ()
    """Networks with layers that may behave otherwise while learning, such as dropout: those with an encoder."""

    def state_dict(self) -> dict[str, State]:
        """Return everything that later updates depend on, as live tensors."""
        return gather(self.owners)

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        """Restore everything in place."""
        scatter(self.owners, state)

    def not_finite(self) -> str | None:
        """Return the name of something learned that is nan or infinite, if there is any."""
        return not_finite(self.owners)

    @contextlib.contextmanager
    def learning(self) -> Iterator[None]:
        """Let networks be in training mode; acting and evaluating see them out of it."""
        for network in self.moded:
            network.train()
        try:
            yield
        finally:
            for network in self.moded:
                network.eval()


def scalar(value: float) -> Tensor:
    """Return a 0-d tensor, the same for the same number: most settings do not change from update to update."""
    return _scalar(value, torch.get_default_dtype())


@lru_cache(maxsize=16)
def _scalar(value: float, dtype: torch.dtype) -> Tensor:
    return torch.tensor(value, dtype=dtype)
