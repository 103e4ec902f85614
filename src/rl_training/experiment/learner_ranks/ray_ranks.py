"""The ranks of a run on a Ray cluster, as rank 0 sees them: actors that live and die together."""

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rl_training.algorithms.learner import BaseLearner
from rl_training.algorithms.shards import LocalExchange
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError, reason
from rl_training.core.messages import decode, encode, encode_code
from rl_training.core.protocols import Learner
from rl_training.core.tensor_struct import TensorStruct
from rl_training.core.types import Progress, UpdateResult
from rl_training.experiment.learner_ranks.gloo import LATE, SECONDS_TO_MEET, GlooExchange, Meeting
from rl_training.experiment.learner_ranks.memory import batch_parts
from rl_training.experiment.learner_ranks.rank import LearnerCopy, Order
from rl_training.experiment.learner_ranks.ray_rank import Built, Failed, RayLetter
from rl_training.experiment.learner_ranks.sharded import Losses, OrderBook, ShardedLearner, parcel_of
from rl_training.experiment.logs.metadata import surroundings
from rl_training.runtime.engines.ray import (
    SECONDS_TO_START,
    HostHandle,
    actor_maker,
    ending,
    warn_of_differences,
)
from rl_training.runtime.engines.ray_actor import LearnerActor
from rl_training.runtime.engines.ray_site import RaySite

RANK_MODULE = "rl_training.experiment.learner_ranks.ray_rank"
SILENCE = 10.0
"""Seconds without an answer after which an actor that is waited for counts as stopped."""
START_WAIT = 0.0
"""Seconds that an update waits for ranks that are starting; until they have, rank 0 computes their shards."""
SECONDS_TO_BLAME = 2.0
"""How long Ray may take to report which actor has died, after a connection was lost."""
LOOK_EVERY = 0.05
"""Seconds between questions to actors."""
SECONDS_BETWEEN_ARRIVALS = 0.002
ALL = 1
"""Under this number the losses of all ranks are counted, as they are lost together."""


def learner_site(config: TrainConfig) -> RaySite | None:
    """Return room for the ranks of a run on a Ray cluster, besides rank 0, which is the process of the run.

    None if `num_learners: auto` finds none. A number that the cluster has no room for is an error.
    """
    try:
        site = RaySite(
            config.ray_address,
            None if config.num_learners == "auto" else config.num_learners - 1,
            config.learner_shards - 1,
            resources=config.ray_resources,
            packed=config.ray_placement == "pack",
            setting="num_learners",
            besides=1,
        )
    except UserError as error:  # others were faster, or a resource other than CPUs is missing
        if config.num_learners != "auto":
            raise
        warnings.warn(f"{error}; this process computes all shards: the results are the same", stacklevel=2)
        return None
    return site if site.num_hosts else None


def refuse_missing_room(config: TrainConfig) -> None:
    """Raise an error if the cluster has no room for the ranks of a run."""
    if isinstance(config.num_learners, int) and config.num_learners > 1 and config.ray_address is not None:
        site = learner_site(config)
        assert site is not None
        site.close()


