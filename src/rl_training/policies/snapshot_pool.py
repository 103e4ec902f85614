"""Snapshots of a policy that are its opponents: which are kept, how one is drawn, and how strong each of them is.

Ratings are Elo's. Before a game, the learner of rating L is expected to score E = 1 / (1 + 10^((S - L) / 400)) against
a snapshot of rating S. With its score s, the ratings become L + K (s - E) and S - K (s - E). The learner begins at
1000, and a new snapshot has the learner's rating, so only differences have a meaning.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import torch

from rl_training.core.types import Array, State

Sampling: TypeAlias = Literal["uniform", "recent", "prioritised"]

FIRST_RATING = 1000.0
K_FACTOR = 16.0
"""How far a game moves a rating, at most; half of it between equals."""
RECENT = 100
"""Games that win rates are over."""


@dataclass(frozen=True)
class GameResult:
    """A game of the learner against a snapshot, by the returns of their seats."""

    result: float
    """1 for a win, which is a higher return than that of every other seat; 0.5 if the best of them has the same; 0."""
    score: float
    """The mean over the other seats of 1, 0.5 or 0, as if each were the only one: between equals 0.5 on average."""

    @classmethod
    def of(cls, own: float, others: Array) -> "GameResult":
        """Return the result for the learner's return and those of the other seats."""
        return cls(_points(own, np.max(others)), float(np.mean([_points(own, other) for other in others])))


def _points(own: float, other: float) -> float:
    return 0.5 if own == other else float(own > other)


def expected_score(rating: float, other: float) -> float:
    """Return the score that Elo's model expects against another rating."""
    return float(1.0 / (1.0 + 10.0 ** ((other - rating) / 400.0)))


@dataclass
class Snapshot:
    """The weights of a policy at one time, packed, and the learner's recent results against it."""

    timesteps: int
    weights: Array
    rating: float
    results: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))


class SnapshotPool:
    """Keeps the first snapshot and the newest ones, `size` in total; a pool of one keeps the newest.

    A snapshot that leaves the pool stays among `snapshots` until `release`, as its last games go on.
    """

    def __init__(self, size: int, sampling: Sampling) -> None:
        self.size, self.sampling = size, sampling
        self.snapshots: dict[int, Snapshot] = {}
        """By number, in the order in which they were taken."""
        self.members: list[int] = []
        self.rating = FIRST_RATING
        """The learner's."""
        self.results: deque[float] = deque(maxlen=RECENT)
        """The learner's, against all snapshots."""
        self._next = 0

    def add(self, weights: Array, timesteps: int) -> None:
        """Add a snapshot of the learner as it is now; the second oldest leaves a pool that is full."""
        self.snapshots[self._next] = Snapshot(timesteps, weights, self.rating)
        self.members.append(self._next)
        self._next += 1
        while len(self.members) > self.size:
            del self.members[1 if self.size > 1 else 0]

    def release(self, in_use: set[int]) -> None:
        """Drop the snapshots that have left the pool, but for those that still play."""
        kept = in_use.union(self.members)
        self.snapshots = {number: each for number, each in self.snapshots.items() if number in kept}

    @property
    def probabilities(self) -> Array:
        """How likely each member is drawn, from the oldest to the newest.

        `uniform`: equally. `recent`: in proportion to its rank, 1 for the oldest. `prioritised`: to its win rate
        against the learner, a draw being half a win; one win and one loss are added, so that none is forgotten.
        """
        count = len(self.members)
        weights = np.ones(count)
        if self.sampling == "recent":
            weights = np.arange(1.0, count + 1.0)
        elif self.sampling == "prioritised":
            lost = [self.snapshots[number].results for number in self.members]
            weights = np.array([(len(own) - sum(own) + 1.0) / (len(own) + 2.0) for own in lost])
        found: Array = weights / weights.sum()
        return found

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Return the numbers of the opponents of `count` games."""
        return rng.choice(np.array(self.members, np.int64), size=count, p=self.probabilities)

    def record(self, number: int, game: GameResult) -> None:
        """Add a game of the learner against a snapshot, and update both ratings."""
        snapshot = self.snapshots[number]
        for results in (self.results, snapshot.results):
            results.append(game.result)
        gain = K_FACTOR * (game.score - expected_score(self.rating, snapshot.rating))
        self.rating += gain
        snapshot.rating -= gain

    def metrics(self) -> dict[str, float]:
        """Return win rates over recent games, and ratings; nothing before the first game."""
        if not self.results:
            return {}
        members = [self.snapshots[number] for number in self.members]
        ratings = [each.rating for each in members]
        found = {
            "rollout/win_rate": float(np.mean(self.results)),
            "selfplay/elo": self.rating,
            "selfplay/pool_size": float(len(members)),
            "selfplay/pool_elo_min": min(ratings),
            "selfplay/pool_elo_max": max(ratings),
        }
        for name, snapshot in (("oldest", members[0]), ("newest", members[-1])):
            if snapshot.results:
                found[f"selfplay/win_rate_{name}"] = float(np.mean(snapshot.results))
        return found

    def state_dict(self) -> State:
        snapshots = self.snapshots.items()
        return {
            "weights": {str(number): torch.from_numpy(each.weights) for number, each in snapshots},
            "snapshots": [
                [number, each.timesteps, each.rating, list(each.results)] for number, each in snapshots
            ],
            "members": list(self.members),
            "rating": self.rating,
            "results": list(self.results),
            "next": self._next,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore it; a pool of another size is adjusted when the next snapshot is taken."""
        self.snapshots = {
            int(number): Snapshot(
                int(timesteps),
                state["weights"][str(number)].numpy(),
                float(rating),
                deque(map(float, results), maxlen=RECENT),
            )
            for number, timesteps, rating, results in state["snapshots"]
        }
        self.members = [int(number) for number in state["members"]]
        self.rating = float(state["rating"])
        self.results = deque(map(float, state["results"]), maxlen=RECENT)
        self._next = int(state["next"])
