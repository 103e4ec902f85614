"""The objective of DQN: computes the loss of a batch of transitions and its gradient."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.core.spaces.masks import apply_mask
from rl_training.core.types import Numbers
from rl_training.data.replay_buffer import Transitions
from rl_training.models.autograd_network import AutogradNetwork, Backprop, GradientOf
from rl_training.models.fast.backend import Backend, TorchBackend, fast_backend
from rl_training.models.fast.networks import explicit_outputs, in_parts
from rl_training.models.q_network import Noise
from rl_training.policies.q_policy import QPolicy

NEXT_OUTPUTS = "/next_outputs"
"""The column of the target network's outputs for next observations, if computed for several batches at once."""
TARGETS = "/targets"
"""The column of target values, if computed for several batches at once."""
Noises = list[list[Noise] | None]
"""Noise for three passes: observations, next observations, and next observations for choosing actions."""


class QObjective:
    """Runs both networks and differentiates the loss.

    With one value per action, `td_gradient` computes the loss and its hand-written derivative; otherwise autograd
    differentiates `_losses`. `path` names the choice, and `backend` is the library of the numbers in a batch.
    """

    def __init__(
        self, policy: QPolicy, target: nn.Module, gradient_of: GradientOf, *, double: bool, huber: bool
    ) -> None:
        self.policy, self.double, self.huber = policy, double, huber
        network = policy.network
        fast = fast_backend(policy.device)
        known = explicit_outputs(network, gradient_of, fast)
        self.network: Backprop = known or AutogradNetwork(network, network.parameters(), gradient_of)
        self._target: Callable[..., Any] = (explicit_outputs(target, None, fast) if known else None) or target
        self.backend: Backend = fast if known else TorchBackend(policy.device)
        self._by_hand = known is not None and policy.distribution == "none"
        # images of all batches would be too large
        self._asks_target_at_once = known is not None and policy.encoding.encoder is None
        by = "explicit" if self._by_hand else "explicit, loss by autograd"
        self.path = by if known else "autograd"

    def with_targets(self, rows: Transitions) -> Transitions:
        """Return the rows of several batches with outputs of the target network, which is fixed meanwhile."""
        if not self._asks_target_at_once:
            return rows
        rows = replace(
            rows, extra=rows.extra | {NEXT_OUTPUTS: in_parts(self._target, rows.next_obs, self.backend)}
        )
        if self._by_hand and not self.double:  # with double, targets depend on the changing online network
            rows = replace(rows, extra={TARGETS: self._targets(rows)})
        return rows

    def forward(self, rows: Transitions, noises: Noises) -> tuple[Numbers, Numbers, Numbers]:
        """Return the loss of a batch, its gradient with respect to the network's outputs, and the errors [B]."""
        next_outputs = self._targets(rows) if self._by_hand else self._next_outputs(rows, noises)
        outputs = self.network.forward(rows.obs, noises[0])
        differentiate = self._gradient_by_hand if self._by_hand else self._gradient_by_autograd
        return differentiate(outputs, next_outputs, rows)

    def backward(self, gradient: Numbers) -> None:
        self.network.backward(gradient)

    def _targets(self, rows: Transitions) -> Numbers:
        """Return target values [B], for one value per action."""
        if TARGETS in rows.extra:
            return rows.extra[TARGETS]
        outputs = rows.extra.get(NEXT_OUTPUTS)
        if outputs is None:
            outputs = self._target(rows.next_obs)
        chooser = self.network.forward(rows.next_obs) if self.double else outputs
        return rows.rewards + rows.discounts * best_values(
            outputs, chooser, rows.next_action_masks, self.backend
        )

    @torch.no_grad()
    def _next_outputs(self, rows: Transitions, noises: Noises) -> Tensor:
        """Return the target network's outputs for the next actions [B, K]."""
        outputs = rows.extra.get(NEXT_OUTPUTS)
        if outputs is None:
            outputs = self._target(rows.next_obs, noises[1])
        chooser = self.network.forward(rows.next_obs, noises[2]) if self.double else outputs
        mask = None if rows.next_action_masks is None else torch.as_tensor(rows.next_action_masks)
        return chosen(self._tensor(outputs), self.policy.best(self._tensor(chooser), mask))

    def _gradient_by_hand(
        self, outputs: Numbers, targets: Numbers, rows: Transitions
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Return loss, gradient of the outputs [B, A] and errors [B], for one value per action."""
        place = self.backend.arange(len(outputs)), rows.actions
        loss, by_values, errors = td_gradient(
            outputs[place], targets, huber=self.huber, weights=rows.weights, backend=self.backend
        )
        gradient = self.backend.xp.zeros_like(outputs)
        gradient[place] = by_values
        return loss, gradient, errors

    def _gradient_by_autograd(
        self, outputs: Numbers, next_outputs: Tensor, rows: Transitions
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Like `_gradient_by_hand`, for any kind of outputs per action."""
        values = self._tensor(outputs).requires_grad_()
        actions, rewards, discounts = (
            torch.as_tensor(part) for part in (rows.actions, rows.rewards, rows.discounts)
        )
        losses, errors = self._losses(chosen(values, actions), next_outputs, rewards, discounts)
        loss = losses.mean() if rows.weights is None else (torch.as_tensor(rows.weights) * losses).mean()
        (gradient,) = torch.autograd.grad(loss, values)
        return loss.detach(), self.backend.view(gradient.reshape(outputs.shape)), errors

    def _losses(
        self, outputs: Tensor, next_outputs: Tensor, rewards: Tensor, discounts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return losses [B] and errors [B] for the outputs of the chosen actions [B, K]."""
        if self.policy.distribution == "c51":
            return categorical_losses(outputs, next_outputs, rewards, discounts, self.policy.support)
        if self.policy.distribution == "quantile":
            return quantile_losses(outputs, next_outputs, rewards, discounts)
        return td_losses(outputs[:, 0], next_outputs[:, 0], rewards, discounts, huber=self.huber)

    def _tensor(self, outputs: Numbers) -> Tensor:
        """Return outputs as a tensor [B, A, K]."""
        return torch.as_tensor(outputs).view(len(outputs), self.policy.num_actions, -1)


def chosen(outputs: Tensor, actions: Tensor) -> Tensor:
    """Return the outputs for one action per row: [B, A, K] and [B] to [B, K]."""
    index = actions.view(-1, 1, 1).expand(-1, 1, outputs.shape[2])
    return outputs.gather(1, index).squeeze(1)


# With the default network `td_gradient` computes the mean of these losses together with its derivative.
# tests/unit/algorithms/test_loss_gradients.py compares both; tests/parity/test_update_paths.py trains with both.
def td_losses(
    values: Tensor, next_values: Tensor, rewards: Tensor, discounts: Tensor, *, huber: bool
) -> tuple[Tensor, Tensor]:
    """Return losses and absolute errors [B]: Huber with threshold 1, otherwise the squared error."""
    targets = rewards + discounts * next_values
    errors = (targets - values.detach()).abs()
    loss = F.smooth_l1_loss if huber else F.mse_loss
    return loss(values, targets, reduction="none"), errors


def td_gradient(
    values: Numbers, targets: Numbers, *, huber: bool, weights: Numbers | None, backend: Backend
) -> tuple[Numbers, Numbers, Numbers]:
    """Return the mean of `td_losses`, its gradient with respect to the values [B], and the errors [B]."""
    differences = values - targets
    errors = abs(differences)
    slopes = backend.clip(differences, -1.0, 1.0) if huber else 2 * differences
    # the Huber loss is half the square within the threshold, and the absolute error minus one half beyond it
    losses = slopes * (differences - 0.5 * slopes) if huber else differences * differences
    share = 1.0 / len(values) if weights is None else weights / len(values)
    return (losses * share).sum(), slopes * share, errors


def best_values(outputs: Numbers, chooser: Numbers, mask: Numbers | None, backend: Backend) -> Numbers:
    """Return the outputs [B] for the actions that `chooser` [B, A] values most among the allowed ones."""
    xp = backend.xp
    allowed = apply_mask(chooser, mask, -xp.inf, xp)
    if chooser is outputs:
        return xp.amax(allowed.T, axis=0)
    return outputs[backend.arange(len(outputs)), allowed.argmax(1)]


# Autograd differentiates the losses of distributions.
def categorical_losses(
    logits: Tensor, next_logits: Tensor, rewards: Tensor, discounts: Tensor, support: Tensor
) -> tuple[Tensor, Tensor]:
    """C51, arXiv:1707.06887: cross-entropy [B] with the projected target; logits [B, Z], support [Z]."""
    projected = project(next_logits.softmax(-1), rewards, discounts, support)
    losses = -(projected * F.log_softmax(logits, dim=-1)).sum(-1)
    return losses, losses.detach()


def project(probabilities: Tensor, rewards: Tensor, discounts: Tensor, support: Tensor) -> Tensor:
    """Move each atom [Z] to reward + discount * atom and split its probability [B, Z] between its two neighbours."""
    low, high, last = support[0], support[-1], len(support) - 1
    moved = (rewards[:, None] + discounts[:, None] * support).clamp(low, high)
    place = (moved - low) / ((high - low) / last)
    below = place.floor().clamp(max=last - 1)  # so that the neighbour above exists
    above_part = place - below
    index = below.long()
    projected = torch.zeros_like(probabilities)
    projected.scatter_add_(1, index, probabilities * (1 - above_part))
    projected.scatter_add_(1, index + 1, probabilities * above_part)
    return projected


def quantile_losses(
    quantiles: Tensor, next_quantiles: Tensor, rewards: Tensor, discounts: Tensor
) -> tuple[Tensor, Tensor]:
    """QR-DQN, arXiv:1710.10044: quantile Huber loss, summed over quantiles [B, Q], averaged over targets [B, Q]."""
    count = quantiles.shape[1]
    midpoints = (torch.arange(count, device=quantiles.device, dtype=quantiles.dtype) + 0.5) / count
    targets = rewards[:, None] + discounts[:, None] * next_quantiles
    errors = targets[:, None, :] - quantiles[:, :, None]  # [B, quantile, target]
    huber = F.huber_loss(
        quantiles[:, :, None].expand_as(errors), targets[:, None, :].expand_as(errors), reduction="none"
    )
    side = (midpoints[:, None] - (errors.detach() < 0).to(errors.dtype)).abs()
    losses = (side * huber).mean(dim=2).sum(dim=1)
    return losses, (targets.mean(1) - quantiles.detach().mean(1)).abs()