class RayRankedLearner(ShardedLearner):
    """A learner whose shards are computed by this process and by actors.

    One that is lost ends all of them, because they wait for each other; this process goes on alone until new ones have
    been started. It never waits longer than `SILENCE` seconds for one that does not answer, and never longer than
    `LATE` for one that does.
    """

    losses: Losses

    def __init__(self, learner: BaseLearner, updates: Learner[Any], copy: LearnerCopy, site: RaySite) -> None:
        super().__init__(learner, updates)
        self._site, self._ray = site, site.open().ray
        self._parcel = self._ray.put(parcel_of(copy))
        self._new_actor = actor_maker(self._ray, LearnerActor)
        self._here, self._warned = surroundings(copy.config), False
        self.losses = Losses(copy.config.max_sampler_restarts)
        self.book = OrderBook(learner, self.shards)
        self._alone = LocalExchange(self.shards.count)
        self.helped = 0
        """How many updates were taken with other ranks."""
        self.group: RankGroup | None = self._started()

    def update(self, batch: Any, progress: Progress) -> UpdateResult:
        """Take one update with the other ranks if they are ready; otherwise this process computes all shards."""
        group = self._ready_group()
        self.shards.exchange = self._alone
        if group is None:
            return super().update(batch, progress)
        order = self.book.write(0, batch, progress)
        # the last bits of another processor's weights may differ: it gets the state every time
        changed = self._warned or self.book.has_changed(order)
        if not group.order(order, self.book.encoded_state, changed=changed):
            self._lose(group)
            return super().update(batch, progress)
        self.shards.exchange = group.exchange
        result = super().update(batch, progress)
        self.book.taken()
        if group.exchange.failure is None:
            self.helped += 1
            self.losses.took_part(ALL)
        else:
            self._lose(group)
        return result

    def close(self) -> None:
        """End all ranks."""
        self.shards.exchange = self._alone
        if self.group is not None:
            self.group.end()
            self.group = None

    def _started(self) -> "RankGroup":
        handles = []
        for host in range(self._site.num_hosts):
            actor = self._new_actor(self._site.options(host))
            handles.append(HostHandle(self._ray, actor))
            handles[-1].call(actor.build, RANK_MODULE, self._parcel)
        return RankGroup(self._ray, handles, self.shards.count, self._accepted)

    def _accepted(self, built: Built) -> str | None:
        """Return why a rank cannot take part; warn once of one whose results may differ in the last bits."""
        if not self._warned:
            self._warned = warn_of_differences(built.node, self._here, built.surroundings)
        if built.update_path != self.learner.update_path:
            return f"has update path '{built.update_path}' instead of '{self.learner.update_path}'"
        return None

    def _ready_group(self) -> "RankGroup | None":
        """Start ranks again that were lost, and return them when they are ready."""
        if self.group is None:
            if self.losses.gives_up(ALL):
                return None
            self.losses.replace()
            self.group = self._started()
        group, deadline = self.group, time.monotonic() + START_WAIT
        while not (ready := group.advance()) and group.failure is None and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY)
        if group.failure is not None:
            self._lose(group)
            return None
        return group if ready else None

    def _lose(self, group: "RankGroup") -> None:
        what = group.blame()
        group.end()
        self.group = None
        self.shards.exchange = self._alone
        self.losses.lost(ALL, what)


