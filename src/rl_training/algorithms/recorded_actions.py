"""What an `ActorPolicy` says of recorded actions, and the way back to its parameters: for BC, IQL and AWAC."""

from collections.abc import Callable
from typing import TypeAlias

import torch

from rl_training.core.types import Numbers
from rl_training.models.fast.backend import Backend
from rl_training.models.fast.heads import action_evaluator
from rl_training.models.heads import GaussianHead
from rl_training.policies.actor import ActorPolicy

Back: TypeAlias = Callable[[Numbers], tuple[Numbers, ...]]
"""Gradient of log-probabilities [B] -> gradient of the network's outputs [B, P], then of the head's own parameters."""


class RecordedActions:
    """Evaluates recorded actions for outputs of the network; `by_hand` if there are formulas for its head."""

    def __init__(self, policy: ActorPolicy, backend: Backend, *, autograd: bool) -> None:
        """The optimizer of the policy comes first, as it moves the parameters. With `autograd`, nothing is by hand."""
        self.policy, self.backend = policy, backend
        self._evaluate = None if autograd else action_evaluator(policy.head, backend)
        self.by_hand = self._evaluate is not None
        if isinstance(policy.head, GaussianHead):
            self._log_std = backend.view(policy.head.log_std.detach())

    def log_probs(self, outputs: Numbers, actions: Numbers) -> tuple[Numbers, Back]:
        """Return log-probabilities [B] of actions [B, ...], and their pullback."""
        if self._evaluate is None:
            return self._by_autograd(outputs, actions)
        params = self.policy.action_params(outputs, self.backend.xp)
        logprobs, _, pullback = self._evaluate(params, actions)

        def back(by_logprobs: Numbers) -> tuple[Numbers, ...]:
            by_params, *by_head = pullback(by_logprobs, None)
            return self._by_outputs(params, by_params), *by_head

        return logprobs, back

    def distances(self, outputs: Numbers, actions: Numbers) -> tuple[Numbers, Back]:
        """Return the mean squared distance [B] of each action [B, A] to the mean of the policy, and the pullback."""
        params = self.policy.action_params(outputs, self.backend.xp)
        differences = params - actions

        def back(by_distances: Numbers) -> tuple[Numbers, ...]:
            by_params = differences * (by_distances * (2.0 / differences.shape[1]))[:, None]
            return (self._by_outputs(params, by_params),)

        return (differences * differences).sum(-1) / differences.shape[1], back

    def sampled(self, outputs: Numbers, noise: Numbers) -> Numbers:
        """Return continuous actions [B, A] for outputs and standard normal noise [B, A], without gradients."""
        params = self.policy.action_params(outputs, self.backend.xp)
        actions = params + self.backend.xp.exp(self._log_std) * noise
        return self.backend.clip(actions, -1.0, 1.0) if self.policy.bounded else actions

    def _by_outputs(self, params: Numbers, by_params: Numbers) -> Numbers:
        return by_params * (1.0 - params * params) if self.policy.bounded else by_params

    def _by_autograd(self, outputs: Numbers, actions: Numbers) -> tuple[Numbers, Back]:
        leaf = outputs.detach().requires_grad_()
        own = list(self.policy.head_parameters)
        with torch.enable_grad():
            params = self.policy.action_params(leaf)
            logprobs, _ = self.policy.head.logprob_entropy(params, actions)
        return logprobs.detach(), lambda by_logprobs: torch.autograd.grad(logprobs, [leaf, *own], by_logprobs)
