"""The ranks of a run, as rank 0 sees them: started, given orders, and replaced when they are lost."""

import contextlib
import inspect
import socket
import subprocess
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from rl_training.algorithms.learner import BaseLearner
from rl_training.algorithms.losses import Loss, function_name
from rl_training.algorithms.optimizers import FlatOptimizer
from rl_training.algorithms.shards import MAX_PARTS, LocalExchange
from rl_training.config import TrainConfig
from rl_training.core.cpu import usable_cores
from rl_training.core.errors import UserError
from rl_training.core.messages import encode, encode_code
from rl_training.core.processes import new_interpreter, signals_blocked, wait_at_most
from rl_training.core.protocols import Learner
from rl_training.core.tensor_struct import TensorStruct
from rl_training.core.types import EnvSpec, Progress, UpdateResult
from rl_training.experiment.building import UserObjects
from rl_training.experiment.learner_ranks.exchanges import PAUSE, SPINS, SharedMemoryExchange, shards_of
from rl_training.experiment.learner_ranks.memory import Board, SharedBlock, write_batch
from rl_training.experiment.learner_ranks.rank import SOON, LearnerCopy, Letter, loss_codes
from rl_training.experiment.learner_ranks.ray_ranks import RayRankedLearner, learner_site
from rl_training.experiment.learner_ranks.sharded import Losses, OrderBook, ShardedLearner, parcel_of

RANK_MODULE = "rl_training.experiment.learner_ranks.rank"
SILENCE = 5.0
"""Seconds without a sign of life after which a rank counts as stopped."""
LATE = 120.0
"""Seconds that a rank may take longer than rank 0 for one gradient."""
START_WAIT = 0.0
"""Seconds that an update waits for ranks that are starting; until they have, rank 0 computes their shards."""


def num_learners(config: TrainConfig) -> int:
    """Return how many processes compute the shards; on a Ray cluster that exists already, it may be fewer."""
    assert config.engine != "auto", "choose_engine replaces it"
    if config.engine == "local":
        return 1
    wanted = config.num_learners
    if wanted == "auto":
        wanted = config.learner_shards if uses_cluster(config) else usable_cores()
    return min(wanted, config.learner_shards)


def uses_cluster(config: TrainConfig) -> bool:
    """Return whether ranks are on a Ray cluster; one that is started for the run is this machine, with its memory."""
    return config.engine == "ray" and config.ray_address is not None


@contextlib.contextmanager
def sharded_learner(
    config: TrainConfig, spec: EnvSpec, given: UserObjects, learner: Any, updates: Learner[Any]
) -> Iterator[Learner[Any]]:
    """Start the ranks of a run and stop them afterwards; yield what updates with them.

    `updates` is the learner itself, or what borrows cores for it.
    """
    if config.learner_shards == 1:
        yield updates
        return
    losses = given.losses_for(config)
    if num_learners(config) == 1 or _keeps_state(losses):
        yield ShardedLearner(learner, updates)
        return
    copy = LearnerCopy(
        config,
        spec,
        replace(given, factory=None),
        losses,
        torch.get_default_dtype(),
        uses_random=learner.shards.uses_random,
        codes=loss_codes(losses),
    )
    with contextlib.ExitStack() as open_things:
        if not uses_cluster(config):
            ranked: Any = RankedLearner(learner, updates, copy, num_learners(config))
        elif (site := learner_site(config)) is not None:
            open_things.enter_context(contextlib.closing(site))
            ranked = RayRankedLearner(learner, updates, copy, site)
        else:
            yield ShardedLearner(learner, updates)
            return
        yield open_things.enter_context(contextlib.closing(ranked))


def stateful_loss(losses: Mapping[str, Loss]) -> str | None:
    """Return the name of a loss that may remember earlier minibatches, because it is not a plain function."""
    return next((name for name, loss in losses.items() if not inspect.isfunction(loss.function)), None)


def _keeps_state(losses: Mapping[str, Loss]) -> bool:
    """Return whether a loss may keep state: then one process must compute all shards, in order."""
    if (name := stateful_loss(losses)) is None:
        return False
    warnings.warn(
        f"{name} {function_name(losses[name].function)} is not a plain function and may keep state, so this process "
        "computes all shards",
        stacklevel=4,
    )
    return True


