"""The base of all learners: state that is saved and restored, training mode, and metrics."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.losses import Loss, function_name
from rl_training.algorithms.shards import WHOLE, Shards, Whole
from rl_training.config import UpdatePath
from rl_training.config.schedules import ScheduledSetting
from rl_training.core.errors import UserError
from rl_training.core.state import Owners, gather, learned, not_finite, scatter
from rl_training.core.types import Metrics, Numbers, Progress, State, StepMetrics, UpdateResult
from rl_training.models.encoders import encoder_name
from rl_training.models.encoders.checking import learns_from_one_row, treats_rows_separately
from rl_training.policies.base import NetworkPolicy


class BaseLearner:
    """A learner declares its `owners`, which are saved, restored and checked for finite numbers."""

    owners: Owners
    """State by name. The first part of a name is the file it is saved in; `model` is everything that acting needs."""
    update_path = "autograd"
    """How gradients are computed: `explicit` if `models.fast` supports the networks and the losses, which is faster."""
    networks_with_modes: tuple[nn.Module, ...] = ()
    """Networks that may have layers with a training mode, such as dropout: those with an encoder."""

    shards: Whole | Shards = WHOLE
    """How minibatches are divided: not at all, or into shards, if the learner `takes_shards`."""
    takes_shards = False
    """Whether every gradient of `update` comes from `shards.differentiate` or from an objective in shards."""

    fixed_learning_rate: float | None = None
    """Set by a callback: replaces the learning rate of the settings and its schedule."""

    _rate: ScheduledSetting

    def learning_rate(self, progress: Progress) -> Tensor:
        """Return the learning rate at this point of the run."""
        if self.fixed_learning_rate is not None:
            return scalar(self.fixed_learning_rate)
        return scalar(self._rate.at(progress.fraction))

    def use_shards(self, shards: Shards) -> None:
        """Compute gradients in shards from now on; raise an error if the learner or an encoder cannot."""
        if not self.takes_shards:
            raise UserError(
                f"learner_shards is {shards.count}, but {type(self).__name__} computes its gradients without shards; "
                "set learner_shards to 1"
            )
        policy = self.owners.get("model")
        encoder = getattr(getattr(policy, "network", None), "encoder", None)
        if self.networks_with_modes and encoder is not None:
            assert isinstance(policy, NetworkPolicy)
            with self.learning():
                separate = treats_rows_separately(encoder, policy.inputs)
            if not separate:
                raise UserError(
                    f"learner_shards is {shards.count}, but encoder {encoder_name(type(encoder))} uses statistics of "
                    "the whole minibatch, as batch normalisation does; set learner_shards to 1, or use another encoder"
                )
        self.shards = shards

    def update(self, batch: Any, progress: Progress) -> UpdateResult:
        """Train on one batch; see `core.protocols.Learner`."""
        raise NotImplementedError(f"{type(self).__name__} does not define update")

    def state_dict(self) -> dict[str, State]:
        """Return everything that later updates depend on, as live tensors."""
        return gather(self.owners)

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        scatter(self.owners, state)

    def learned_state(self) -> dict[str, State]:
        """Return only networks and weights, as live tensors."""
        return gather(learned(self.owners))

    def load_learned(self, state: Mapping[str, State]) -> None:
        """Load only networks and weights."""
        scatter(learned(self.owners), state)

    def not_finite(self, state: Mapping[str, State]) -> str | None:
        """Return the name of a learned value in `state` that is nan or infinite, None if there is none."""
        return not_finite(self.owners, state)

    @contextlib.contextmanager
    def learning(self) -> Iterator[None]:
        """Set networks to training mode during an update, except frozen parts; acting and evaluation use eval mode."""
        for network in self.networks_with_modes:
            network.train()
            for module in network.modules():
                trained = [parameter.requires_grad for parameter in module.parameters()]
                if trained and not any(trained):  # frozen: its statistics must not change either
                    module.eval()
        try:
            with np.errstate(all="ignore"):  # the run checks its metrics and raises a clear error itself
                yield
        finally:
            for network in self.networks_with_modes:
                network.eval()


def refuse_single_rows(policy: NetworkPolicy, rows: int, remedy: str) -> None:
    """Raise an error if the smallest batch has one row and the encoder uses batch statistics."""
    encoder = getattr(policy.network, "encoder", None)
    if rows == 1 and encoder is not None and not learns_from_one_row(encoder, policy.inputs):
        name = encoder_name(type(encoder))
        raise UserError(
            f"encoder {name} cannot learn from a single row, and the smallest batch has one; {remedy}"
        )


def named_path(path: str, losses: Mapping[str, Loss]) -> str:
    """Return the name of the path, which is that of the networks, with the losses that autograd differentiates."""
    by_autograd = [name for name, loss in losses.items() if loss.gradient is None]
    if path == "autograd" or not by_autograd:
        return path
    return f"{path}, {' and '.join(by_autograd)} by autograd"


def refuse_autograd(wanted: UpdatePath, path: str, losses: Mapping[str, Loss], policy: NetworkPolicy) -> None:
    """Raise an error if `update_path: explicit` is not possible with these networks and losses."""
    if wanted != "explicit":
        return
    if path != "explicit":
        encoder = getattr(policy.network, "encoder", None)
        culprit = "the network" if encoder is None else f"the encoder {encoder_name(type(encoder))}"
        raise UserError(
            f"update_path is 'explicit', but there is no hand-written backward pass for {culprit} with these settings; "
            "use update_path 'auto'"
        )
    for name, loss in losses.items():
        if loss.gradient is None:
            raise UserError(
                f"update_path is 'explicit', but {name} {function_name(loss.function)} has no hand-written gradient; "
                f"use update_path 'auto', or give the class a {name}_gradient"
            )


def as_metrics(history: Sequence[StepMetrics]) -> Metrics:
    """Return the mean of each metric over the steps that report it, as 0-d tensors."""
    names = dict.fromkeys(name for step in history for name in step)
    found = {name: _mean([step[name] for step in history if name in step]) for name in names}
    plain = {name: number for name, number in found.items() if not isinstance(number, Tensor)}
    # converting all at once takes as long as converting one
    numbers = torch.tensor(list(plain.values()), dtype=torch.get_default_dtype()).unbind()
    return found | dict(zip(plain, numbers, strict=True))


def _mean(numbers: list[Numbers]) -> Numbers:
    if isinstance(numbers[0], Tensor):  # one operation: it may wait for a device
        return torch.stack(numbers).mean()
    return sum(numbers) / len(numbers)


def scalar(value: float) -> Tensor:
    """Return a 0-d tensor; cached, as most settings do not change from update to update."""
    return _scalar(value, torch.get_default_dtype())


@lru_cache(maxsize=16)
def _scalar(value: float, dtype: torch.dtype) -> Tensor:
    return torch.tensor(value, dtype=dtype)