class RankGroup:
    """Ranks in actors. They build their learners, meet, and then take orders until the first of them is lost."""

    def __init__(
        self, ray: Any, handles: list[HostHandle], shards: int, accepted: Callable[[Built], str | None]
    ) -> None:
        """`accepted` returns why a rank cannot take part, None if it can."""
        self._ray, self.handles, self._shards, self._accepted = ray, handles, shards, accepted
        self.failure: tuple[HostHandle | None, str] | None = None
        """The rank that was lost, None if it is not known, and why."""
        self._built, self._has_state = 0, False
        self._began, self._looked = time.monotonic(), 0.0
        self._exchange: GlooExchange | None = None

    @property
    def exchange(self) -> GlooExchange:
        """That of rank 0, when the ranks have met."""
        assert self._exchange is not None
        return self._exchange

    def advance(self) -> bool:
        """Note what the ranks have answered, and let them meet when all are built; return whether they are ready."""
        self._listen()
        if self.failure is None and self._exchange is None:
            if self._built == len(self.handles):
                self._meet()
            elif time.monotonic() - self._began > SECONDS_TO_START:
                late = next(handle for handle in self.handles if handle.calls)
                self.failure = late, f"did not start within {SECONDS_TO_START:g} s"
        return self.failure is None and self._exchange is not None

    def _meet(self) -> None:
        """Form a group of gloo. The others are running, so this takes milliseconds unless one is lost right now."""
        size, deadline = len(self.handles) + 1, time.monotonic() + SECONDS_TO_MEET
        meeting = Meeting(self._ray.util.get_node_ip_address())
        for rank, handle in enumerate(self.handles, start=1):
            handle.call(handle.actor.join, encode(((meeting.address, meeting.port), rank, size)))
        while not meeting.has_all(size):
            self._listen()
            if self.failure is None and time.monotonic() > deadline:
                late = next((handle for handle in self.handles if handle.calls), None)
                self.failure = late, f"did not meet the others within {SECONDS_TO_MEET:g} s"
            if self.failure is not None:
                return
            time.sleep(SECONDS_BETWEEN_ARRIVALS)
        try:
            self._exchange = GlooExchange(self._shards, meeting.join(size), self._problem)
        except RuntimeError as error:
            self.failure = None, f"did not meet the others ({reason(error).splitlines()[0]})"

    def order(self, order: Order, encoded_state: Callable[[], bytes], *, changed: bool) -> bool:
        """Send an order to all ranks, with the learner's state if it has changed or they have none.

        Return whether the cluster could take it.
        """
        found = list(batch_parts(order.batch)) if isinstance(order.batch, TensorStruct) else []
        kind = type(order.batch) if isinstance(order.batch, TensorStruct) else None
        own = replace(order, batch=None) if kind is not None else order
        letter = encode_code(RayLetter(own, kind, tuple(part for part, _ in found)))
        try:
            arrays = self._ray.put([array for _, array in found])
            state = self._ray.put(encoded_state()) if changed or not self._has_state else None
            for handle in self.handles:
                handle.call(handle.actor.update, letter, arrays, state)
        except self._ray.exceptions.RayError as error:  # the object store is full, or the cluster has stopped
            self.failure = None, f"cannot be sent an order ({ending(error)})"
            return False
        self._has_state = True
        return True

    def _listen(self) -> None:
        """Read the answers that have arrived."""
        calls = {call: handle for handle in self.handles for call in handle.calls}
        if not calls or self.failure is not None:
            return
        for call in self._ray.wait(list(calls), num_returns=len(calls), timeout=0)[0]:
            handle = calls[call]
            handle.calls.remove(call)
            try:
                answer = self._ray.get(call)
            except self._ray.exceptions.RayTaskError as error:
                self.failure = handle, f"failed ({reason(error).strip().splitlines()[-1]})"
            except self._ray.exceptions.RayError as error:
                self.failure = handle, ending(error)
            else:
                self._note(handle, answer if isinstance(answer, str) else decode(answer))

    def _note(self, handle: HostHandle, answer: Any) -> None:
        if isinstance(answer, str):
            self.failure = handle, f"failed ({answer}; install one version of rl_training on all nodes)"
        elif isinstance(answer, Failed):
            self.failure = handle, f"failed ({answer.text.strip().splitlines()[-1]})"
        elif isinstance(answer, Built):
            handle.node, handle.process, handle.has_started = answer.node, answer.process, True
            self._built += 1
            if (problem := self._accepted(answer)) is not None:
                self.failure = handle, problem

    def _problem(self, seconds: float) -> str | None:
        """Return why the ranks should not be waited for any longer; rank 0 has waited for some seconds."""
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY:
            return None
        self._looked = now
        self._listen()
        for handle in self.handles:
            handle.look()
            if self.failure is None and min(now - handle.seen, seconds) > SILENCE:
                self.failure = handle, f"did not answer for {SILENCE:g} s"
        if self.failure is None and seconds > LATE:
            self.failure = None, f"took longer than {LATE:g} s for its part of an update"
        return None if self.failure is None else self.failure[1]

    def blame(self) -> str:
        """Return what was lost, and why."""
        deadline = time.monotonic() + SECONDS_TO_BLAME
        while self.failure is None and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY)
            self._listen()
        handle, why = self.failure or (None, self.exchange.failure)
        if handle is None:
            nodes = ", ".join(sorted({f"'{each.node}'" for each in self.handles if each.node}))
            return f"a learner process on {nodes or 'the Ray cluster'} {why}"
        where = f" on node '{handle.node}'" if handle.node else ""
        return f"learner process {self.handles.index(handle) + 1}{where} {why}"

    def end(self) -> None:
        """End all actors, and leave the group."""
        for handle in self.handles:
            handle.kill()
        if self._exchange is not None:
            self._exchange.leave()
