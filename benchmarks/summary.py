"""Summaries of rounds: medians with ranges, ratios within a round, and whether a target is reached."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Rounds = Sequence[Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class Figure:
    """A median with minimum and maximum."""

    median: float
    least: float
    greatest: float

    def text(self, form: str = ",.0f") -> str:
        """Return it as `median (least to greatest)`."""
        return f"{self.median:{form}} ({self.least:{form}} to {self.greatest:{form}})"


def figure(values: Iterable[float]) -> Figure:
    """Return the median and the range."""
    found = list(values)
    return Figure(statistics.median(found), min(found), max(found))


def of(rounds: Rounds, side: str, name: str) -> Figure:
    """Return one of a side's numbers."""
    return figure(entry[side][name] for entry in rounds)


def ratio(rounds: Rounds, name: str, above: str, below: str) -> Figure:
    """Return one side's number over another's, divided within each round: a machine's speed drifts between them."""
    return figure(entry[above][name] / entry[below][name] for entry in rounds)


def limit_share(rounds: Rounds, ours: str, limit: str, *, of_updating: bool = False) -> Figure:
    """Return the time of the matrix products as a share of the total time, or of sampling and updating."""
    return figure(
        entry[limit]["seconds_per_step"]
        * entry[ours]["steps_per_second"]
        / (entry[ours]["updating"] if of_updating else 1.0)
        for entry in rounds
    )


def verdict(found: float, target: float | None, *, at_most: bool = False) -> str:
    """Return the target and whether it is reached."""
    if target is None:
        return ""
    reached = found <= target if at_most else found >= target
    return f"{'≤' if at_most else '≥'} {target:g}: {'reached' if reached else 'not reached'}"


def exponents(costs: Mapping[float, float]) -> list[float]:
    """Return the exponent of growth between neighbouring points."""
    points = sorted(costs.items())
    return [
        math.log(cost / before_cost) / math.log(value / before)
        for (before, before_cost), (value, cost) in pairwise(points)
    ]
