"""The objective of DQN: computes the loss of a batch of transitions and its gradient."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.algorithms.losses import Loss, function_name
from rl_training.core.errors import UserError
from rl_training.core.spaces.masks import apply_mask
from rl_training.core.types import Numbers, StepMetrics
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
TENSORS = TorchBackend()
Noises = list[list[Noise] | None]
"""Noise for three passes: observations, next observations, and next observations for choosing actions."""


class QObjective:
    """Runs both networks and differentiates the loss.

    Passes through the networks are hand-written if `models.fast` supports them, and then the loss may have a
    hand-written gradient, too; autograd does the rest. `path` names the choice for the networks, and `backend` is the
    library of the numbers in a batch.
    """

    def __init__(
        self,
        policy: QPolicy,
        target: nn.Module,
        gradient_of: GradientOf,
        *,
        double: bool,
        huber: bool,
        loss: Loss | None = None,
        autograd: bool = False,
    ) -> None:
        """`loss` is by default the built-in one of the distribution. With `autograd`, nothing is hand-written."""
        self.policy, self.double = policy, double
        network = policy.network
        fast = fast_backend(policy.device)
        known = None if autograd else explicit_outputs(network, gradient_of, fast)
        self.network: Backprop = known or AutogradNetwork(network, network.parameters(), gradient_of)
        self._target: Callable[..., Any] = (explicit_outputs(target, None, fast) if known else None) or target
        self.backend: Backend = fast if known else TorchBackend(policy.device)
        loss = loss or Q_LOSSES[policy.distribution].current()
        self.loss = loss if known else Loss(loss.function)
        # hand-written passes with one value per action need no tensors
        self._by_hand = known is not None and policy.distribution == "none"
        self._settings = {"huber": huber} if policy.distribution == "none" else {}
        # images of all batches would be too large
        self._asks_target_at_once = known is not None and policy.encoding.encoder is None
        self.path = "explicit" if known else "autograd"

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

    def forward(self, rows: Transitions, noises: Noises) -> tuple[StepMetrics, Numbers]:
        """Return the parts of the loss of a batch, and its gradient with respect to the network's outputs.

        The part `errors` [B] becomes the priorities of the rows.
        """
        next_outputs = self._targets(rows) if self._by_hand else self._next_outputs(rows, noises)
        outputs = self.network.forward(rows.obs, noises[0])
        differentiate = self._gradient_of_values if self._by_hand else self._gradient_of_outputs
        parts, gradient = differentiate(outputs, next_outputs, rows)
        if "errors" not in parts and rows.weights is not None:
            raise UserError(
                f"loss {function_name(self.loss.function)} returned no 'errors', which prioritized replay needs; "
                "return a dict with 'loss' and 'errors' [B], or set prioritized to false"
            )
        if rows.weights is not None and tuple(parts["errors"].shape) != (len(rows.weights),):
            raise UserError(
                f"loss {function_name(self.loss.function)} returned 'errors' of shape {tuple(parts['errors'].shape)}; "
                f"return one number per row, shape ({len(rows.weights)},)"
            )
        return parts, gradient

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

    def _gradient_of_values(
        self, outputs: Numbers, targets: Numbers, rows: Transitions
    ) -> tuple[StepMetrics, Numbers]:
        """Return the parts of the loss, and its gradient with respect to outputs [B, A] of one value per action."""
        place = self.backend.arange(len(outputs)), rows.actions
        columns = {"values": outputs[place], "targets": targets, "weights": rows.weights}
        parts, (by_values,) = self.loss.differentiate(columns, ("values",), self.backend, **self._settings)
        gradient = self.backend.xp.zeros_like(outputs)
        gradient[place] = by_values
        return parts, gradient

    def _gradient_of_outputs(
        self, outputs: Numbers, next_outputs: Tensor, rows: Transitions
    ) -> tuple[StepMetrics, Numbers]:
        """Like `_gradient_of_values`, in tensors and for any kind of outputs per action."""
        values, actions = self._tensor(outputs), torch.as_tensor(rows.actions)
        name, columns = self._columns(chosen(values, actions), next_outputs, rows)
        parts, (by_chosen,) = self.loss.differentiate(columns, (name,), TENSORS, **self._settings)
        gradient = torch.zeros_like(values)
        index = actions.view(-1, 1, 1).expand(-1, 1, values.shape[2])
        gradient.scatter_(1, index, by_chosen.view(len(values), 1, -1))
        return parts, self.backend.view(gradient.reshape(outputs.shape))

    def _columns(
        self, outputs: Tensor, next_outputs: Tensor, rows: Transitions
    ) -> tuple[str, dict[str, Tensor | None]]:
        """Return the name of the outputs of the chosen actions [B, K] in the minibatch of a loss, and the minibatch."""
        rewards, discounts = torch.as_tensor(rows.rewards), torch.as_tensor(rows.discounts)
        weights = None if rows.weights is None else torch.as_tensor(rows.weights)
        if self.policy.distribution == "none":
            targets = rewards + discounts * next_outputs[:, 0]
            return "values", {"values": outputs[:, 0], "targets": targets, "weights": weights}
        common = {"rewards": rewards, "discounts": discounts, "weights": weights}
        if self.policy.distribution == "c51":
            named = {"logits": outputs, "next_logits": next_outputs, "support": self.policy.support}
            return "logits", named | common
        return "quantiles", {"quantiles": outputs, "next_quantiles": next_outputs} | common

    def _tensor(self, outputs: Numbers) -> Tensor:
        """Return outputs as a tensor [B, A, K]."""
        return torch.as_tensor(outputs).view(len(outputs), self.policy.num_actions, -1)


def chosen(outputs: Tensor, actions: Tensor) -> Tensor:
    """Return the outputs for one action per row: [B, A, K] and [B] to [B, K]."""
    index = actions.view(-1, 1, 1).expand(-1, 1, outputs.shape[2])
    return outputs.gather(1, index).squeeze(1)


def td_loss(minibatch: Mapping[str, Any], *, huber: bool) -> dict[str, Tensor]:
    """Return `loss`, and `errors` [B] for priorities. Pure.

    `minibatch` maps to tensors [B]: `values` of the chosen actions, `targets` (reward + discount * next value), and
    optionally `weights`. The loss is the mean of Huber losses with threshold 1, or of squared errors.
    """
    values, targets = minibatch["values"], minibatch["targets"]
    loss = F.smooth_l1_loss if huber else F.mse_loss
    losses = loss(values, targets, reduction="none")
    return {"loss": weighted_mean(losses, minibatch), "errors": (targets - values.detach()).abs()}


def td_gradient(
    minibatch: Mapping[str, Numbers], *, huber: bool, backend: Backend
) -> tuple[StepMetrics, Numbers]:
    """Return the result of `td_loss`, and its gradient with respect to the values [B].

    It replaces autograd while the loss is `td_loss`; tests/unit/algorithms/test_loss_gradients.py compares both.
    """
    values, weights = minibatch["values"], minibatch["weights"]
    differences = values - minibatch["targets"]
    errors = abs(differences)
    slopes = backend.clip(differences, -1.0, 1.0) if huber else 2 * differences
    # the Huber loss is half the square within the threshold, and the absolute error minus one half beyond it
    losses = slopes * (differences - 0.5 * slopes) if huber else differences * differences
    share = 1.0 / len(values) if weights is None else weights / len(values)
    return {"loss": (losses * share).sum(), "errors": errors}, slopes * share


def weighted_mean(losses: Tensor, minibatch: Mapping[str, Any]) -> Tensor:
    """Return the mean of losses [B], each times its importance weight, if there are weights."""
    weights = minibatch.get("weights")
    return losses.mean() if weights is None else (weights * losses).mean()


def best_values(outputs: Numbers, chooser: Numbers, mask: Numbers | None, backend: Backend) -> Numbers:
    """Return the outputs [B] for the actions that `chooser` [B, A] values most among the allowed ones."""
    xp = backend.xp
    allowed = apply_mask(chooser, mask, -xp.inf, xp)
    if chooser is outputs:
        return xp.amax(allowed.T, axis=0)
    return outputs[backend.arange(len(outputs)), allowed.argmax(1)]


# Autograd differentiates the losses of distributions.
def categorical_loss(minibatch: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return `loss`, the mean of `categorical_losses`, and `errors` [B] for priorities. Pure.

    `minibatch` maps to tensors: `logits` [B, Z] of the chosen actions, `next_logits` [B, Z], `rewards` [B], `discounts`
    [B], `support` [Z], and optionally `weights` [B].
    """
    names = ("logits", "next_logits", "rewards", "discounts", "support")
    losses, errors = categorical_losses(*(minibatch[name] for name in names))
    return {"loss": weighted_mean(losses, minibatch), "errors": errors}


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


def quantile_loss(minibatch: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return `loss`, the mean of `quantile_losses`, and `errors` [B] for priorities. Pure.

    `minibatch` maps to tensors: `quantiles` [B, Q] of the chosen actions, `next_quantiles` [B, Q], `rewards` [B],
    `discounts` [B], and optionally `weights` [B].
    """
    names = ("quantiles", "next_quantiles", "rewards", "discounts")
    losses, errors = quantile_losses(*(minibatch[name] for name in names))
    return {"loss": weighted_mean(losses, minibatch), "errors": errors}


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


Q_LOSSES = {
    "none": Loss(td_loss, td_gradient, of="ba7996f06d1e"),
    "c51": Loss(categorical_loss),
    "quantile": Loss(quantile_loss),
}
"""The built-in loss for each value of the setting `distribution`."""
