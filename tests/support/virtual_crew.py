"""A crew of any number of hosts on a virtual clock, so that the real scheduler runs for hours in seconds.

Hosts take the time of a throughput model (`Costs`), straggle, die, hang and restart, all from one seed. Nothing sleeps:
the clock moves to the next event. A group is a counter with a chain of hashes over all that its rollouts depended on,
so a rollout that began with a wrong state, ticket or version of the parameters has another content from then on.
"""

import hashlib
import heapq
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import numpy as np

from rl_training.core.blocks import Block
from rl_training.core.shares import shares
from rl_training.core.types import Array, Collected, State
from rl_training.experiment.throughput import Costs
from rl_training.runtime.crews import HostLost
from rl_training.runtime.engines.ray import VERSIONS_KEPT
from rl_training.runtime.groups import Rollout, Start, Started, Ticket

GROUP, COUNT, UPDATES, TIMESTEPS, PARENT, DIGEST = range(6)
"""What a rollout records of itself: its group, how many rollouts the group had finished before, the updates of the
parameters that it acted with, the timesteps of its ticket, and the digests of the group before and after it."""
COLUMNS = 6
HALF_WRITTEN = -1
QUIET_LOOKS = 1_000
"""Calls of `receive` without a rollout after which the scheduler waits forever if no host owes an answer."""


