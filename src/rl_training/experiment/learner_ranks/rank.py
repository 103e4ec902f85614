"""A rank other than 0: builds a copy of the learner and takes the updates that rank 0 orders."""

import contextlib
import hashlib
import os
import threading
import time
import traceback
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from types import CodeType
from typing import Any, Protocol

import numpy as np
import torch

from rl_training.algorithms.learner import BaseLearner
from rl_training.algorithms.losses import Loss, function_name
from rl_training.algorithms.optimizers import FlatOptimizer
from rl_training.algorithms.shards import Shards
from rl_training.algorithms.target_networks import TargetNetwork
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.messages import decode
from rl_training.core.one_thread import one_thread
from rl_training.core.seeding import generator_state, set_global_generators
from rl_training.core.state import Counter
from rl_training.core.types import Array, EnvSpec, Progress, State
from rl_training.experiment.building import UserObjects, build_learner
from rl_training.experiment.learner_ranks.exchanges import RankExchange, SharedMemoryExchange
from rl_training.experiment.learner_ranks.memory import Board, Layout, SharedBlock, fence, read_batch
from rl_training.experiment.resources import keep_freed_memory
from rl_training.experiment.threads import run_threads

BEAT = 0.2
"""Seconds between signs of life."""
SOON = b""
"""A message that an order follows within a millisecond: a rank that is awake reads it at once."""
LOOKS = 1_000
"""How often a rank looks for that order before it sleeps again: about a millisecond."""


@dataclass(frozen=True)
class LearnerCopy:
    """All that another process needs to build the same learner."""

    config: TrainConfig
    spec: EnvSpec
    given: UserObjects
    losses: Mapping[str, Loss]
    dtype: torch.dtype
    uses_random: bool
    """Whether updates may use random generators; see `Shards`."""
    codes: Mapping[str, str | None]
    """Digests of the losses' code: a patched function with the name of the original arrives as the original."""

    def build(self) -> BaseLearner:
        """Return the learner; raise an error if a loss is not the one that was sent."""
        for name, code in loss_codes(self.losses).items():
            if code != self.codes[name]:
                loss = self.losses[name.removesuffix("_gradient")]
                function = loss.gradient if name.endswith("_gradient") else loss.function
                raise UserError(
                    f"its {name} {function_name(function)} is another function there; pass the loss to the algorithm "
                    "instead of patching it or numbers that it reads, or give it another name"
                )
        torch.set_default_dtype(self.dtype)
        learner = build_learner(self.config, self.spec, self.given, self.losses)
        assert isinstance(learner, BaseLearner)
        assert isinstance(learner.shards, Shards), "the config divides minibatches"
        learner.shards.uses_random = self.uses_random
        return learner


def loss_codes(losses: Mapping[str, Loss]) -> dict[str, str | None]:
    """Return a digest of the code of each loss and gradient; None for one that is not a plain function."""
    found = {name: _code_digest(loss.function) for name, loss in losses.items()}
    return found | {f"{name}_gradient": _code_digest(loss.gradient) for name, loss in losses.items()}


def _code_digest(function: Any) -> str | None:
    """Return a hash of a function's code, of its defaults, and of the numbers and texts of its module that it reads."""
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    scope = function.__globals__
    read = {name: scope[name] for name in code.co_names if isinstance(scope.get(name), int | float | str)}
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    plain = [each for each in defaults if each is None or isinstance(each, int | float | str)]
    return hashlib.sha256(repr((_content(code), sorted(read.items()), plain)).encode()).hexdigest()


def _content(part: Any) -> Any:
    if isinstance(part, CodeType):
        names = part.co_names, part.co_varnames, part.co_freevars
        return part.co_code, names, [_content(each) for each in part.co_consts]
    return sorted(map(repr, part)) if isinstance(part, frozenset) else repr(part)


@dataclass(frozen=True)
class Order:
    """One update, as rank 0 takes it."""

    number: int
    sequence: int
    shards: tuple[int, ...]
    """The shards that the rank computes."""
    batch: Any
    progress: Progress
    fixed_learning_rate: float | None
    digest: int
    """Of the learner before the update, see `digest_of`."""
    state: dict[str, State] | None = None
    """The state of the learner, if the rank does not have it."""
    normalizer: State | None = None
    """Statistics of observations, which off-policy sources change between updates."""
    generators: State | None = None
    """The states of the global generators, if an update uses them."""


class Orders(Protocol):
    """Where a rank gets its orders; `receive` returns None after the last."""

    def receive(self) -> Order | None: ...
    def finished(self, order: Order, digest: int) -> None: ...


def serve(learner: BaseLearner, exchange: RankExchange, orders: Orders) -> None:
    """Take updates until there are no more orders."""
    shards = learner.shards
    assert isinstance(shards, Shards), "the config divides minibatches"
    shards.exchange, digest = exchange, digest_of(learner)
    while (order := orders.receive()) is not None:
        take(learner, exchange, order, digest)
        digest = digest_of(learner)  # now, while rank 0 collects, and not when it waits for the next update
        orders.finished(order, digest)


