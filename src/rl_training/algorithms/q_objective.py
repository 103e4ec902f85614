"""From what a network says of transitions to the loss of action values, and to its gradient by what it said."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.algorithms.q_losses import (
    best_values,
    categorical_losses,
    chosen_place,
    quantile_losses,
    td_gradient,
    td_losses,
)
from rl_training.core.types import Numbers
from rl_training.data.replay_buffer import Transitions
from rl_training.models.backprop import AutogradNetwork, Backprop, in_parts
from rl_training.models.encoded_backprop import explicit_outputs
from rl_training.models.explicit import GradientOf
from rl_training.models.kernels import computes_on_arrays
from rl_training.models.pullbacks import namespace
from rl_training.models.q_network import Noise
from rl_training.policies.q_policy import QPolicy

NEXT_OUTPUTS = "/next_outputs"
"""The column of what the target network says of successors, where it is asked for several batches at once."""
TARGETS = "/targets"
"""The column of what values should be, where that does not change from batch to batch."""
Noises = list[list[Noise] | None]
"""For each of three passes through a noisy network: of observations, of successors, of successors to choose by."""


class QObjective:
    """Runs both networks and differentiates the loss: by hand where one number is said of each action.

    `_losses` is what is minimised, and autograd differentiates it for anything else that networks may say.
    """

    def __init__(
        self, policy: QPolicy, target: nn.Module, gradient_of: GradientOf, *, double: bool, huber: bool
    ) -> None:
        self.policy, self.double, self.huber = policy, double, huber
        network = policy.network
        known = explicit_outputs(network, gradient_of)
        self.network: Backprop = known or AutogradNetwork(network, network.parameters(), gradient_of)
        self._target: Callable[..., Any] = (explicit_outputs(target) if known else None) or target
        self.explicit = known is not None
        self._by_hand = self.explicit and policy.distribution == "none"
        self._on_arrays = self.explicit and computes_on_arrays(policy.device)
        self._small = policy.encoding.encoder is None
        by = "explicit" if self._by_hand else "explicit, loss by autograd"
        self.path = by if self.explicit else "autograd"

    def with_targets(self, rows: Transitions) -> Transitions:
        """Return the rows of several batches with what does not change while they are learned from, found at once.

        That is what a target network says which stays as it is; images of all batches would be too large.
        """
        if not self.explicit or not self._small:
            return rows
        rows = replace(rows, extra=rows.extra | {NEXT_OUTPUTS: in_parts(self._target, rows.next_obs)})
        if self._by_hand and not self.double:  # or the network chooses, which changes
            rows = replace(rows, extra={TARGETS: self._targets(rows)})
        return rows

    def forward(self, rows: Transitions, noises: Noises) -> tuple[Numbers, Numbers, Numbers]:
        """Return the loss of a batch, its gradient by what the network said, and the errors [B]."""
        next_said = self._targets(rows) if self._by_hand else self._next_said(rows, noises)
        outputs = self.network.forward(rows.obs, noises[0])
        differentiate = self._gradient_by_hand if self._by_hand else self._gradient_by_autograd
        return differentiate(outputs, next_said, rows)

    def backward(self, gradient: Numbers) -> None:
        """Write the gradients of all parameters."""
        self.network.backward(gradient)

    def _targets(self, rows: Transitions) -> Numbers:
        """Return what the values of the actions should be [B], where each action has one number."""
        if TARGETS in rows.extra:
            return rows.extra[TARGETS]
        outputs = rows.extra.get(NEXT_OUTPUTS)
        if outputs is None:
            outputs = self._target(rows.next_obs)
        chooser = self.network.forward(rows.next_obs) if self.double else outputs
        return rows.rewards + rows.discounts * best_values(outputs, chooser, rows.next_action_masks)

    @torch.no_grad()
    def _next_said(self, rows: Transitions, noises: Noises) -> Tensor:
        """Return what the target network says of the next actions [B, K], whatever that is."""
        outputs = rows.extra.get(NEXT_OUTPUTS)
        if outputs is None:
            outputs = self._target(rows.next_obs, noises[1])
        chooser = self.network.forward(rows.next_obs, noises[2]) if self.double else outputs
        mask = None if rows.next_action_masks is None else torch.as_tensor(rows.next_action_masks)
        return chosen(self._tensor(outputs), self.policy.best(self._tensor(chooser), mask))

    def _gradient_by_hand(
        self, outputs: Numbers, targets: Numbers, rows: Transitions
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Return loss, gradient by the outputs [B, A] and errors [B] where each action has one number."""
        place = chosen_place(outputs, rows.actions)
        loss, by_values, errors = td_gradient(outputs[place], targets, huber=self.huber, weights=rows.weights)
        gradient = namespace(outputs).zeros_like(outputs)
        gradient[place] = by_values
        return loss, gradient, errors

    def _gradient_by_autograd(
        self, outputs: Numbers, next_said: Tensor, rows: Transitions
    ) -> tuple[Numbers, Numbers, Numbers]:
        """The same for whatever the networks say of each action."""
        said = self._tensor(outputs).requires_grad_()
        actions, rewards, discounts = (
            torch.as_tensor(part) for part in (rows.actions, rows.rewards, rows.discounts)
        )
        losses, errors = self._losses(chosen(said, actions), next_said, rewards, discounts)
        loss = losses.mean() if rows.weights is None else (torch.as_tensor(rows.weights) * losses).mean()
        (gradient,) = torch.autograd.grad(loss, said)
        if self.explicit:
            gradient = gradient.flatten(1)
        return loss.detach(), gradient.numpy() if self._on_arrays else gradient, errors

    def _losses(
        self, said: Tensor, next_said: Tensor, rewards: Tensor, discounts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return losses [B] and errors [B] for what the networks say of the actions [B, K]."""
        if self.policy.distribution == "c51":
            return categorical_losses(said, next_said, rewards, discounts, self.policy.support)
        if self.policy.distribution == "quantile":
            return quantile_losses(said, next_said, rewards, discounts)
        return td_losses(said[:, 0], next_said[:, 0], rewards, discounts, huber=self.huber)

    def _tensor(self, outputs: Numbers) -> Tensor:
        """Return outputs as a tensor [B, A, K]."""
        return torch.as_tensor(outputs).view(len(outputs), self.policy.num_actions, -1)


def chosen(outputs: Tensor, actions: Tensor) -> Tensor:
    """Return what a network says of one action per row: [B, A, K] and [B] to [B, K]."""
    index = actions.view(-1, 1, 1).expand(-1, 1, outputs.shape[2])
    return outputs.gather(1, index).squeeze(1)