def digest_of(parent: int, group: int, count: int, updates: int, timesteps: int) -> int:
    """Return the digest of a group after a rollout, from all that the rollout depended on."""
    content = struct.pack("<5q", parent, group, count, updates, timesteps)
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What happens to hosts besides their work."""

    noise: float = 0.0
    """Standard deviation of the time of a rollout, as a share of its usual time."""
    straggling: float = 0.0
    """Share of rollouts that take `straggler` times as long."""
    straggler: float = 10.0
    slow_host: float = 1.0
    """How many times as long host 0 takes, always."""
    deaths_per_hour: float = 0.0
    """How often a host is lost."""
    hanging: float = 0.25
    """Share of lost hosts that do not die but stop answering."""
    seconds_to_start: float = 5.0
    seconds_to_notice: float = 0.25
    seconds_to_answer: float = 60.0
    """Silence after which a host that owes an answer is given up."""


QUIET = Trouble()


class Event(NamedTuple):
    """Something that happens to a host; `life` counts its restarts, so that events of a lost one are ignored."""

    seconds: float
    order: int
    kind: str
    host: int
    life: int
    content: Any


class VirtualHost:
    """A host: what it is doing, and what it will do next."""

    def __init__(self) -> None:
        self.life = 0
        self.is_up = self.is_busy = self.is_lost = self.is_silent = False
        self.inbox: deque[tuple[int, Start | Ticket]] = deque()
        self.owed = 0
        self.version: int | None = None
        self.groups: dict[int, tuple[int, int]] = {}
        """Finished rollouts and digest of each group that has begun."""
        self.dies_after_answer = self.dies_while_starting = self.hangs = False


class VirtualCrew:
    """Hosts on a virtual clock: a `Crew` for the real scheduler.

    Answers of a group keep their order, others come in any. Blocks lie in `slots` arrays that a group uses in turn, and
    parameters are forgotten as they are by a real crew, so a scheduler that uses either too late is found out.
    """

    def __init__(
        self,
        costs: Costs,
        num_groups: int,
        num_hosts: int,
        *,
        slots: int,
        trouble: Trouble = QUIET,
        seed: int = 0,
    ) -> None:
        self.groups = [list(part) for part in shares(num_groups, num_hosts)]
        self.costs, self.trouble, self.now = costs, trouble, 0.0
        self.size = costs.num_envs // num_groups
        self._slots = [[_Slot(self.size) for _ in range(slots)] for _ in range(num_groups)]
        self._host_of = {group: host for host, groups in enumerate(self.groups) for group in groups}
        self._random, self._order = Random(seed), 0
        self._events: list[Event] = []
        self._ready: list[int] = []
        """Groups with an answer, and lost hosts as negative numbers; once per answer."""
        self._answers: dict[int, deque[Rollout | Started]] = {group: deque() for group in range(num_groups)}
        self._published: dict[int, int] = {}
        self._newest = 0
        self._quiet_looks = 0
        self.issued = [0] * num_groups
        """Tickets of each group, without those that were issued again."""
        self.losses: dict[str, int] = {}
        """How often hosts were lost, by what they were doing."""
        self._hosts = [VirtualHost() for _ in range(num_hosts)]
        for host in range(num_hosts):
            self._plan("up", host, 0.0)
            self._plan_loss(host)

    # the crew, as the scheduler sees it

    def publish(self, version: int, packed: Array) -> None:
        self.pass_time(self.costs.parameter_bytes * self.costs.copy_per_byte)
        self._run_until(self.now)
        kept = sorted(self._published)[1 - VERSIONS_KEPT :]
        self._published = {number: self._published[number] for number in kept}
        self._published[version] = int(packed[:8].view(np.int64)[0])
        self._newest = version

    def begin(self, group: int, start: Start) -> None:
        self._send(group, start)

    def submit(self, group: int, ticket: Ticket) -> None:
        self.issued[group] = max(self.issued[group], ticket.number + 1)
        self._send(group, ticket)

    def receive(self, timeout: float) -> Rollout | Started | HostLost | None:
        """Return an answer if there is one; otherwise let time pass until there is, at most `timeout` seconds."""
        deadline = self.now + timeout
        self._run_until(self.now)
        while True:
            if (answer := self._pick()) is not None:
                if isinstance(answer, Rollout):
                    self._quiet_looks = 0
                return answer
            if not self._events or self._events[0].seconds > deadline:
                self.now = deadline
                self._look()
                return None
            self.now = max(self.now, self._events[0].seconds)
            self._run_until(self.now)

    def restart(self, host: int) -> None:
        self._run_until(self.now)
        own = self._hosts[host]
        assert own.is_lost, "only a lost host is replaced"
        life, again = own.life + 1, own.dies_while_starting
        own = self._hosts[host] = VirtualHost()
        own.life = life
        seconds = self.trouble.seconds_to_start
        if again:
            self._plan("strike", host, seconds * self._random.random(), "while restarting")
        self._plan("up", host, seconds)
        self._plan_loss(host)

    def close(self) -> None:
        self._events = []

    # time

    def clock(self) -> float:
        """Return the virtual time."""
        return self.now

    def pass_time(self, seconds: float) -> None:
        """Let time pass on the driver, which does not listen meanwhile."""
        self.now += seconds

    def _plan(self, kind: str, host: int, after: float, content: Any = None, at: float | None = None) -> None:
        self._order += 1
        seconds = (self.now if at is None else at) + after
        heapq.heappush(self._events, Event(seconds, self._order, kind, host, self._hosts[host].life, content))

    def _run_until(self, seconds: float) -> None:
        while self._events and self._events[0].seconds <= seconds:
            event = heapq.heappop(self._events)
            if event.life == self._hosts[event.host].life:
                getattr(self, f"_on_{event.kind}")(event)

    def _look(self) -> None:
        self._quiet_looks += 1
        owing = any(own.owed for own in self._hosts)
        assert owing or self._quiet_looks < QUIET_LOOKS, "the scheduler waits for an answer that nobody owes"

    def _pick(self) -> Rollout | Started | HostLost | None:
        """Return an answer that has arrived: of any group, but its oldest one."""
        while self._ready:
            place = self._random.randrange(len(self._ready))
            self._ready[place], self._ready[-1] = self._ready[-1], self._ready[place]
            key = self._ready.pop()
            if key < 0:
                if self._hosts[-1 - key].is_lost:  # otherwise it was reported and replaced already
                    return self._reported(-1 - key)
                continue
            if self._answers[key]:
                self._hosts[self._host_of[key]].owed -= 1
                return self._answers[key].popleft()
        return None

    def _reported(self, host: int) -> HostLost:
        """From now on nothing more comes of this host."""
        own = self._hosts[host]
        own.life += 1
        for group in self.groups[host]:
            self._answers[group].clear()
        return HostLost(host, "did not answer" if own.is_silent else "died")

    # hosts

    def _send(self, group: int, message: Start | Ticket) -> None:
        host = self._host_of[group]
        own = self._hosts[host]
        own.owed += 1
        self._plan("arrive", host, self.costs.message / 2, (group, message))
        if own.is_silent and own.owed == 1:  # it had hung before it was given anything to do
            self._plan("notice", host, self.trouble.seconds_to_answer)

    def _on_arrive(self, event: Event) -> None:
        self._hosts[event.host].inbox.append(event.content)
        self._work(event.host, event.seconds)

    def _on_up(self, event: Event) -> None:
        own = self._hosts[event.host]
        if not own.is_lost:
            own.is_up = True
            self._work(event.host, event.seconds)

    def _work(self, host: int, at: float) -> None:
        own = self._hosts[host]
        if own.is_busy or own.is_lost or not own.is_up or not own.inbox:
            return
        own.is_busy = True
        group, message = own.inbox.popleft()
        if isinstance(message, Start):
            seconds, result = self.costs.snapshot.of(self.size), self._begun(own, group, message)
        else:
            seconds, result = self._collected(own, host, group, message, at)
        self._plan("done", host, seconds, result, at)

    def _begun(self, own: VirtualHost, group: int, start: Start) -> Started:
        own.groups[group] = (0, group) if start.state is None else _unpacked(start.state)
        return Started(group, self._state(own.groups[group]))

    def _collected(
        self, own: VirtualHost, host: int, group: int, ticket: Ticket, at: float
    ) -> tuple[float, Rollout]:
        assert group in own.groups, "a group begins before it collects"
        version = self._newest if ticket.version is None else ticket.version
        assert version in self._published, f"version {version} has been forgotten"
        updates, (count, parent) = self._published[version], own.groups[group]
        timesteps = ticket.progress.timesteps
        digest = digest_of(parent, group, count, updates, timesteps)
        own.groups[group] = count + 1, digest
        seconds = self._seconds(host, load=version != own.version)
        own.version = version
        slot = self._slots[group][ticket.number % len(self._slots[group])]
        slot.rows[:] = HALF_WRITTEN
        slot.coming = (group, count, updates, timesteps, parent, digest)
        return seconds, Rollout(
            group,
            ticket.number,
            version,
            slot.block,
            Collected(self.size * ticket.num_steps, []),
            self._state(own.groups[group]),
            ticket.num_steps,
            at,
            at + seconds,
        )

    def _seconds(self, host: int, *, load: bool) -> float:
        """Return how long a rollout takes."""
        costs, trouble, random = self.costs, self.trouble, self._random
        step = costs.step.of(self.size) + costs.act.of(self.size) + costs.record.of(self.size)
        seconds = step * costs.num_steps + costs.snapshot.of(self.size)
        seconds *= trouble.slow_host if host == 0 else 1.0
        if trouble.noise:
            seconds *= max(random.gauss(1.0, trouble.noise), 0.1)
        if trouble.straggling and random.random() < trouble.straggling:
            seconds *= trouble.straggler
        return seconds + (costs.parameter_bytes * costs.copy_per_byte if load else 0.0)

    def _state(self, own: tuple[int, int]) -> State:
        return {"envs": {"episodes": [None] * self.size}, "chain": np.array(own, np.int64)}

    def _on_done(self, event: Event) -> None:
        own, answer = self._hosts[event.host], event.content
        if own.is_lost:
            return
        if isinstance(answer, Rollout):
            slot = self._slots[answer.group][answer.number % len(self._slots[answer.group])]
            slot.rows[:] = slot.coming
        own.is_busy = False
        self._plan("answer", event.host, self.costs.message / 2, answer, event.seconds)
        if own.dies_after_answer:
            self._lose(event.host, event.seconds, "after an answer")
        else:
            self._work(event.host, event.seconds)

    def _on_answer(self, event: Event) -> None:
        self._answers[event.content.group].append(event.content)
        self._ready.append(event.content.group)

    # losses

    def _plan_loss(self, host: int) -> None:
        if self.trouble.deaths_per_hour:
            after = self._random.expovariate(self.trouble.deaths_per_hour / 3600)
            self._plan("strike", host, after, "")

    def strike(self, host: int, after: float, doing: str = "") -> None:
        """Let a host be lost some seconds from now."""
        self._plan("strike", host, after, doing)

    def _on_strike(self, event: Event) -> None:
        """A host is lost: now, after its next answer, or now and again while it restarts."""
        own = self._hosts[event.host]
        if own.is_lost:
            return
        own.hangs = self._random.random() < self.trouble.hanging
        moment = self._random.choice(("now", "after an answer", "again"))
        if event.content or moment == "now" or not own.is_up:
            usual = "during work" if own.is_busy else "without work" if own.is_up else "while restarting"
            self._lose(event.host, event.seconds, event.content or usual)
        elif moment == "after an answer":
            own.dies_after_answer = True
        else:
            own.dies_while_starting = True
            self._lose(event.host, event.seconds, "during work" if own.is_busy else "without work")

    def _lose(self, host: int, at: float, doing: str) -> None:
        own, trouble = self._hosts[host], self.trouble
        own.is_lost, own.is_silent = True, own.hangs
        name = f"{'hung' if own.hangs else 'died'} {doing}"
        self.losses[name] = self.losses.get(name, 0) + 1
        if not own.hangs:
            self._plan("notice", host, trouble.seconds_to_notice * self._random.random(), None, at)
        elif own.owed:
            self._plan("notice", host, trouble.seconds_to_answer, None, at)

    def _on_notice(self, event: Event) -> None:
        """The driver may learn of it before or after it reads the answers that were sent already."""
        self._ready.append(-1 - event.host)


def _unpacked(state: State) -> tuple[int, int]:
    count, digest = state["chain"].tolist()
    return count, digest


class _Slot:
    """The memory of one block of a group."""

    def __init__(self, size: int) -> None:
        obs = np.zeros((2, size, COLUMNS), np.int64)
        zeros, falses = np.zeros((1, size), np.float32), np.zeros((1, size), np.bool_)
        self.rows = obs[0]
        self.coming: Sequence[int] = ()
        self.block = Block(
            obs=obs,
            final_obs=obs[0, :0],
            action=zeros,
            logprob=zeros,
            value=zeros,
            final_value=zeros,
            last_value=zeros[0],
            extra={},
            signal=zeros,
            terminated=falses,
            ended=falses,
            valid=~falses,
            cut=falses,
        )


def problems(learned: Sequence[Array], num_groups: int, lag: int, timesteps: int) -> Iterator[str]:
    """Yield what is wrong with the rollouts that a run with lag 0 or 1 has learned from.

    `learned` has the recorded rows [groups × size, columns] of every iteration, of `timesteps` timesteps each.
    """
    digests = list(range(num_groups))
    for k, rows in enumerate(learned):
        updates = max(k - lag, 0)
        size = len(rows) // num_groups
        expected = np.empty_like(rows)
        for group in range(num_groups):
            after = digest_of(digests[group], group, k, updates, k * timesteps)
            mine = (group, k, updates, k * timesteps, digests[group], after)
            expected[group * size : (group + 1) * size] = mine
            digests[group] = after
        if not np.array_equal(rows, expected):
            wrong = np.flatnonzero((rows != expected).any(1))[0]
            yield f"rollout {k}, row {wrong}: {rows[wrong].tolist()} instead of {expected[wrong].tolist()}"


def free_problems(
    learned: Sequence[Array], num_groups: int, max_policy_lag: int
) -> Iterator[str | tuple[int, int]]:
    """Yield what is wrong with the rollouts of a run with lag `free`; at the end (dropped rollouts, largest lag)."""
    counts, digests = [0] * num_groups, list(range(num_groups))
    dropped = most = 0
    for k, rows in enumerate(learned):
        size = len(rows) // num_groups
        for group in range(num_groups):
            own = rows[group * size : (group + 1) * size]
            named, count, updates, timesteps, parent, after = own[0].tolist()
            if (own != own[0]).any() or named != group:
                yield f"rollout {k} of group {group} is not in its place"
            if count < counts[group]:
                yield f"rollout {k} of group {group} is number {count}; {counts[group]} is due"
            elif count == counts[group] and parent != digests[group]:
                yield f"rollout {k} of group {group} does not continue the one before it"
            if after != digest_of(parent, group, count, updates, timesteps):
                yield f"rollout {k} of group {group} is not what its ticket and state lead to"
            if not 0 <= k - updates <= max_policy_lag:
                yield f"rollout {k} of group {group} acted with the parameters of update {updates}"
            dropped, most = dropped + count - counts[group], max(most, k - updates)
            counts[group], digests[group] = count + 1, after
    yield dropped, most
