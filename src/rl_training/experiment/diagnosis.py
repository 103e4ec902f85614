"""What went wrong in a run that did badly: findings from its metric rows and evaluations, as pure functions.

A run did badly if its return did not rise, if it fell back from its best, or if no episode ended; never if its last
evaluation is good enough. Other signs, such as
a vanished entropy, are named only then: in a good run they are harmless.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rl_training.experiment.logs.rows import is_number

Row: TypeAlias = Mapping[str, Any]

PAGE = "docs/troubleshooting.md"
MIN_ROWS, MIN_EPISODES = 4, 20
"""Shorter runs are not judged."""
MARGIN = 0.05
"""A return that rises by less than this share of the first one has not risen."""
LOST_SHARE = 0.5
"""Share of the gain that must be lost before a run has fallen back from its best."""
LOW_ENTROPY, HIGH_KL, GROWN_LOSS = 0.05, 0.1, 100.0
"""Share of the first entropy, approximate KL divergence of an update, and factor of the first critic loss."""


@dataclass(frozen=True)
class Finding:
    """Something that went wrong; `section` of the page says what to do about it."""

    section: str
    text: str
    is_cause: bool = False
    """A possible reason, and not what went wrong itself."""


def diagnose(
    rows: Sequence[Row],
    evaluations: Sequence[Row],
    *,
    fine_tuned: bool = False,
    good_return: float | None = None,
) -> list[Finding]:
    """Return what went wrong, most important first; nothing for a good run or one that is too short to tell.

    `rows` are those of metrics.jsonl, `evaluations` those of evaluations.jsonl. The return of a `fine_tuned` agent need
    not rise. Nothing went wrong in a run whose last evaluation reaches `good_return`.
    """
    if len(rows) < MIN_ROWS:
        return []
    returns, scores = _column(rows, "rollout/ep_rew_mean"), _column(evaluations, "mean_reward")
    if not returns:
        return _no_episode(rows[-1], evaluations)
    if len(returns) < MIN_ROWS or _number(rows[-1], "time/episodes", 0.0) < MIN_EPISODES:
        return []
    if scores and good_return is not None and scores[-1] >= good_return:
        return []
    found = _fallen_back(returns[0], evaluations)
    found = found or ([] if fine_tuned else _not_risen(returns, scores))
    return found + [cause for rule in CAUSES for cause in rule(rows)] if found else []


def summary(findings: Sequence[Finding]) -> str:
    """Return one line with what went wrong, possible reasons, and where to read on."""
    causes = [finding.text for finding in findings if finding.is_cause]
    text = f"This run did badly: {findings[0].text}"
    text += f"; possible reasons: {', '.join(causes)}" if causes else ""
    return f"{text}. See {PAGE}#{findings[0].section}"


def _no_episode(last: Row, evaluations: Sequence[Row]) -> list[Finding]:
    """Evaluations count as well: training may be too short for a single long episode."""
    if "time/total_timesteps" not in last or _number(last, "time/episodes") != 0 or not evaluations:
        return []
    played = _number(evaluations[-1], "num_episodes", 0.0)
    if played < 1 or _number(evaluations[-1], "num_capped_episodes") != played:
        return []
    text = "no episode ended, neither in training nor in the last evaluation, so returns are partial"
    return [Finding("no-episode-ends", text)]


def _not_risen(returns: Sequence[float], scores: Sequence[float]) -> list[Finding]:
    first = returns[0]
    # medians, as a single row or evaluation may be unusually high
    later = max(statistics.median(values[len(values) // 2 :]) for values in (returns, scores) if values)
    if max([later, *scores[-1:]]) > first + MARGIN * abs(first):
        return []
    return [
        Finding(
            "the-return-does-not-rise",
            f"the return did not rise ({first:.4g} at first, {later:.4g} later)",
        )
    ]


def _fallen_back(first: float, evaluations: Sequence[Row]) -> list[Finding]:
    scored = [
        (_number(row, "mean_reward"), _number(row, "std_reward", 0.0))
        for row in evaluations
        if math.isfinite(_number(row, "mean_reward"))
    ]
    if len(scored) < 2:
        return []
    (best, best_spread), (last, last_spread) = max(scored, key=lambda pair: pair[0]), scored[-1]
    gained, lost = best - first, best - last
    if gained <= 0 or lost <= LOST_SHARE * gained or lost <= best_spread + last_spread:
        return []
    text = f"the evaluation return fell from {best:.4g} to {last:.4g}; checkpoints/best has the better agent"
    return [Finding("the-return-falls-again", text)]


def _entropy_gone(rows: Sequence[Row]) -> list[Finding]:
    entropy = [-value for value in _column(rows, "train/entropy_loss")]
    if len(entropy) < MIN_ROWS or entropy[0] <= 0 or entropy[-1] > LOW_ENTROPY * entropy[0]:
        return []
    text = f"the policy's entropy fell from {entropy[0]:.2g} to {entropy[-1]:.2g}"
    return [Finding("the-entropy-vanishes", text, is_cause=True)]


def _kl_exploded(rows: Sequence[Row]) -> list[Finding]:
    divergences = _column(rows, "train/approx_kl")
    if not divergences or (usual := statistics.median(divergences)) <= HIGH_KL:
        return []
    return [
        Finding(
            "updates-are-too-large",
            f"a usual update changed the policy by a KL of {usual:.2g}",
            is_cause=True,
        )
    ]


def _value_unexplained(rows: Sequence[Row]) -> list[Finding]:
    explained = _column(rows, "train/explained_variance")
    if not explained or (usual := statistics.median(explained[len(explained) // 2 :])) > 0:
        return []
    text = f"the value function explained nothing of the returns (explained variance {usual:.2g})"
    return [Finding("the-value-function-explains-nothing", text, is_cause=True)]


def _critic_diverged(rows: Sequence[Row]) -> list[Finding]:
    losses = _column(rows, "train/critic_loss")
    if len(losses) < MIN_ROWS or losses[-1] <= GROWN_LOSS * max(losses[0], 1e-8):
        return []
    text = f"the critic loss grew from {losses[0]:.2g} to {losses[-1]:.2g}"
    return [Finding("the-critic-diverges", text, is_cause=True)]


CAUSES = (_entropy_gone, _kl_exploded, _value_unexplained, _critic_diverged)


def _column(rows: Sequence[Row], name: str) -> list[float]:
    """Return the finite numbers of one metric, without rows that have none."""
    return [value for row in rows if math.isfinite(value := _number(row, name))]


def _number(row: Row, name: str, default: float = math.nan) -> float:
    """Return a finite number of a row; `default` if it has none."""
    try:
        value = float(row[name]) if is_number(row.get(name)) else math.nan
    except OverflowError:  # an int of more than 308 digits
        return default
    return value if math.isfinite(value) else default
