"""The score of a run, computed by the same rule everywhere. Needs no torch."""

import math
from collections.abc import Sequence

SCORE_RULE = "the mean of the last tenth of a run's evaluations (rounded down, at least one)"
BEST_RULE = "the highest evaluation of a run, which is biased upwards: shown next to the score, never used as the score"


def score_of(returns: Sequence[float]) -> float | None:
    """Return the score of a run from the mean returns of its evaluations, or None without any: see `SCORE_RULE`.

    >>> score_of([1.0, 2.0, 3.0])
    3.0
    >>> score_of([float(number) for number in range(29)])
    27.5
    """
    last = returns[-max(1, len(returns) // 10) :]
    return math.fsum(last) / len(last) if last else None
