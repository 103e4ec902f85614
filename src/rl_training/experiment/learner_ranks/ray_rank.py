"""A rank inside of a Ray actor: it answers the calls of a `RankGroup`."""

import contextlib
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rl_training.algorithms.learner import BaseLearner
from rl_training.algorithms.shards import Shards
from rl_training.core.messages import decode, encode
from rl_training.core.one_thread import one_thread
from rl_training.core.tensor_struct import TensorStruct
from rl_training.core.types import Array
from rl_training.experiment.learner_ranks.gloo import GlooExchange, join
from rl_training.experiment.learner_ranks.memory import Part, joined_batch
from rl_training.experiment.learner_ranks.rank import LearnerCopy, Order, digest_of, failure_text, take
from rl_training.experiment.logs.metadata import surroundings
from rl_training.experiment.resources import keep_freed_memory
from rl_training.experiment.threads import run_threads
from rl_training.runtime.ray_cluster import import_ray


@dataclass(frozen=True)
class RayLetter:
    """An order as it is sent: the arrays of the batch, and the state, are in the object store."""

    order: Order
    kind: type[TensorStruct] | None
    """The class of the batch; None if it is in the order itself."""
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Built:
    """What a rank reports when its learner is built."""

    node: str
    process: int
    update_path: str
    surroundings: dict[str, Any]


@dataclass(frozen=True)
class Failed:
    """An error, as text: that of a user's class might not be sent."""

    text: str


class RayRank:
    """Builds a copy of the learner, meets the other ranks, and takes the updates that rank 0 orders."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._learner: BaseLearner | None = None
        self._exchange: GlooExchange | None = None

    def build(self, parcel: bytes) -> bytes:
        """Build the learner."""

        def built() -> Built:
            keep_freed_memory()
            copy: LearnerCopy = decode(parcel)
            self._open.enter_context(one_thread())
            self._learner = learner = copy.build()
            self._open.enter_context(run_threads(copy.config, copy.spec, learner, own_code=True))
            return Built(platform.node(), os.getpid(), learner.update_path, surroundings(copy.config))

        return _answer(built)

    def join(self, message: bytes) -> bytes:
        """Meet the other ranks."""

        def joined() -> None:
            meeting, rank, ranks = decode(message)
            assert self._learner is not None
            assert isinstance(self._learner.shards, Shards)
            group = join(meeting, import_ray().util.get_node_ip_address(), rank, ranks)
            self._exchange = GlooExchange(self._learner.shards.count, group)
            self._learner.shards.exchange = self._exchange

        return _answer(joined)

    def update(self, message: bytes, arrays: Sequence[Array], state: bytes | None) -> bytes:
        """Take one update."""

        def updated() -> None:
            letter: RayLetter = decode(message)
            order = replace(letter.order, state=None if state is None else decode(state))
            if letter.kind is not None:
                # arrays of the object store are read-only
                copies = [(part, array.copy()) for part, array in zip(letter.parts, arrays, strict=True)]
                order = replace(order, batch=joined_batch(letter.kind, copies))
            assert self._learner is not None
            assert self._exchange is not None
            take(self._learner, self._exchange, order, digest_of(self._learner))

        return _answer(updated)


def _answer(work: Callable[[], Any]) -> bytes:
    try:
        return encode(work())
    except Exception as error:
        return encode(Failed(failure_text(error)))
