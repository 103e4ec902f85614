"""What heads say of actions, with derivatives by hand; for arrays and tensors alike.

Each function returns numbers and a pullback: given the gradient of a loss by those numbers, it returns the gradient by
the head's parameters. The same formulas with autograd are in `heads`, and tests hold both equal.
Letters: `B` rows, `P` parameters of a row, `A` components of an action.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from rl_training.core.types import Numbers
from rl_training.models.fast.activations import computes_on_arrays
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
"""(gradient by log-probabilities [B], by entropies [B] or a number, None if there is none) -> gradient by the
parameters [B, P], then by what the head itself has learned."""
Sampled: TypeAlias = tuple[Numbers, Numbers, Callable[[Numbers, Numbers], tuple[Numbers, ...]]]
"""Actions [B, A], log-probabilities [B], and how to go back from gradients by both, as a pullback does."""
Judged: TypeAlias = tuple[Numbers, Numbers, Pullback]
"""Log-probabilities [B], entropies [B], and how to go back."""


def namespace(numbers: Numbers) -> Any:
    """Return the library whose functions take these numbers."""
    return np if isinstance(numbers, np.ndarray) else torch


def bounded(numbers: Numbers, low: float, high: float) -> Numbers:
    """Return numbers within bounds; on small arrays `np.clip` takes twice as long."""
    if isinstance(numbers, np.ndarray):
        return np.minimum(np.maximum(numbers, low), high)
    return numbers.clamp(low, high)


def as_type(numbers: Numbers, like: Numbers) -> Numbers:
    """Return the numbers in the type of others; a whole number times a single-precision one is double in NumPy."""
    return numbers.astype(like.dtype) if isinstance(numbers, np.ndarray) else numbers.to(like.dtype)


def judge_of(head: ActionHead) -> Callable[[Numbers, Numbers], Judged] | None:
    """Return what judges actions for a head, given parameters [B, P] and actions; None for one not known here."""
    if type(head) is CategoricalHead:
        return categorical
    if type(head) is BernoulliHead:
        return bernoulli
    if type(head) is MultiCategoricalHead:
        counts = head.counts
        return lambda params, actions: multi_categorical(params, actions, counts)
    if isinstance(head, GaussianHead | StateDependentHead):
        log_std = head.log_std.detach()
        learned: Numbers = log_std.numpy() if computes_on_arrays(log_std.device) else log_std
        if type(head) is GaussianHead:
            return lambda params, actions: gaussian(params, actions, learned)
        if type(head) is StateDependentHead:
            return lambda params, actions: state_dependent(params, actions, learned)
    return None


def categorical(logits: Numbers, actions: Numbers) -> Judged:
    """One choice; logits [B, P], actions [B]. Inside, rows lie side by side [P, B]: sums over few choices are quick."""
    xp = namespace(logits)
    columns = np.ascontiguousarray(logits.T) if xp is np else logits.T
    shifted = columns - xp.amax(columns, axis=0)
    powers = xp.exp(shifted)
    total = powers.sum(0)
    probabilities = powers / total
    log_probabilities = shifted - xp.log(total)
    choices = np.arange(len(columns)) if xp is np else torch.arange(len(columns), device=logits.device)
    chosen = as_type(actions == choices[:, None], logits)
    entropies = -(probabilities * log_probabilities).sum(0)

    def back(by_logprob: Numbers, by_entropy: Numbers | None) -> tuple[Numbers, ...]:
        gradient = (
            chosen - probabilities if xp is np else chosen.to(logits.dtype) - probabilities
        ) * by_logprob
        if by_entropy is not None:
            gradient -= probabilities * (log_probabilities + entropies) * by_entropy
        return (gradient.T,)

    return (log_probabilities * chosen).sum(0), entropies, back


def multi_categorical(logits: Numbers, actions: Numbers, counts: Sequence[int]) -> Judged:
    """Independent choices among `counts`; logits [B, P] side by side, actions [B, A]."""
    xp = namespace(logits)
    ends = np.cumsum(counts)
    parts = [
        categorical(logits[:, end - count : end], actions[:, number])
        for number, (count, end) in enumerate(zip(counts, ends, strict=True))
    ]

    def back(by_logprob: Numbers, by_entropy: Numbers | None) -> tuple[Numbers, ...]:
        gradients = [part[2](by_logprob, by_entropy)[0] for part in parts]
        return (xp.concatenate(gradients, 1),)

    return sum(part[0] for part in parts), sum(part[1] for part in parts), back


def bernoulli(logits: Numbers, actions: Numbers) -> Judged:
    """Independent yes or no; logits of yes [B, A], actions [B, A] of 0 and 1."""
    actions = as_type(actions, logits)
    probabilities = sigmoid(logits)
    log_normalizer = softplus(logits)
    entropies = (log_normalizer - logits * probabilities).sum(-1)

    def back(by_logprob: Numbers, by_entropy: Numbers | None) -> tuple[Numbers, ...]:
        gradient = (actions - probabilities) * by_logprob[:, None]
        if by_entropy is not None:
            slope = logits * probabilities * (1 - probabilities)
            gradient = gradient - (slope.T * by_entropy).T
        return (gradient,)

    return (actions * logits - log_normalizer).sum(-1), entropies, back


def gaussian(means: Numbers, actions: Numbers, log_std: Numbers) -> Judged:
    """Independent normals with learned log deviations [A]; means and actions [B, A]."""
    xp = namespace(means)
    size = means.shape[1]
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


def squashed_gaussian(
    params: Numbers, noise: Numbers
) -> tuple[Numbers, Numbers, Callable[[Numbers, Numbers], Numbers]]:
    """Return actions [B, A] in [-1, 1], log-probabilities [B], and how to go back from gradients by both of them.

    Parameters [B, 2A] are means and log deviations; `noise` [B, A] is standard normal.
    """
    xp = namespace(params)
    size = params.shape[1] // 2
    asked = params[:, size:]
    log_std = bounded(asked, LOG_STD_MIN, LOG_STD_MAX)
    spread = xp.exp(log_std) * noise
    raw = params[:, :size] + spread
    actions = xp.tanh(raw)
    log_slope = 2 * (math.log(2) - raw - softplus(-2 * raw))
    logprobs = (-0.5 * noise * noise - log_std - LOG_SQRT_2PI - log_slope).sum(-1)

    def back(by_actions: Numbers, by_logprob: Numbers) -> Numbers:
        # log(1 - tanh(u)^2) falls by 2 tanh(u)
        column = by_logprob[:, None] if getattr(by_logprob, "ndim", 0) else by_logprob
        by_raw = by_actions * (1 - actions * actions) + 2 * actions * column
        by_log_std = (by_raw * spread - column) * ((asked >= LOG_STD_MIN) & (asked <= LOG_STD_MAX))
        return xp.concatenate([by_raw, by_log_std], 1)

    return actions, logprobs, back


def state_dependent(params: Numbers, actions: Numbers, log_std: Numbers) -> Judged:
    """Normals with deviations by features; means and features [B, A + H], actions [B, A], log deviations [H, A].

    Features do not learn from the deviation.
    """
    xp = namespace(params)
    size = actions.shape[1]
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


def squashed_state_dependent(params: Numbers, noise: Numbers, log_std: Numbers) -> Sampled:
    """The same with one matrix for all rows, squashed; means and features [B, A + H], standard noise [H, A].

    Means are kept within bounds, beyond which tanh has no slope, and features do learn from the deviation: this is for
    actors that follow critics.
    """
    xp = namespace(params)
    size = noise.shape[1]
    asked, features = params[:, :size], params[:, size:]
    matrix, squares, entries = xp.exp(log_std) * noise, features * features, xp.exp(2 * log_std)
    spread, variances = features @ matrix, squares @ entries + LEAST_VARIANCE
    raw = bounded(asked, -MEAN_LIMIT, MEAN_LIMIT) + spread
    actions = xp.tanh(raw)
    log_slope = 2 * (math.log(2) - raw - softplus(-2 * raw))
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


def softplus(numbers: Numbers) -> Numbers:
    """Return log(1 + exp(x)), without overflow."""
    xp = namespace(numbers)
    return bounded(numbers, 0.0, math.inf) + xp.log1p(xp.exp(-abs(numbers)))


def sigmoid(numbers: Numbers) -> Numbers:
    """Return 1 / (1 + exp(-x)), without overflow: by way of tanh."""
    return 0.5 * (1.0 + namespace(numbers).tanh(0.5 * numbers))
