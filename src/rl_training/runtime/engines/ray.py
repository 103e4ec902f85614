"""A crew of actors on a Ray cluster. Parameters and steps travel through its object store."""

import contextlib
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rl_training.core.blocks import copied_block
from rl_training.core.errors import RunFault, UserError, reason
from rl_training.core.messages import decode, encode, encode_code
from rl_training.core.shares import shares
from rl_training.core.types import Array
from rl_training.runtime.crews import HostLost
from rl_training.runtime.engines import ray_actor
from rl_training.runtime.engines.local import Layout
from rl_training.runtime.engines.ray_site import RaySite
from rl_training.runtime.groups import MakeHost, Rollout, Start, Started, Ticket

HOST_MODULE = "rl_training.runtime.engines.ray_host"
LOOK_EVERY = 0.5
"""Seconds between questions whether an actor makes progress, while its answer is waited for."""
SECONDS_TO_START = 120.0
"""How long the process of an actor may take to start, or its node to have room for it."""
SECONDS_TO_CLOSE = 3.0
"""How long actors may take to finish what they are doing and close their environments at the end of a run."""
VERSIONS_KEPT = 3
"""Parameters that a restarted actor may need: one more than the lag, and those before a resume."""


class RayCrew:
    """Hosts in Ray actors, each with a share of the groups.

    An actor that dies, or that makes no step for `seconds_to_answer`, is reported as lost. Its replacement is another
    actor, so that an answer of the lost one is never read. Actors end with the run's own process, however that ends.
    """

    def __init__(
        self,
        site: RaySite,
        make_host: MakeHost,
        num_groups: int,
        layout: Callable[[int], Layout],
        *,
        seconds_to_answer: float,
        describe: Callable[[], Mapping[str, Any]],
    ) -> None:
        """`layout` is that of the blocks of a group.

        `describe` returns what results depend on, such as versions: a node with others is warned of.
        """
        self._site, self._seconds, self._here = site, seconds_to_answer, describe()
        self._ray = site.open().ray
        self.groups = [list(part) for part in shares(num_groups, site.num_hosts)]
        self._host_of = {group: host for host, groups in enumerate(self.groups) for group in groups}
        layouts = {group: layout(group) for group in range(num_groups)}
        self._parcel = self._ray.put(_parcel((make_host, layouts, describe)))
        self._new_actor = actor_maker(self._ray, ray_actor.HostActor)
        self._published: dict[int, Any] = {}
        self._newest, self._offers, self._warned, self._looked = 0, False, False, 0.0
        self._hosts = [self._started(host) for host in range(site.num_hosts)]

    def _started(self, host: int) -> "HostHandle":
        actor = self._new_actor(self._site.options(host))
        handle = HostHandle(self._ray, actor)
        handle.call(actor.build, HOST_MODULE, self._parcel, self.groups[host])
        return handle

    def publish(self, version: int, packed: Array) -> None:
        """Put parameters into the object store; actors read them with a ticket."""
        kept = sorted(self._published)[1 - VERSIONS_KEPT :]
        self._published = {number: self._published[number] for number in kept}
        self._published[version] = self._ray.put(packed)
        self._newest = version
        if self._offers:
            for handle in self._hosts:
                handle.talk("offer", version, self._published[version])

    def begin(self, group: int, start: Start) -> None:
        handle = self._hosts[self._host_of[group]]
        handle.call(handle.actor.begin, encode((group, start)))

    def submit(self, group: int, ticket: Ticket) -> None:
        self._offers = self._offers or ticket.version is None
        version = self._newest if ticket.version is None else ticket.version
        handle = self._hosts[self._host_of[group]]
        handle.call(handle.actor.collect, encode((group, ticket)), version, self._published[version])

    def receive(self, timeout: float) -> Rollout | Started | HostLost | None:
        """Return the next answer; a lost host is reported at most `LOOK_EVERY` seconds late."""
        deadline = time.monotonic() + timeout
        if time.monotonic() - self._looked > 2 * LOOK_EVERY:  # nobody listened meanwhile
            for handle in self._hosts:
                handle.seen = time.monotonic()
        while True:
            self._looked = time.monotonic()
            hosts = {call: host for host, handle in enumerate(self._hosts) for call in handle.calls}
            if not hosts:
                return None
            left = min(deadline - time.monotonic(), LOOK_EVERY)
            ready, _ = self._ray.wait(list(hosts), num_returns=1, timeout=max(left, 0.0))
            answer = self._answer(hosts[ready[0]], ready[0]) if ready else self._silent_host()
            if answer is not None:
                return answer
            if time.monotonic() >= deadline:
                return None

    def _answer(self, host: int, call: Any) -> Rollout | Started | HostLost | None:
        handle, errors = self._hosts[host], self._ray.exceptions
        handle.calls.remove(call)
        try:
            answer = self._ray.get(call)
        except errors.RayTaskError as error:  # not of the host, which sends its own
            raise RunFault(
                f"sampler {host} on the Ray cluster failed: {_last_line(error)}; engine 'process' shows whether the "
                "cluster is the cause"
            ) from error
        except errors.LocalRayletDiedError as error:
            raise RunFault("the Ray cluster has stopped; resume the run on another one") from error
        except errors.RayError as error:
            return self._given_up(host, ending(error))
        handle.seen, handle.has_started = time.monotonic(), True
        if isinstance(answer, str):
            raise UserError(f"{answer}; install one version of rl_training on all nodes")
        content, block = decode(answer[0]), answer[1]
        if isinstance(content, BaseException):
            raise content
        if isinstance(content, Rollout):
            started, ended = handle.by_our_clock(content.started, content.ended)
            block = copied_block(block)  # arrays of the object store are read-only
            return replace(content, block=block, started=started, ended=ended)
        if isinstance(content, Started):
            return content
        handle.node, handle.process, found = content
        self._compare(handle.node, found)
        return None  # it is built

    def _silent_host(self) -> HostLost | None:
        """Ask all actors that owe an answer whether they make progress; return one that does not."""
        for host, handle in enumerate(self._hosts):
            if not handle.calls:
                continue
            handle.look()
            silence = time.monotonic() - handle.seen
            if handle.has_started and silence > self._seconds:
                return self._given_up(host, f"did not answer for {self._seconds:g} s")
            if not handle.has_started and time.monotonic() - handle.created > SECONDS_TO_START:
                raise RunFault(
                    f"a sampler did not start on the Ray cluster within {SECONDS_TO_START:g} s: {self._site.shortage()}"
                )
        return None

    def _given_up(self, host: int, why: str) -> HostLost:
        handle = self._hosts[host]
        handle.kill()
        return HostLost(host, f"on node '{handle.node}' {why}" if handle.node else why)

    def _compare(self, node: str, there: Mapping[str, Any]) -> None:
        """Warn once of a node whose results may differ in the last bits."""
        if not self._warned:
            self._warned = warn_of_differences(node, self._here, there)

    def restart(self, host: int) -> None:
        self._hosts[host].kill()
        self._hosts[host] = self._started(host)

    def close(self) -> None:
        """Let all actors close their environments, and end them; nothing that matters is lost with them."""
        with contextlib.suppress(Exception):  # of a cluster that has stopped
            closed = [handle.actor.close.remote() for handle in self._hosts]
            self._ray.wait(closed, num_returns=len(closed), timeout=SECONDS_TO_CLOSE)
        for handle in self._hosts:
            handle.kill()
        self._hosts, self._published = [], {}


