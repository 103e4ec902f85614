"""Records of runs that never were, for reports on them."""

from collections.abc import Sequence

from rl_training.lab.scored_runs import EvaluationPoint, ScoredRun


def run(
    task: str,
    name: str,
    seed: int,
    rewards: Sequence[float],
    *,
    every: int = 100,
    seconds: float | None = 1.0,
    unit: str = "steps",
) -> ScoredRun:
    """Return a run that was evaluated in equal distances, and takes so many seconds from one to the next."""
    points = [
        EvaluationPoint(every * (k + 1), float(reward), None if seconds is None else seconds * (k + 1))
        for k, reward in enumerate(rewards)
    ]
    return ScoredRun(task, name, seed, points, unit)


def runs(task: str, name: str, scores: Sequence[float], *, first_seed: int = 1) -> list[ScoredRun]:
    """Return a run per score that reaches it in a straight line from 0, and ends with it."""
    return [
        run(task, name, seed, [score * share for share in (0.25, 0.5, 0.75, 1.0)])
        for seed, score in enumerate(scores, start=first_seed)
    ]
