"""Log-probabilities and entropies of actions with hand-written derivatives, for arrays and tensors.

Each function returns numbers and a pullback: given the gradient of a loss with respect to those numbers, the pullback
returns the gradient with respect to the head's parameters. `models/heads.py` has the same formulas for autograd;
tests/unit/models/fast/test_heads.py compares both.
Letters: `B` rows, `P` parameters of a row, `A` components of an action.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from rl_training.core.types import Numbers
from rl_training.models.fast.backend import Backend
from rl_training.models.heads import (
    LOG_SQRT_2PI,
    LOG_STD_MAX,
    LOG_STD_MIN,
    ActionHead,
    BernoulliHead,
    CategoricalHead,
    GaussianHead,
    MultiCategoricalHead,
)
from rl_training.models.state_dependent import LEAST_VARIANCE, MEAN_LIMIT, StateDependentHead

Pullback: TypeAlias = Callable[[Numbers, Numbers | None], tuple[Numbers, ...]]
"""(gradient of log-probabilities [B], of entropies: [B], a number or None) -> gradient of the parameters [B, P], then
of the head's own parameters."""
Sampled: TypeAlias = tuple[Numbers, Numbers, Callable[[Numbers, Numbers], tuple[Numbers, ...]]]
"""Actions [B, A], log-probabilities [B], and a pullback that takes the gradients of both."""
Evaluated: TypeAlias = tuple[Numbers, Numbers, Pullback]
"""Log-probabilities [B], entropies [B], and a pullback."""


def action_evaluator(head: ActionHead, backend: Backend) -> Callable[[Numbers, Numbers], Evaluated] | None:
    """Return the function that evaluates actions for a head, given parameters [B, P]; None for a custom head."""
    if type(head) is CategoricalHead:
        return lambda params, actions: categorical(params, actions, backend)
    if type(head) is BernoulliHead:
        return lambda params, actions: bernoulli(params, actions, backend)
    if type(head) is MultiCategoricalHead:
        counts = head.counts
        return lambda params, actions: multi_categorical(params, actions, counts, backend)
    if isinstance(head, GaussianHead | StateDependentHead):
        learned = backend.view(head.log_std.detach())
        if type(head) is GaussianHead:
            return lambda params, actions: gaussian(params, actions, learned, backend)
        if type(head) is StateDependentHead:
            return lambda params, actions: state_dependent(params, actions, learned, backend)
    return None


def categorical(logits: Numbers, actions: Numbers, backend: Backend) -> Evaluated:
    """One choice; logits [B, P], actions [B]. Internally, choices are rows [P, B], which makes sums over them fast."""
    xp, columns = backend.xp, backend.transposed(logits)
    shifted = columns - xp.amax(columns, axis=0)
    powers = xp.exp(shifted)
    total = powers.sum(0)
    probabilities = powers / total
    log_probabilities = shifted - xp.log(total)
    chosen = backend.cast(actions == backend.arange(len(columns))[:, None], logits)
    entropies = -(probabilities * log_probabilities).sum(0)

    def back(by_logprob: Numbers, by_entropy: Numbers | None) -> tuple[Numbers, ...]:
        gradient = (chosen - probabilities) * by_logprob
        if by_entropy is not None:
            gradient -= probabilities * (log_probabilities + entropies) * by_entropy
        return (gradient.T,)

    return (log_probabilities * chosen).sum(0), entropies, back


def multi_categorical(
    logits: Numbers, actions: Numbers, counts: Sequence[int], backend: Backend
) -> Evaluated:
    """Independent choices among `counts`; logits [B, P] side by side, actions [B, A]."""
    ends = np.cumsum(counts)
    parts = [
        categorical(logits[:, end - count : end], actions[:, number], backend)
        for number, (count, end) in enumerate(zip(counts, ends, strict=True))
    ]

    def back(by_logprob: Numbers, by_entropy: Numbers | None) -> tuple[Numbers, ...]:
        gradients = [part[2](by_logprob, by_entropy)[0] for part in parts]
        return (backend.xp.concatenate(gradients, 1),)

    return sum(part[0] for part in parts), sum(part[1] for part in parts), back


def bernoulli(logits: Numbers, actions: Numbers, backend: Backend) -> Evaluated:
    """Independent yes or no; logits of yes [B, A], actions [B, A] of 0 and 1."""
    actions = backend.cast(actions, logits)
    probabilities = sigmoid(logits, backend)
    log_normalizer = softplus(logits, backend)
    entropies = (log_normalizer - logits * probabilities).sum(-1)

    def back(by_logprob: Numbers, by_entropy: Numbers | None) -> tuple[Numbers, ...]:
        gradient = (actions - probabilities) * by_logprob[:, None]
        if by_entropy is not None:
            slope = logits * probabilities * (1 - probabilities)
            gradient = gradient - (slope.T * by_entropy).T
        return (gradient,)

    return (actions * logits - log_normalizer).sum(-1), entropies, back


def gaussian(means: Numbers, actions: Numbers, log_std: Numbers, backend: Backend) -> Evaluated:
    """Independent normals with learned log deviations [A]; means and actions [B, A]."""
    xp, size = backend.xp, means.shape[1]
    precision = xp.exp(-log_std)
    standardized = (actions - means) * precision
    squares = standardized * standardized
    total = log_std.sum()
    entropies = xp.full_like(means[:, 0], 0.0) + (total + size * (0.5 + LOG_SQRT_2PI))

    def back(by_logprob: Numbers, by_entropy: Numbers | None) -> tuple[Numbers, ...]:
        by_means = standardized * precision * by_logprob[:, None]
        by_log_std = by_logprob @ squares - by_logprob.sum()
        if by_entropy is not None:
            by_log_std = by_log_std + (by_entropy * xp.ones_like(by_logprob)).sum()
        return by_means, by_log_std

    return -0.5 * squares.sum(-1) - total - size * LOG_SQRT_2PI, entropies, back