class RankedLearner(ShardedLearner):
    """A learner whose shards are computed by several processes."""

    losses: Losses

    def __init__(self, learner: BaseLearner, updates: Learner[Any], copy: LearnerCopy, ranks: int) -> None:
        super().__init__(learner, updates)
        parcel = parcel_of(copy)
        self.losses = Losses(copy.config.max_sampler_restarts)
        self.ranks: dict[int, Rank | None] = dict.fromkeys(range(1, ranks))
        self.blocks = dict[str, SharedBlock]()
        self._hosts = dict[int, Rank]()
        """The rank that computes a shard of the present update."""
        self.book = OrderBook(learner, self.shards)
        self.helped = 0
        """How many updates were taken with other ranks."""
        try:
            for name in ("counters", "rows", "batches", "states", "parcel"):
                self.blocks[name] = SharedBlock()
            self.board = Board(self.blocks["counters"], self.shards.count, ranks)
            self._size = self.blocks["parcel"].write(parcel)
            self.exchange = SharedMemoryExchange(
                self.blocks["rows"], self.board, self.shards.count, self._absent
            )
            for number in self.ranks:
                self.ranks[number] = self._start(number)
            self.shards.exchange = self.exchange
        except OSError as error:
            self.close()
            raise UserError(
                f"learner processes cannot be started: {error.strerror}; use fewer num_learners, engine local, or a "
                "higher limit (ulimit -n, ulimit -u)"
            ) from error

    def update(self, batch: Any, progress: Progress) -> UpdateResult:
        """Take one update with all ranks that are ready; this process computes the shards of the others."""
        ranks = self._ready_ranks()
        self._order(ranks, batch, progress)
        result = super().update(batch, progress)
        self.helped += bool(ranks)
        return result

    def close(self) -> None:
        """End all ranks."""
        self.shards.exchange = LocalExchange(self.shards.count)
        for rank in filter(None, self.ranks.values()):
            rank.end()
        self.ranks = dict.fromkeys(self.ranks)
        for block in self.blocks.values():
            block.close()

    def _start(self, number: int) -> "Rank":
        return Rank(
            number, len(self.ranks) + 1, self._size, [block.descriptor for block in self.blocks.values()]
        )

    def _ready_ranks(self) -> list["Rank"]:
        """Wait for the previous update of every rank, replace those that were lost, and return those that are ready."""
        deadline = time.monotonic() + START_WAIT
        for number, rank in self.ranks.items():
            if rank is None:
                self._replace(number)
            else:
                self._wait_for_update(rank)
        for rank in list(filter(None, self.ranks.values())):
            while not rank.ready and rank.problem(self.board, 0.0) is None and time.monotonic() < deadline:
                time.sleep(0.01)
            if rank.ready and rank.update_path != self.learner.update_path:
                rank.failure = (
                    f"its update path is '{rank.update_path}' instead of '{self.learner.update_path}'"
                )
            self._is_lost(rank, 0.0)
        return [rank for rank in self.ranks.values() if rank is not None and rank.ready]

    def _replace(self, number: int) -> None:
        """Start a lost rank again, unless it was lost too often."""
        if self.losses.gives_up(number):
            return
        self.losses.replace()
        try:
            self.ranks[number] = self._start(number)
        except OSError:  # too many processes; the next update tries again
            self.losses.failed(number)

    def _wait_for_update(self, rank: "Rank") -> None:
        """Wait until a rank has taken its last update, or is lost: until then it may read the batch."""
        began, looks = time.monotonic(), 0
        while self.board.finished[rank.number] < rank.last_order:
            looks += 1
            if looks > SPINS:
                time.sleep(PAUSE)
                if self._is_lost(rank, time.monotonic() - began):
                    return

    def _order(self, ranks: Sequence["Rank"], batch: Any, progress: Progress) -> None:
        """Divide the shards among the ranks, and send each of them the update."""
        count, exchange = self.shards.count, self.exchange
        flats = [owner.flat for owner in self.learner.owners.values() if isinstance(owner, FlatOptimizer)]
        width = max(map(len, flats)) + MAX_PARTS + len(batch)
        capacity = exchange.reserve(width, flats[0].element_size())
        own, self._hosts = shards_of(0, len(ranks) + 1, count), {}
        exchange.begin(exchange.sequence, own)
        if not ranks:
            return
        for rank in ranks:
            rank.wake()
        is_struct = isinstance(batch, TensorStruct)
        order = self.book.write(exchange.sequence, None if is_struct else batch, progress)
        layout = write_batch(batch, self.blocks["batches"]) if is_struct else None
        size = 0
        for place, rank in enumerate(ranks, start=1):
            own = shards_of(place, len(ranks) + 1, count)
            self._hosts |= dict.fromkeys(own, rank)
            knows_state = rank.last_order > 0 and self.board.digests[rank.number] == order.digest
            if not knows_state and not size:
                size = self.blocks["states"].write(self.book.encoded_state())
            letter = Letter(replace(order, shards=tuple(own)), layout, capacity, 0 if knows_state else size)
            rank.send(letter)

    def _absent(self, shard: int, seconds: float) -> bool:
        """Return whether the rank of a shard is lost, for rank 0 to compute the shard itself."""
        rank = self._hosts.get(shard)
        return rank is None or self._is_lost(rank, seconds)

    def _is_lost(self, rank: "Rank", seconds: float) -> bool:
        if rank.has_finished(self.board):
            self.losses.took_part(rank.number)
        reason = rank.problem(self.board, seconds)
        if reason is None:
            return False
        rank.end()  # before this process writes in its place
        self.ranks[rank.number] = None
        self._hosts = {shard: host for shard, host in self._hosts.items() if host is not rank}
        self.losses.lost(rank.number, f"learner process {rank.number} {reason}")
        return True


