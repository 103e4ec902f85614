"""Crews: the hosts of a run, wherever they are. An engine is a crew; scheduling is the same for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rl_training.core.types import Array
from rl_training.runtime.groups import Rollout, Start, Started, Ticket


@dataclass(frozen=True)
class HostLost:
    """A host died or stopped answering."""

    host: int
    reason: str


class Crew(Protocol):
    """Hosts that collect rollouts. `groups` lists the groups of each host.

    `publish` makes parameters available under a version. `begin` lets a group begin, which answers with `Started`.
    `submit` sends a ticket to a group, which answers with `Rollout`, in the order of its tickets. `receive` returns the
    next answer of any host, a lost host, or None after `timeout` seconds; it raises the errors of hosts. `restart`
    replaces a lost host, whose groups then begin again and receive their tickets again.
    """

    @property
    def groups(self) -> Sequence[Sequence[int]]: ...
    def publish(self, version: int, packed: Array) -> None: ...
    def begin(self, group: int, start: Start) -> None: ...
    def submit(self, group: int, ticket: Ticket) -> None: ...
    def receive(self, timeout: float) -> Rollout | Started | HostLost | None: ...
    def restart(self, host: int) -> None: ...
    def close(self) -> None: ...
