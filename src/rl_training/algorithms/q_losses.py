"""Losses of action-value learning, row by row: one number, fixed atoms, or quantiles. Pure.

Each takes what the online network says of the chosen actions and what the target network says of the next ones, and
returns (losses [B], errors [B]); the errors are what prioritised replay calls priorities.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rl_training.core.types import Numbers
from rl_training.models.pullbacks import bounded, namespace


def td_losses(
    values: Tensor, next_values: Tensor, rewards: Tensor, discounts: Tensor, *, huber: bool
) -> tuple[Tensor, Tensor]:
    """One number per action; all [B]. Huber with threshold 1, otherwise the squared error."""
    targets = rewards + discounts * next_values
    errors = (targets - values.detach()).abs()
    loss = F.smooth_l1_loss if huber else F.mse_loss
    return loss(values, targets, reduction="none"), errors


def td_gradient(
    values: Numbers, targets: Numbers, *, huber: bool, weights: Numbers | None
) -> tuple[Numbers, Numbers, Numbers]:
    """Return the mean of `td_losses`, its gradient by the values [B], and the errors [B]; arrays or tensors."""
    differences = values - targets
    errors = abs(differences)
    slopes = bounded(differences, -1.0, 1.0) if huber else 2 * differences
    # Huber's loss within the threshold is half the square, beyond it the slope times what exceeds one half
    losses = slopes * (differences - 0.5 * slopes) if huber else differences * differences
    share = 1.0 / len(values) if weights is None else weights / len(values)
    return (losses * share).sum(), slopes * share, errors


def chosen_place(outputs: Numbers, actions: Numbers) -> tuple[Numbers, Numbers]:
    """Return the index of one action [B] per row of outputs [B, A]."""
    rows = len(outputs)
    return (
        np.arange(rows) if isinstance(outputs, np.ndarray) else torch.arange(rows, device=outputs.device)
    ), actions


def best_values(outputs: Numbers, chooser: Numbers, mask: Numbers | None) -> Numbers:
    """Return the outputs [B] for the actions that `chooser` [B, A] finds best among the allowed ones."""
    xp = namespace(outputs)
    allowed = chooser if mask is None else xp.where(mask, chooser, -xp.inf)
    if chooser is outputs:
        return xp.amax(allowed.T, axis=0)
    return outputs[chosen_place(outputs, allowed.argmax(1))]


def categorical_losses(
    logits: Tensor, next_logits: Tensor, rewards: Tensor, discounts: Tensor, support: Tensor
) -> tuple[Tensor, Tensor]:
    """C51, arXiv:1707.06887: cross-entropy [B] with the projected target; logits [B, Z], support [Z]."""
    projected = project(next_logits.softmax(-1), rewards, discounts, support)
    losses = -(projected * F.log_softmax(logits, dim=-1)).sum(-1)
    return losses, losses.detach()


def project(probabilities: Tensor, rewards: Tensor, discounts: Tensor, support: Tensor) -> Tensor:
    """Move each atom [Z] to reward + discount * atom and share its probability [B, Z] among its two neighbours."""
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
