"""The objective of the on-policy algorithms: computes the loss of a batch and its gradients."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from rl_training.algorithms.losses import Loss
from rl_training.algorithms.optimizers import FlatOptimizer
from rl_training.algorithms.shards import ShardedObjective, Shards
from rl_training.core.types import Numbers, StepMetrics
from rl_training.data.rollout_buffer import RolloutBatch
from rl_training.models.autograd_network import AutogradNetwork, Backprop
from rl_training.models.encoded_network import WithCriticEntries, layers_after_encoder
from rl_training.models.fast.backend import Backend, TorchBackend, fast_backend
from rl_training.models.fast.heads import action_evaluator
from rl_training.models.fast.networks import (
    ExplicitActorCritic,
    ExplicitReader,
    ExplicitRecurrent,
    ExplicitWithEntries,
    explicit_actor_critic,
    explicit_features,
    explicit_recurrent,
)
from rl_training.policies.actor_critic import ActorCriticPolicy

OUTPUTS = ("logprobs", "entropy", "new_values")
"""The columns of a minibatch that depend on the network; a gradient is returned in this order."""


class ActorCriticObjective:
    """Runs the network, evaluates the actions and differentiates the loss.

    Passes through the network and the head are hand-written if `models.fast` supports both, and then the loss may have
    a hand-written gradient, too; autograd does the rest. `path` names the choice for the network, and `backend` is the
    library of the numbers in a batch. tests/parity/test_update_paths.py compares all paths.
    """

    def __init__(
        self,
        policy: ActorCriticPolicy,
        optimizer: FlatOptimizer,
        loss: Loss,
        *,
        normalize: bool,
        autograd: bool = False,
    ) -> None:
        """With `autograd`, nothing is hand-written."""
        self.policy, self.loss, self.normalize = policy, loss, normalize
        fast = fast_backend(policy.device)
        self._evaluate = None if autograd else action_evaluator(policy.head, fast)
        self.network, self.path = self._select_network(policy, optimizer, fast)
        self.by_hand = self.path != "autograd"
        self.backend: Backend = fast if self.by_hand else TorchBackend(policy.device)
        self._own = list(policy.head.parameters())  # type: ignore[attr-defined]  # a head is a module
        self._places = [optimizer.gradient_of(parameter) for parameter in self._own]

    def _select_network(
        self, policy: ActorCriticPolicy, optimizer: FlatOptimizer, fast: Backend
    ) -> tuple[Backprop, str]:
        """Return the network with its backward pass, and the name of the path."""
        gradient_of = optimizer.gradient_of
        layers, read = layers_after_encoder(policy.network), policy.encoded
        known: ExplicitRecurrent | ExplicitActorCritic | None = explicit_recurrent(layers, gradient_of, fast)
        if known is None:
            layers, read = policy.last_layers, policy.features
            known = explicit_actor_critic(layers, gradient_of, fast)
        if known is None or self._evaluate is None:
            return AutogradNetwork(policy.run, policy.network.parameters(), gradient_of), "autograd"
        if layers is policy.network:
            return known, "explicit"
        if isinstance(known, ExplicitActorCritic) and _reads_vectors(policy.network, layers):
            return ExplicitWithEntries(known, fast), "explicit"
        encoders = None
        if layers is layers_after_encoder(policy.network):
            encoders = explicit_features(policy.network, gradient_of, fast)
        if encoders is not None:
            return ExplicitReader(encoders, known, fast), "explicit"
        mine = {id(parameter) for parameter in layers.parameters()}
        below = [parameter for parameter in policy.network.parameters() if id(parameter) not in mine]
        features = AutogradNetwork(read, below, gradient_of)
        return ExplicitReader(features, known, fast), "explicit after autograd"

    def in_shards(self, optimizer: FlatOptimizer, shards: Shards) -> "ShardedActorCritic":
        """Return this objective for minibatches in shards; advantages are normalised before they are divided."""
        sharded = ShardedActorCritic(self, optimizer, shards, normalize=self.normalize)
        self.normalize = False
        return sharded

    def forward(self, rows: RolloutBatch, **settings: Any) -> tuple[StepMetrics, tuple[Numbers, ...]]:
        """Return the parts of the loss for a minibatch, and the gradients that `backward` takes."""
        params, values = self.network.forward(rows)
        differentiate = self._gradients_by_hand if self.by_hand else self._gradients_by_autograd
        return differentiate(params, values, rows, settings)

    def _gradients_by_hand(
        self, params: Numbers, values: Numbers, rows: RolloutBatch, settings: Mapping[str, Any]
    ) -> tuple[StepMetrics, tuple[Numbers, ...]]:
        assert self._evaluate is not None, "by_hand is false without it"
        params = self.policy.head.masked(params, rows.action_masks, self.backend.xp)
        logprobs, entropy, back = self._evaluate(params, rows.actions)
        columns = self._columns(rows, logprobs, entropy, values)
        metrics, gradients = self.loss.differentiate(columns, OUTPUTS, self.backend, **settings)
        by_logprobs, by_entropy, by_values = gradients
        by_params, *by_own = back(by_logprobs, by_entropy)
        return metrics, (by_params, by_values, *by_own)

    def _gradients_by_autograd(
        self, params: Tensor, values: Tensor, rows: RolloutBatch, settings: Mapping[str, Any]
    ) -> tuple[StepMetrics, tuple[Numbers, ...]]:
        outputs = [params.requires_grad_(), values.requires_grad_()]
        logprobs, entropy = self.policy.log_prob_entropy(params, rows.actions, rows.action_masks)
        losses = self.loss.parts(self._columns(rows, logprobs, entropy, values), **settings)
        gradients = self.loss.autograd(losses["loss"], [*outputs, *self._own])
        return {name: part.detach() for name, part in losses.items()}, gradients

    @torch.no_grad()
    def logprobs(self, rows: RolloutBatch) -> Numbers:
        """Return the log-probabilities [B] of the actions, without gradients."""
        params, _ = self.network.forward(rows)
        if self.by_hand:
            assert self._evaluate is not None, "by_hand is false without it"
            return self._evaluate(
                self.policy.head.masked(params, rows.action_masks, self.backend.xp), rows.actions
            )[0]
        return self.policy.log_prob_entropy(params, rows.actions, rows.action_masks)[0]

    def backward(self, gradients: tuple[Numbers, ...]) -> None:
        """Write the gradients of the network and of the head."""
        by_params, by_values, *by_own = gradients
        self.network.backward(by_params, by_values)
        for place, gradient in zip(self._places, by_own, strict=True):
            if place is not None:
                place.copy_(torch.as_tensor(gradient))

    def _columns(
        self, rows: RolloutBatch, logprobs: Numbers, entropy: Numbers, values: Numbers
    ) -> Mapping[str, Numbers]:
        advantages = rows.advantages
        if self.normalize:
            advantages = normalized(advantages, rows.valid, self.backend.xp)
        if rows.weights is not None:
            advantages = advantages * rows.weights
        return {
            "logprobs": logprobs,
            "old_logprobs": rows.logprobs,
            "advantages": advantages,
            "returns": rows.returns,
            "values": rows.values,
            "new_values": values,
            "entropy": entropy,
            "valid": rows.valid,
        }


def _reads_vectors(network: nn.Module, layers: nn.Module) -> bool:
    """Return whether a network is `layers` alone, except that the critic reads entries of its own as vectors."""
    return isinstance(network, WithCriticEntries) and network.reads_vectors and network.network is layers


class ShardedActorCritic(ShardedObjective):
    """The objective of the on-policy algorithms in shards: advantages are normalised over the whole minibatch."""

    def __init__(
        self, objective: ActorCriticObjective, optimizer: FlatOptimizer, shards: Shards, *, normalize: bool
    ) -> None:
        super().__init__(objective, optimizer, shards)
        self._normalize, self._xp = normalize, objective.backend.xp

    def forward(self, rows: RolloutBatch, *arguments: Any, **settings: Any) -> tuple[StepMetrics, Any]:
        if self._normalize:
            rows = replace(rows, advantages=normalized(rows.advantages, rows.valid, self._xp))
        return super().forward(rows, *arguments, **settings)


AnyObjective: TypeAlias = ActorCriticObjective | ShardedActorCritic


def masked_mean(rows: Numbers, valid: Numbers | None) -> Numbers:
    """Return the mean over the valid rows; all of them if `valid` is None."""
    return rows.mean() if valid is None else (rows * valid).sum() / valid.sum().clip(1)


def row_weights(rows: Numbers, valid: Numbers | None, backend: Backend) -> Numbers:
    """Return the weight of each row [B] in a mean over the valid rows: a number, or [B] if there is a mask."""
    if valid is None:
        return 1.0 / len(rows)
    counted = backend.cast(valid, rows)
    return counted / counted.sum().clip(1)


def normalized(advantages: Numbers, valid: Numbers | None, xp: Any = torch) -> Numbers:
    """Return advantages [B] with zero mean and unit deviation over the valid rows; unchanged if fewer than two."""
    if valid is None:
        if len(advantages) < 2:
            return advantages
        centred = advantages - advantages.sum() / len(advantages)
        return centred / (((centred * centred).sum() / (len(advantages) - 1)) ** 0.5 + 1e-8)
    count = valid.sum()  # stays on the device, without synchronisation
    centred = advantages - (advantages * valid).sum() / count.clip(1)
    deviation = ((centred * centred * valid).sum() / (count - 1).clip(1)) ** 0.5
    return xp.where(count < 2, advantages, centred / (deviation + 1e-8))
