"""What rank 0 does for every kind of ranks: it writes orders, and decides whether lost ranks are replaced."""

import warnings
from typing import Any

import torch

from rl_training.algorithms.learner import BaseLearner
from rl_training.algorithms.shards import Shards
from rl_training.core.errors import UserError
from rl_training.core.messages import encode_code
from rl_training.core.protocols import Learner
from rl_training.core.seeding import global_generators
from rl_training.core.tensor_struct import TensorStruct
from rl_training.core.types import Progress, UpdateResult
from rl_training.experiment.agent_copies import copied_state
from rl_training.experiment.learner_ranks.rank import LearnerCopy, Order, digest_of
from rl_training.experiment.threads import UpdatesAround

MOST_FAILURES = 3
"""Losses of a rank in a row, without an update in between, after which it is not replaced."""


class ShardedLearner(UpdatesAround):
    """A learner in shards; raises an error if its update does not use them."""

    learner: BaseLearner
    losses: "Losses | None" = None
    """Those of other processes that compute shards."""

    def __init__(self, learner: BaseLearner, updates: Learner[Any]) -> None:
        assert isinstance(learner.shards, Shards)
        self.learner, self.shards, self._updates = learner, learner.shards, updates

    def update(self, batch: Any, progress: Progress) -> UpdateResult:
        if isinstance(batch, TensorStruct):  # as other processes have it: the last bits may depend on strides
            batch = batch.map(torch.Tensor.contiguous)
        result = self._updates.update(batch, progress)
        if not self.shards.used:
            raise UserError(
                f"learner_shards is {self.shards.count}, but {type(self.learner).__name__} computes its gradients "
                "without shards; set learner_shards to 1"
            )
        return result

    def metrics(self) -> dict[str, float]:
        """Return how often processes that compute shards were started again; nothing if there are none."""
        return {} if self.losses is None else {"time/learner_restarts": float(self.losses.replaced)}


class OrderBook:
    """Writes the orders of a run, one per update that other ranks take part in."""

    def __init__(self, learner: BaseLearner, shards: Shards) -> None:
        self._learner, self._shards = learner, shards
        self.number, self._digest = 0, 0

    def write(self, sequence: int, batch: Any, progress: Progress) -> Order:
        """Return the next order. A rank whose learner has another digest needs the `encoded_state` too."""
        self.number += 1
        normalizer = getattr(self._learner.owners.get("model"), "normalizer", None)
        return Order(
            self.number,
            sequence,
            (),
            batch,
            progress,
            self._learner.fixed_learning_rate,
            digest_of(self._learner),
            normalizer=None if normalizer is None else copied_state({"": normalizer.state_dict()})[""],
            generators=global_generators() if self._shards.uses_random else None,
        )

    def has_changed(self, order: Order) -> bool:
        """Return whether somebody else has changed the learner since the last call of `taken`."""
        return order.digest != self._digest

    def taken(self) -> None:
        """Remember the learner after an update."""
        self._digest = digest_of(self._learner)

    def encoded_state(self) -> bytes:
        """Return the state of the learner as a message."""
        return encode_code(copied_state(self._learner.state_dict()))


class Losses:
    """Counts the losses of ranks: decides how often they are replaced, and warns the user."""

    def __init__(self, restarts: int) -> None:
        self.restarts = restarts
        """How often a rank may still be replaced."""
        self.replaced = 0
        """How often one was."""
        self._in_a_row = dict[int, int]()
        self.warned = False

    def took_part(self, rank: int) -> None:
        """Note that a rank has finished an update."""
        self._in_a_row[rank] = 0

    def gives_up(self, rank: int) -> bool:
        """Return whether a rank is not replaced any more."""
        return self.restarts == 0 or self._in_a_row.get(rank, 0) >= MOST_FAILURES

    def replace(self) -> None:
        """Count a rank that is started again."""
        self.restarts -= 1
        self.replaced += 1

    def failed(self, rank: int) -> None:
        """Count a loss that the user need not know."""
        self._in_a_row[rank] = self._in_a_row.get(rank, 0) + 1

    def lost(self, rank: int, what: str) -> None:
        """Count a loss, and warn of the first one and of one that is not replaced."""
        self.failed(rank)
        gives_up = self.gives_up(rank)
        if gives_up or not self.warned:
            self.warned = True
            then = "is not started again" if gives_up else "is started again"
            warnings.warn(
                f"{what}; it {then}, and this process computes its shards: the results are the same",
                stacklevel=2,
            )


def parcel_of(copy: LearnerCopy) -> bytes:
    """Return the copy of a learner as a message; raise an error that names the remedy if it cannot be sent."""
    try:
        return encode_code(copy)
    except Exception as error:
        raise UserError(
            f"the losses, encoder or algorithm cannot be sent to other processes ({type(error).__name__}: {error}); "
            "use engine local"
        ) from error