class HostHandle:
    """An actor, and the calls that it owes an answer to."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self.actor = ray, actor
        self.calls: list[Any] = []
        self.created = self.seen = time.monotonic()
        self.has_started = False
        self.node, self.process = "", 0
        self._question: Any = None
        self._beats = -1
        self._clock_shift = math.inf

    def call(self, method: Any, *arguments: Any) -> None:
        """Call a method; if the actor is dead, `receive` reports it."""
        if not self.calls:
            self.seen = time.monotonic()
        self.calls.append(method.remote(*arguments))

    def by_our_clock(self, started: float, ended: float) -> tuple[float, float]:
        """Return the times of a rollout that was just received by the clock of this machine.

        Nodes count from different moments. No rollout arrives before it has ended, so the smallest difference so far is
        the best estimate; it is too large by the time that the fastest answer took.
        """
        self._clock_shift = min(self._clock_shift, time.monotonic() - ended)
        return started + self._clock_shift, ended + self._clock_shift

    def talk(self, name: str, *arguments: Any) -> Any:
        """Call a method that is answered while others are running."""
        return getattr(self.actor, name).options(concurrency_group="talk").remote(*arguments)

    def look(self) -> None:
        """Note whether the actor has made progress since the last look, and ask again."""
        if self._question is not None:
            if not self._ray.wait([self._question], timeout=0)[0]:
                return
            with contextlib.suppress(self._ray.exceptions.RayError):  # `receive` reports it
                beats = self._ray.get(self._question)
                self.has_started = True
                if beats != self._beats:
                    self._beats, self.seen = beats, time.monotonic()
        self._question = self.talk("alive")

    def kill(self) -> None:
        """End the actor, and forget what it owes."""
        self.calls = []
        with contextlib.suppress(Exception):
            self._ray.kill(self.actor, no_restart=True)


def _parcel(content: Any) -> bytes:
    try:
        return encode_code(content)
    except Exception as error:
        raise UserError(
            f"the environment or the policy cannot be sent to other processes ({type(error).__name__}: {error}); use "
            "engine local"
        ) from error


def actor_maker(ray: Any, kind: type[ray_actor.NodeActor]) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function that starts an actor with some options; none is ever restarted by Ray."""
    ray.cloudpickle.register_pickle_by_value(ray_actor)
    surroundings = ray.put(sys.path), os.getcwd()
    remote = ray.remote(max_restarts=0, max_task_retries=0, concurrency_groups={"talk": 1})(kind)
    return lambda options: remote.options(**options).remote(*surroundings)


def warn_of_differences(node: str, here: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    """Warn of a node whose results may differ in the last bits; return whether it may."""
    differing = [name for name in here if there.get(name) != here[name]]
    if differing:
        found = ", ".join(f"{name} {there.get(name)} instead of {here[name]}" for name in differing)
        warnings.warn(
            f"node '{node}' of the Ray cluster has {found}; a run is the same to the byte only on one kind of "
            "processor with one set of versions",
            stacklevel=3,
        )
    return bool(differing)


def ending(error: Exception) -> str:
    """Return how an actor ended, from Ray's long message."""
    text = str(error).lower()
    if "node" in type(error).__name__.lower() or "node has died" in text or "node is dead" in text:
        return "was lost with its node"
    if type(error).__name__ == "OutOfMemoryError" or "memory pressure" in text:
        return "was killed by Ray, because its node ran out of memory"
    return f"died ({type(error).__name__})"


def _last_line(error: Exception) -> str:
    return reason(error).strip().splitlines()[-1]