def squashed_gaussian(params: Numbers, noise: Numbers, backend: Backend) -> Sampled:
    """Return actions [B, A] in [-1, 1], log-probabilities [B], and a pullback that takes the gradients of both.

    Parameters [B, 2A] are means and log deviations; `noise` [B, A] is standard normal.
    """
    xp, size = backend.xp, params.shape[1] // 2
    asked = params[:, size:]
    log_std = backend.clip(asked, LOG_STD_MIN, LOG_STD_MAX)
    spread = xp.exp(log_std) * noise
    raw = params[:, :size] + spread
    actions = xp.tanh(raw)
    log_slope = 2 * (math.log(2) - raw - softplus(-2 * raw, backend))
    logprobs = (-0.5 * noise * noise - log_std - LOG_SQRT_2PI - log_slope).sum(-1)

    def back(by_actions: Numbers, by_logprob: Numbers) -> tuple[Numbers, ...]:
        # log(1 - tanh(u)^2) falls by 2 tanh(u)
        column = by_logprob[:, None] if getattr(by_logprob, "ndim", 0) else by_logprob
        by_raw = by_actions * (1 - actions * actions) + 2 * actions * column
        by_log_std = (by_raw * spread - column) * ((asked >= LOG_STD_MIN) & (asked <= LOG_STD_MAX))
        return (xp.concatenate([by_raw, by_log_std], 1),)

    return actions, logprobs, back


def state_dependent(params: Numbers, actions: Numbers, log_std: Numbers, backend: Backend) -> Evaluated:
    """Normals with deviations by features; means and features [B, A + H], actions [B, A], log deviations [H, A].

    No gradient reaches the features through the deviation.
    """
    xp, size = backend.xp, actions.shape[1]
    squares, entries = params[:, size:] * params[:, size:], xp.exp(2 * log_std)
    variances = squares @ entries + LEAST_VARIANCE
    differences = actions - params[:, :size]
    standardized = differences * differences / variances
    half_logs = 0.5 * xp.log(variances)

    def back(by_logprob: Numbers, by_entropy: Numbers | None) -> tuple[Numbers, ...]:
        column = by_logprob[:, None]
        by_params = xp.zeros_like(params)
        by_params[:, :size] = differences / variances * column
        by_variances = (0.5 * standardized - 0.5) * column
        if by_entropy is not None:
            by_variances = (by_variances.T + 0.5 * by_entropy).T
        return by_params, squares.T @ (by_variances / variances) * (2 * entries)

    logprobs = (-0.5 * standardized - half_logs - LOG_SQRT_2PI).sum(-1)
    return logprobs, (half_logs + (0.5 + LOG_SQRT_2PI)).sum(-1), back


def squashed_state_dependent(params: Numbers, noise: Numbers, log_std: Numbers, backend: Backend) -> Sampled:
    """Sample with one noise matrix for all rows, squashed by tanh; means and features [B, A + H], noise [H, A].

    For SAC's actor: means are limited to where tanh has a slope, and the features get gradients from the deviation.
    """
    xp, size = backend.xp, noise.shape[1]
    asked, features = params[:, :size], params[:, size:]
    matrix, squares, entries = xp.exp(log_std) * noise, features * features, xp.exp(2 * log_std)
    spread, variances = features @ matrix, squares @ entries + LEAST_VARIANCE
    raw = backend.clip(asked, -MEAN_LIMIT, MEAN_LIMIT) + spread
    actions = xp.tanh(raw)
    log_slope = 2 * (math.log(2) - raw - softplus(-2 * raw, backend))
    relative = spread / variances
    logprobs = (-0.5 * (spread * relative + xp.log(variances)) - LOG_SQRT_2PI - log_slope).sum(-1)

    def back(by_actions: Numbers, by_logprob: Numbers) -> tuple[Numbers, ...]:
        column = by_logprob[:, None] if getattr(by_logprob, "ndim", 0) else by_logprob
        by_raw = by_actions * (1 - actions * actions) + 2 * actions * column
        by_spread = by_raw - relative * column
        by_variances = (0.5 * column) * (relative * relative - 1 / variances)
        by_features = by_spread @ matrix.T + 2 * features * (by_variances @ entries.T)
        by_log_std = features.T @ by_spread * matrix + squares.T @ by_variances * (2 * entries)
        by_means = by_raw * (abs(asked) < MEAN_LIMIT)
        return xp.concatenate([by_means, by_features], 1), by_log_std

    return actions, logprobs, back


def softplus(numbers: Numbers, backend: Backend) -> Numbers:
    """Return log(1 + exp(x)), without overflow."""
    xp = backend.xp
    return backend.clip(numbers, 0.0, math.inf) + xp.log1p(xp.exp(-abs(numbers)))


def sigmoid(numbers: Numbers, backend: Backend) -> Numbers:
    """Return 1 / (1 + exp(-x)), computed from tanh, which does not overflow."""
    return 0.5 * (1.0 + backend.xp.tanh(0.5 * numbers))
