"""From what a network says of rows to the parts of a loss, and to its gradient by what the network said."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rl_training.algorithms.optimizers import FlatOptimizer
from rl_training.core.types import Measured, Numbers
from rl_training.data.rollout_buffer import RolloutBatch
from rl_training.models.encoded_network import reader
from rl_training.models.fast.backprop import (
    AutogradNetwork,
    Backprop,
    ExplicitActorCritic,
    explicit_actor_critic,
)
from rl_training.models.fast.encoded_backprop import ExplicitReader, explicit_features
from rl_training.models.fast.heads import as_type, judge_of, namespace
from rl_training.models.fast.recurrent_backprop import ExplicitRecurrent, explicit_recurrent
from rl_training.policies.actor_critic import ActorCriticPolicy

Loss: TypeAlias = Callable[..., dict[str, Tensor]]
"""(columns of a minibatch, settings by name) -> `loss` and its parts, 0-d."""
LossGradient: TypeAlias = Callable[..., tuple[Measured, Numbers, Numbers | None, Numbers]]
"""The same, and the gradient of `loss` by `logprobs`, `entropy` (None: there is none) and `new_values`."""


class ActorCriticObjective:
    """Runs the network, judges the actions, and differentiates the loss: by hand where all of it is known.

    `loss` says what is minimised, and autograd differentiates it for any network and head; `gradient` is the same
    function with its derivatives, for arrays and tensors. Tests hold both equal.
    """

    def __init__(
        self,
        policy: ActorCriticPolicy,
        optimizer: FlatOptimizer,
        loss: Loss,
        gradient: LossGradient,
        *,
        normalize: bool,
    ) -> None:
        self.policy, self.loss, self.gradient, self.normalize = policy, loss, gradient, normalize
        self._judge = judge_of(policy.head)
        self.network, self.path = self._way(policy, optimizer)
        self._own = list(policy.head.parameters())  # type: ignore[attr-defined]  # a head is a module
        self._places = [optimizer.gradient_of(parameter) for parameter in self._own]

    def _way(self, policy: ActorCriticPolicy, optimizer: FlatOptimizer) -> tuple[Backprop, str]:
        """Return how the network is run, and what that is called."""
        gradient_of = optimizer.gradient_of
        layers, read = reader(policy.network), policy.encoded
        known: ExplicitRecurrent | ExplicitActorCritic | None = explicit_recurrent(layers, gradient_of)
        if known is None:
            layers, read = policy.last_layers, policy.features
            known = explicit_actor_critic(layers, gradient_of)
        if known is None or self._judge is None:
            return AutogradNetwork(policy.run, policy.network.parameters(), gradient_of), "autograd"
        if layers is policy.network:
            return known, "explicit"
        encoders = (
            explicit_features(policy.network, gradient_of) if layers is reader(policy.network) else None
        )
        if encoders is not None:
            return ExplicitReader(encoders, known), "explicit"
        mine = {id(parameter) for parameter in layers.parameters()}
        below = [parameter for parameter in policy.network.parameters() if id(parameter) not in mine]
        return ExplicitReader(AutogradNetwork(read, below, gradient_of), known), "explicit after autograd"

    def forward(self, rows: RolloutBatch, **settings: Any) -> tuple[Measured, tuple[Numbers, ...]]:
        """Return the loss's parts for a minibatch, and its gradients by all that `backward` goes back from."""
        params, values = self.network.forward(rows)
        if self.network.explicit and self._judge is not None:
            if rows.action_masks is not None:
                head = self.policy.head
                allowed: Any = head.allowed_tensor if isinstance(params, Tensor) else head.allowed
                params = allowed(params, rows.action_masks)
            logprobs, entropy, back = self._judge(params, rows.actions)
            columns = self._columns(rows, logprobs, entropy, values)
            metrics, by_logprobs, by_entropy, by_values = self.gradient(columns, **settings)
            by_params, *by_own = back(by_logprobs, by_entropy)
            return metrics, (by_params, by_values, *by_own)
        said = [params.requires_grad_(), values.requires_grad_()]
        logprobs, entropy = self.policy.judged(params, rows)
        losses = self.loss(self._columns(rows, logprobs, entropy, values), **settings)
        gradients = torch.autograd.grad(
            losses["loss"], [*said, *self._own], allow_unused=True, materialize_grads=True
        )
        return {name: part.detach() for name, part in losses.items()}, gradients

    def backward(self, gradients: tuple[Numbers, ...]) -> None:
        """Write the gradients of all parameters: the network's, and what the head itself has learned."""
        by_params, by_values, *by_own = gradients
        self.network.backward(by_params, by_values)
        for place, gradient in zip(self._places, by_own, strict=True):
            if place is not None:
                place.copy_(torch.as_tensor(gradient))

    def _columns(
        self, rows: RolloutBatch, logprobs: Numbers, entropy: Numbers, values: Numbers
    ) -> Mapping[str, Numbers]:
        advantages = rows.advantages
        return {
            "logprobs": logprobs,
            "old_logprobs": rows.logprobs,
            "advantages": normalized(advantages, rows.valid) if self.normalize else advantages,
            "returns": rows.returns,
            "values": rows.values,
            "new_values": values,
            "entropy": entropy,
            "valid": rows.valid,
        }


def masked_mean(rows: Numbers, valid: Numbers | None) -> Numbers:
    """Return the mean over the valid rows; all of them if `valid` is None."""
    return rows.mean() if valid is None else (rows * valid).sum() / valid.sum().clip(1)


def shares(rows: Numbers, valid: Numbers | None) -> Numbers:
    """Return what each row [B] counts in a mean: a number, or [B] if some do not count."""
    if valid is None:
        return 1.0 / len(rows)
    counted = as_type(valid, rows)
    return counted / counted.sum().clip(1)


def normalized(advantages: Numbers, valid: Numbers | None) -> Numbers:
    """Return advantages [B] with zero mean and unit deviation over the valid rows; unchanged if fewer than two."""
    if valid is None:
        if len(advantages) < 2:
            return advantages
        centred = advantages - advantages.sum() / len(advantages)
        return centred / (((centred * centred).sum() / (len(advantages) - 1)) ** 0.5 + 1e-8)
    count = valid.sum()  # a device is not waited for
    centred = advantages - (advantages * valid).sum() / count.clip(1)
    deviation = ((centred * centred * valid).sum() / (count - 1).clip(1)) ** 0.5
    return namespace(advantages).where(count < 2, advantages, centred / (deviation + 1e-8))
