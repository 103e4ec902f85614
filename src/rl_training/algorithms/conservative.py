"""The conservative term of CQL, arXiv:2006.04779: how much all actions are worth beyond the recorded one."""

from torch import Tensor

from rl_training.core.types import Numbers
from rl_training.models.fast.backend import Backend


def conservative_gap(values: Tensor, recorded: Tensor) -> Tensor:
    """Return logsumexp(values) - recorded [..., B], for values [..., B, N] of N actions and of the recorded one.

    Of actions that were sampled, subtract the log-density from the value first.
    """
    return values.logsumexp(-1) - recorded


def conservative_gap_gradient(
    values: Numbers, recorded: Numbers, *, backend: Backend
) -> tuple[Numbers, Numbers]:
    """Return `conservative_gap`, and its gradient with respect to `values`; that for `recorded` is -1."""
    xp = backend.xp
    highest = xp.amax(values, axis=-1, keepdims=True)
    weights = xp.exp(values - highest)
    total = weights.sum(-1)[..., None]
    return (xp.log(total) + highest)[..., 0] - recorded, weights / total
