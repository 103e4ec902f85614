"""What every learner shares: state that follows from its owners, and a training mode that lasts while it learns."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.errors import UserError
from rl_training.core.state import Owners, gather, learned, not_finite, scatter
from rl_training.core.types import Measured, Metrics, Numbers, State
from rl_training.models.encoders import encoder_name
from rl_training.models.encoders.checking import learns_from_one_row
from rl_training.policies.base import NetworkPolicy


class BaseLearner:
    """Declares once what it owns; saving, restoring and the check for finite numbers follow from that."""

    owners: Owners
    """By name; the first part of a name is the file it is saved in, and `model` is all that acting needs."""
    update_path = "autograd"
    """How gradients are found: `explicit` where networks know their own backward, which is faster."""
    moded: tuple[nn.Module, ...] = ()
    """Networks with layers that may behave otherwise while learning, such as dropout: those with an encoder."""

    def state_dict(self) -> dict[str, State]:
        """Return everything that later updates depend on, as live tensors."""
        return gather(self.owners)

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        """Restore everything in place."""
        scatter(self.owners, state)

    def learned_state(self) -> dict[str, State]:
        """Return networks and weights alone, as live tensors."""
        return gather(learned(self.owners))

    def load_learned(self, state: Mapping[str, State]) -> None:
        """Take over networks and weights in place, and nothing else."""
        scatter(learned(self.owners), state)

    def not_finite(self, state: Mapping[str, State]) -> str | None:
        """Return the name of a learned value in `state` that is nan or infinite, None if there is none."""
        return not_finite(self.owners, state)

    @contextlib.contextmanager
    def learning(self) -> Iterator[None]:
        """Let networks be in training mode, but not the frozen parts; acting and evaluating see them out of it."""
        for network in self.moded:
            network.train()
            for module in frozen_modules(network):
                module.eval()
        try:
            with np.errstate(
                all="ignore"
            ):  # what is not finite shows in the loss, and ends the run in a sentence
                yield
        finally:
            for network in self.moded:
                network.eval()


def frozen_modules(network: nn.Module) -> list[nn.Module]:
    """Return the parts that have parameters, none of which is trained: their statistics stay as they are, too."""
    return [
        module
        for module in network.modules()
        if any(True for _ in module.parameters()) and not any(p.requires_grad for p in module.parameters())
    ]


def refuse_single_rows(policy: NetworkPolicy, rows: int, remedy: str) -> None:
    """Refuse to train an encoder with batch statistics on a single row, if the smallest batch, `rows`, is one."""
    encoder = getattr(policy.network, "encoder", None)
    if rows == 1 and encoder is not None and not learns_from_one_row(encoder, policy.inputs):
        name = encoder_name(type(encoder))
        raise UserError(
            f"encoder {name} cannot learn from a single row, and the smallest batch has one; {remedy}"
        )


def as_metrics(history: Sequence[Measured]) -> Metrics:
    """Return the mean of each number that steps found, as tensors; not every step finds all of them."""
    names = dict.fromkeys(name for step in history for name in step)
    found = {name: _mean([step[name] for step in history if name in step]) for name in names}
    plain = {name: number for name, number in found.items() if not isinstance(number, Tensor)}
    # as tensors all at once, which takes the time of one
    numbers = torch.tensor(list(plain.values()), dtype=torch.get_default_dtype()).unbind()
    return found | dict(zip(plain, numbers, strict=True))


def _mean(numbers: list[Numbers]) -> Numbers:
    if isinstance(numbers[0], Tensor):  # one operation, as it may wait for a device
        return torch.stack(numbers).mean()
    return sum(numbers) / len(numbers)


def scalar(value: float) -> Tensor:
    """Return a 0-d tensor, the same for the same number: most settings do not change from update to update."""
    return _scalar(value, torch.get_default_dtype())


@lru_cache(maxsize=16)
def _scalar(value: float, dtype: torch.dtype) -> Tensor:
    return torch.tensor(value, dtype=dtype)