def take(learner: BaseLearner, exchange: RankExchange, order: Order, digest: int) -> None:
    """Take one update as rank 0 does; `digest` is that of the learner."""
    if order.state is not None:
        learner.load_state_dict(order.state)
        digest = digest_of(learner)
    normalizer = getattr(learner.owners.get("model"), "normalizer", None)
    if order.normalizer is not None and normalizer is not None:
        normalizer.load_state_dict(order.normalizer)
    if order.generators is not None:
        set_global_generators(order.generators)
    if digest != order.digest:
        raise RuntimeError("the weights differ from those of the run")
    learner.fixed_learning_rate = order.fixed_learning_rate
    exchange.begin(order.sequence, order.shards)
    learner.update(order.batch, order.progress)


def digest_of(learner: BaseLearner) -> int:
    """Return a number that changes with every trained weight, random generator and counter of a learner."""
    found = 0
    for owner in learner.owners.values():
        if isinstance(owner, FlatOptimizer | TargetNetwork):
            for part in _checksums(owner.flat.detach().cpu().numpy()):
                found = zlib.crc32(part, found)
        elif isinstance(owner, np.random.Generator | Counter):
            known = generator_state(owner) if isinstance(owner, np.random.Generator) else owner.value
            found = zlib.crc32(repr(known).encode(), found)
    return found


def _checksums(numbers: Array) -> tuple[bytes, bytes]:
    """Return sums of the bits of numbers, by column of a table of a prime width: sensitive to values and order."""
    width = 61
    content = numbers.view(np.uint8)
    end = len(content) - len(content) % (8 * width)
    table = content[:end].view(np.uint64).reshape(-1, width)
    return np.add.reduce(table, axis=0).tobytes(), content[end:].tobytes()


@dataclass(frozen=True)
class Letter:
    """An order as it is sent: batch and state are in shared memory."""

    order: Order
    layout: Layout | None
    """Where the batch is; None if it is in the order itself."""
    capacity: int
    state_size: int


class SharedMemoryOrders:
    """Orders from a pipe, with batches and states in shared memory."""

    def __init__(
        self,
        connection: "Connection[Any, Any]",
        batches: SharedBlock,
        states: SharedBlock,
        exchange: SharedMemoryExchange,
        board: Board,
        rank: int,
    ) -> None:
        self._connection, self._batches, self._states = connection, batches, states
        self._exchange, self._board, self._rank = exchange, board, rank

    def receive(self) -> Order | None:
        try:
            while (content := self._connection.recv_bytes()) == SOON:
                any(self._connection.poll() for _ in range(LOOKS))
        except EOFError:
            return None
        letter: Letter = decode(content)
        self._exchange.capacity = letter.capacity
        state = decode(self._states.read(letter.state_size)) if letter.state_size else None
        order = replace(letter.order, state=state)
        return (
            order if letter.layout is None else replace(order, batch=read_batch(letter.layout, self._batches))
        )

    def finished(self, order: Order, digest: int) -> None:
        self._board.digests[self._rank] = digest
        fence()
        self._board.finished[self._rank] = order.number


def main(arguments: list[str]) -> None:
    """Build the learner and take orders: `parent rank ranks size descriptor...`."""
    parent, rank, ranks, size, *descriptors = map(int, arguments)
    connection: Connection[Any, Any] = Connection(descriptors[0])
    counters, rows, batches, states, parcel = map(SharedBlock, descriptors[1:])
    try:
        keep_freed_memory()
        copy: LearnerCopy = decode(parcel.read(size))
        count = copy.config.learner_shards
        board = Board(counters, count, ranks)
        threading.Thread(target=_show_life, args=(board, rank), daemon=True).start()
        with one_thread():
            learner = copy.build()
            connection.send(("ready", learner.update_path))
            exchange = SharedMemoryExchange(rows, board, count, lambda shard, seconds: _parent_lives(parent))
            orders = SharedMemoryOrders(connection, batches, states, exchange, board, rank)
            with run_threads(copy.config, copy.spec, learner, own_code=True):
                serve(learner, exchange, orders)
    except Exception as error:
        with contextlib.suppress(OSError):
            connection.send(("failed", failure_text(error)))


def failure_text(error: Exception) -> str:
    """Return the text of an error for rank 0; the traceback unless it is an error of the user."""
    return str(error) if isinstance(error, UserError) else traceback.format_exc()


def _parent_lives(parent: int) -> bool:
    """End this process if its parent has; otherwise return False: the parent computes all that is missing."""
    if os.getppid() != parent:
        os._exit(1)
    return False


def _show_life(board: Board, rank: int) -> None:
    while True:
        board.alive[rank] += 1
        time.sleep(BEAT)
