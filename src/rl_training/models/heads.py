"""Action distributions as small modules: sampling in NumPy while acting, log-probabilities in torch while learning.

`torch.distributions` would cost more than a small network itself; tests compare with it.
Letters: `P` parameters per row, as the network's last layer gives them; `A` action components; `M` entries of a mask.
A mask changes the parameters first, so that forbidden actions have probability 0 and all formulas stay the same.
"""

import math
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import Space, spaces
from torch import Tensor, nn

from rl_training.core.spaces.layout import action_layout
from rl_training.core.spaces.masks import FORBIDDEN, apply_mask
from rl_training.core.types import Array, Numbers

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0


class ActionHead(Protocol):
    """Turns network outputs [N, P] into actions [N, ...], log-probabilities [N] and entropies [N].

    `sample` draws actions, `mode` returns the most likely ones. Both are unclipped. `masked` applies an action mask.
    """

    num_params: int

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]: ...
    def mode(self, params: Array) -> Array: ...
    def logprob_entropy(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]: ...
    def masked(self, params: Numbers, mask: Numbers | None, xp: Any = np) -> Numbers: ...


def make_head(space: Space[Any], log_std_init: float) -> "nn.Module":
    """Return the head for an action space; see `ActionHead`."""
    (*size,), _ = action_layout(space)
    if isinstance(space, spaces.Discrete):
        return CategoricalHead(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategoricalHead([int(n) for n in space.nvec.reshape(-1)])
    if isinstance(space, spaces.MultiBinary):
        return BernoulliHead(size[0])
    return GaussianHead(size[0], log_std_init)


class LogitsHead(nn.Module):
    """Base of the categorical heads: parameters are logits, one for each entry of a mask."""

    def masked(self, params: Numbers, mask: Numbers | None, xp: Any = np) -> Numbers:
        """Return parameters [N, P] that give actions forbidden by a mask [N, P] probability 0."""
        return apply_mask(params, mask, FORBIDDEN, xp)


class CategoricalHead(LogitsHead):
    """One choice among `num_params`; parameters are logits."""

    def __init__(self, num_params: int) -> None:
        super().__init__()
        self.num_params = num_params

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        return categorical_sample(params, rng.random(len(params)))

    def mode(self, params: Array) -> Array:
        best: Array = params.argmax(axis=-1)
        return best

    def logprob_entropy(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        return categorical_logprob_entropy(params, actions)


class MultiCategoricalHead(LogitsHead):
    """Several independent choices; parameters are the logits of all of them side by side."""

    def __init__(self, counts: list[int]) -> None:
        super().__init__()
        self.counts = counts
        self.num_params = sum(counts)
        self._ends = np.cumsum(counts)[:-1]

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        uniform = rng.random((len(self.counts), len(params)))
        parts = [
            categorical_sample(p, u) for p, u in zip(np.split(params, self._ends, 1), uniform, strict=True)
        ]
        actions, logprobs = zip(*parts, strict=True)
        return np.stack(actions, axis=-1), np.sum(logprobs, axis=0)

    def mode(self, params: Array) -> Array:
        return np.stack([part.argmax(axis=-1) for part in np.split(params, self._ends, axis=1)], axis=-1)

    def logprob_entropy(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        parts = zip(torch.split(params, self.counts, dim=-1), actions.unbind(-1), strict=True)
        logprobs, entropies = zip(*(categorical_logprob_entropy(p, a) for p, a in parts), strict=True)
        return torch.stack(logprobs).sum(0), torch.stack(entropies).sum(0)


class BernoulliHead(nn.Module):
    """Independent yes-or-no choices; parameters are logits of yes."""

    def __init__(self, num_params: int) -> None:
        super().__init__()
        self.num_params = num_params

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        probability = np.exp(-np.logaddexp(0.0, -params))  # the sigmoid, without overflow
        actions = (rng.random(params.shape) < probability).astype(np.int64)
        return actions, (actions * params - np.logaddexp(0.0, params)).sum(axis=-1)

    def mode(self, params: Array) -> Array:
        return (params > 0).astype(np.int64)

    def logprob_entropy(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        log_normalizer = -F.logsigmoid(-params)  # softplus would be rounded above 20
        logprobs = (actions * params - log_normalizer).sum(-1)
        return logprobs, (log_normalizer - params * torch.sigmoid(params)).sum(-1)

    def masked(self, params: Numbers, mask: Numbers | None, xp: Any = np) -> Numbers:
        """Return parameters [N, A] for a mask [N, 2A] of pairs (no, yes)."""
        no, yes = (None, None) if mask is None else (mask[:, ::2], mask[:, 1::2])
        return apply_mask(apply_mask(params, no, -FORBIDDEN, xp), yes, FORBIDDEN, xp)


class UnmaskedHead(nn.Module):
    """Base of the heads for continuous actions, which cannot be masked."""

    def masked(self, params: Numbers, mask: Numbers | None, xp: Any = np) -> Numbers:
        if mask is not None:
            raise NotImplementedError("continuous actions cannot be masked")
        return params


class GaussianHead(UnmaskedHead):
    """Independent normals; parameters are means, the learned deviation does not depend on the observation."""

    def __init__(self, num_params: int, log_std_init: float = 0.0) -> None:
        super().__init__()
        self.num_params = num_params
        self.log_std = nn.Parameter(torch.full((num_params,), log_std_init))

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        log_std = self.log_std.detach().cpu().numpy()
        noise = rng.standard_normal(params.shape)
        actions = params + np.exp(log_std) * noise
        return actions, (-0.5 * noise * noise - log_std - LOG_SQRT_2PI).sum(axis=-1)

    def mode(self, params: Array) -> Array:
        return params

    def logprob_entropy(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        standardized = (actions - params) * torch.exp(-self.log_std)
        log_std_sum = self.log_std.sum()
        size = self.num_params
        logprobs = -0.5 * standardized.square().sum(-1) - log_std_sum - size * LOG_SQRT_2PI
        entropy = log_std_sum + size * (0.5 + LOG_SQRT_2PI)
        return logprobs, entropy.expand(len(params))


def squashed_gaussian_sample(params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions [B, A] in [-1, 1] and log-probabilities [B] for parameters [B, 2A] and standard noise [B, A].

    The action is tanh(u) of a normal u; log(1 - tanh(u)^2) = 2 * (log 2 - u + log sigmoid(2u)) stays finite where the
    action rounds to 1. It is computed from u, not from the action.
    """
    mean, log_std = params.chunk(2, dim=-1)
    log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
    raw = mean + log_std.exp() * noise
    log_slope = 2 * (math.log(2) - raw + F.logsigmoid(2 * raw))
    logprob = (-0.5 * noise.square() - log_std - LOG_SQRT_2PI - log_slope).sum(-1)
    return torch.tanh(raw), logprob


def squashed_gaussian_log_prob(params: Tensor, actions: Tensor) -> Tensor:
    """Return log-probabilities [B] of given actions [B, A] in [-1, 1], for parameters [B, 2A]."""
    mean, log_std = params.chunk(2, dim=-1)
    log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
    raw, log_slope = inverse_tanh(actions)
    standardized = (raw - mean) * torch.exp(-log_std)
    return (-0.5 * standardized.square() - log_std - LOG_SQRT_2PI - log_slope).sum(-1)


def inverse_tanh(actions: Tensor) -> tuple[Tensor, Tensor]:
    """Return u and log(1 - tanh(u)^2) for actions tanh(u) in [-1, 1], accurate up to the bounds.

    `log1p` of the action and of its negative gives both: 1 - |action| is exact near the bounds, where a quotient or a
    square would lose all digits. Actions of exactly -1 or 1 are moved inside the bounds, so the result is finite.
    """
    largest = 1 - torch.finfo(actions.dtype).eps / 2
    inside = actions.clamp(-largest, largest)
    above, below = torch.log1p(inside), torch.log1p(-inside)
    return 0.5 * (above - below), above + below


def squashed_gaussian_act(params: Array, noise: Array | None) -> Array:
    """Return actions [N, A] in [-1, 1] for parameters [N, 2A] in NumPy; without noise the mode of the normal."""
    size = params.shape[1] // 2
    raw = params[:, :size]
    if noise is not None:
        raw = raw + np.exp(params[:, size:].clip(LOG_STD_MIN, LOG_STD_MAX)) * noise
    return np.tanh(raw)


def categorical_sample(logits: Array, uniform: Array) -> tuple[Array, Array]:
    """Return choices [N] and log-probabilities [N] for logits [N, P] and uniform numbers [N] in [0, 1)."""
    # ufuncs rather than methods, which take twice as long on few rows
    shifted = logits - np.maximum.reduce(logits, axis=-1, keepdims=True)
    cumulative = np.add.accumulate(np.exp(shifted), axis=-1)
    total = cumulative[:, -1]
    actions = np.add.reduce(cumulative <= (uniform * total)[:, None], axis=-1, dtype=np.int64)
    # rounding may reach the total, and the last choice may be forbidden
    if np.maximum.reduce(actions) == logits.shape[1]:
        actions = np.where(actions < logits.shape[1], actions, logits.argmax(axis=-1))
    return actions, shifted[np.arange(len(actions)), actions] - np.log(total)


def categorical_logprob_entropy(logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probabilities [B] and entropies [B] for logits [B, P] and choices [B]."""
    log_probabilities = F.log_softmax(logits, dim=-1)
    entropy = -(log_probabilities.exp() * log_probabilities).sum(-1)
    return log_probabilities.gather(-1, actions.unsqueeze(-1)).squeeze(-1), entropy
