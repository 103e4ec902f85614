"""Win rates and Elo ratings of players, from games that they won, drew and lost."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.core.types import Array

NORMAL_QUANTILE = 1.959963984540054
"""The 97.5% quantile of the standard normal distribution."""
ELO_SCALE = 400.0 / math.log(10.0)
"""Elo points for a factor e in the odds: 400 points are odds of 10 to 1."""
PRIOR_GAMES = 1.0
"""Drawn games that are added for every pair that played, so that a player who won all has a finite rating."""


def wilson(successes: float, total: int) -> tuple[float, float]:
    """Return the 95% Wilson interval of a rate.

    `successes` may count draws as halves. The interval is then wider than it must be, since such a sum varies less than
    that of wins alone.

    >>> low, high = wilson(50, 100)
    >>> round(low, 3), round(high, 3)
    (0.404, 0.596)
    """
    if total == 0:
        return 0.0, 1.0
    rate, z2 = successes / total, NORMAL_QUANTILE**2
    centre = (rate + z2 / (2 * total)) / (1 + z2 / total)
    reach = NORMAL_QUANTILE / (1 + z2 / total) * math.sqrt(rate * (1 - rate) / total + z2 / (4 * total**2))
    return max(centre - reach, 0.0), min(centre + reach, 1.0)


@dataclass
class Tally:
    """How many games were won, drawn and lost."""

    wins: int = 0
    draws: int = 0
    losses: int = 0

    def add(self, result: str) -> None:
        """Count a `win`, a `draw` or a `loss`."""
        self.wins += result == "win"
        self.draws += result == "draw"
        self.losses += result == "loss"

    @property
    def games(self) -> int:
        return self.wins + self.draws + self.losses

    @property
    def score(self) -> float:
        """The wins and half the draws, divided by the games."""
        return (self.wins + self.draws / 2) / max(self.games, 1)

    def rates(self) -> dict[str, Any]:
        """Return counts, rates and the score, each rate with its 95% interval."""
        counts = {"wins": self.wins, "draws": self.draws, "losses": self.losses}
        found: dict[str, Any] = dict(counts)
        for name, count in (("win_rate", self.wins), ("draw_rate", self.draws), ("loss_rate", self.losses)):
            found[name] = count / max(self.games, 1)
            found[f"{name}_interval"] = list(wilson(count, self.games))
        found["score"] = self.score
        found["score_interval"] = list(wilson(self.wins + self.draws / 2, self.games))
        return found


def elo(points: Array, games: Array, *, iterations: int = 100) -> Array:
    """Return Elo ratings [P] with mean 0: the maximum-likelihood strengths of the Bradley-Terry model.

    `points` [P, P] are those that row scored against column, a draw counts one half to both; `games` [P, P] are the
    games of each pair. One drawn game is added for every pair that played. Leading axes are resamples: [B, P, P] gives
    [B, P]. Players whom no chain of games connects are not comparable; each such group has mean 0 by itself.
    """
    played = games > 0
    points = points + 0.5 * PRIOR_GAMES * played
    games = games + PRIOR_GAMES * played
    players = points.shape[-1]
    strength = np.zeros(points.shape[:-1])
    scored = points.sum(axis=-1)
    for _ in range(iterations):  # Newton's method on a concave function, with steps of limited size
        odds = strength[..., :, None] - strength[..., None, :]
        expected = 1.0 / (1.0 + np.exp(-odds))
        gradient = scored - (games * expected).sum(axis=-1)
        weights = games * expected * (1.0 - expected)
        hessian = -weights
        index = np.arange(players)
        hessian[..., index, index] += weights.sum(axis=-1)
        # the sum of all strengths is free: the added constants keep it where it is
        hessian[..., index, index] += 1e-9
        step = np.linalg.solve(hessian + 1.0 / players, gradient[..., None])[..., 0]
        largest = np.abs(step).max(axis=-1, keepdims=True)
        strength = strength + step * np.minimum(1.0, 2.0 / np.maximum(largest, 1e-12))
        if float(np.abs(gradient).max()) < 1e-10:
            break
    return np.asarray(ELO_SCALE * (strength - strength.mean(axis=-1, keepdims=True)))


def resampled_points(results: Array, pairs: Array, players: int, draws: Array) -> tuple[Array, Array]:
    """Return points and games [B, P, P] of resampled games.

    `results` [G] are the points of the first player of each game, `pairs` [G, 2] its two players, and `draws` [B, G]
    the games of each resample.
    """
    batches = len(draws)
    points, games = np.zeros((batches, players, players)), np.zeros((batches, players, players))
    first, second, won = pairs[draws, 0], pairs[draws, 1], results[draws]
    row = np.arange(batches)[:, None]
    np.add.at(points, (row, first, second), won)
    np.add.at(points, (row, second, first), 1.0 - won)
    np.add.at(games, (row, first, second), 1.0)
    np.add.at(games, (row, second, first), 1.0)
    return points, games