class Rank:
    """Another process, with a pipe for orders."""

    def __init__(self, number: int, ranks: int, size: int, descriptors: Sequence[int]) -> None:
        self.number = number
        ours, theirs = socket.socketpair()
        with ours, theirs:
            inherited = (theirs.fileno(), *descriptors)
            with signals_blocked():
                self.process = subprocess.Popen(
                    new_interpreter(RANK_MODULE, number, ranks, size, *inherited),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=inherited,
                )
            wait_at_most(SILENCE, ours.fileno())
            self._connection: Connection[Any, Any] = Connection(ours.detach())
        self.ready, self.last_order = False, 0
        self.update_path = ""
        self.failure: str | None = None
        self._life, self._seen = -1, time.monotonic()
        self._looked = self._seen

    def wake(self) -> None:
        """Tell the process that an order will follow at once."""
        self._send(SOON)

    def send(self, letter: Letter) -> None:
        """Send an order."""
        self.last_order = letter.order.number
        # cloudpickle is slower, and only a batch of the user's own may need it
        self._send(encode_code(letter) if letter.layout is None else encode(letter))

    def _send(self, content: bytes) -> None:
        try:
            self._connection.send_bytes(content)
        except BlockingIOError:
            self.failure = f"stopped: it read no order for {SILENCE:g} s"
        except OSError:
            pass  # it has died; rank 0 will notice

    def has_finished(self, board: Board) -> bool:
        """Return whether it has taken its last update."""
        return self.last_order > 0 and board.finished[self.number] == self.last_order

    def problem(self, board: Board, seconds: float) -> str | None:
        """Return why the process is lost, None if it is not; it was waited for some seconds."""
        self._listen()
        if self.failure is not None:
            return self.failure
        code = self.process.poll()
        if code is not None:
            self._listen()
            return self.failure or (
                f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            )
        life, now = board.alive[self.number], time.monotonic()
        if life != self._life or now - self._looked > 1.0:  # perhaps this process itself was stopped
            self._life, self._seen = life, now
        self._looked = now
        if self.ready and now - self._seen > SILENCE:
            return f"stopped: it gave no sign of life for {SILENCE:g} s"
        return f"took longer than {LATE:g} s for its part of an update" if seconds > LATE else None

    def end(self) -> None:
        """Kill the process, and wait until it has ended."""
        self.process.kill()
        self.process.wait()
        self._connection.close()

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while self._connection.poll():
                kind, text = self._connection.recv()
                if kind == "ready":
                    self.ready, self.update_path, self._seen = True, text, time.monotonic()
                else:
                    self.failure = f"failed ({text.strip().splitlines()[-1]})"
