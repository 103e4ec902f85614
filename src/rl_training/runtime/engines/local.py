"""Engines without other processes: all environments in this one, or none at all."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from rl_training.core.protocols import Acting, EnvStepper, ExperienceSource, Sampler
from rl_training.core.types import Array, EnvSpec
from rl_training.runtime.crews import Crew, HostLost
from rl_training.runtime.groups import MakeHost, Rollout, Start, Started, Ticket
from rl_training.runtime.sampler import LocalSampler

Layout = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Shape and type of arrays, by name."""


class LocalEngine:
    """Collects in this process, in the environments that `build` returns."""

    total_updates = None

    def __init__(self, build: Callable[[], EnvStepper]) -> None:
        self._build = build
        self._stepper = build()

    @property
    def spec(self) -> EnvSpec:
        return self._stepper.spec

    @property
    def notices(self) -> list[str]:
        return self._stepper.notices

    def make_sampler(self, actor: Acting, source: ExperienceSource[Any]) -> Sampler:
        return LocalSampler(self._stepper, actor.explorer, source)

    def restart(self) -> None:
        self.close()
        self._stepper = self._build()

    def close(self) -> None:
        self._stepper.close()


class OfflineEngine:
    """Collects nothing: for a run that learns from a fixed source, such as a dataset, for `total_updates` updates."""

    def __init__(self, spec: EnvSpec, total_updates: int) -> None:
        if total_updates < 1:
            raise ValueError(f"total_updates is {total_updates}; use 1 or more")
        self.spec, self.total_updates = spec, total_updates
        self.notices: list[str] = []

    def make_sampler(self, actor: Acting, source: ExperienceSource[Any]) -> None:
        """Return None: there is nothing to collect."""

    def restart(self) -> None:
        """There are no environments to replace."""

    def close(self) -> None:
        """There are no environments to close."""


class MakesCrews(Protocol):
    """Hires crews, makes samplers for them, and ends what they share."""

    def hire(self, actor: Acting, source: ExperienceSource[Any]) -> Crew: ...
    def sampler(
        self, crew: Crew, actor: Acting, source: ExperienceSource[Any], *, resumable: bool
    ) -> Sampler: ...
    def close(self) -> None: ...


class GroupsEngine:
    """Collects with groups of environments, on the hosts of a crew."""

    total_updates = None

    def __init__(self, spec: EnvSpec, notices: list[str], resumable: bool, office: MakesCrews) -> None:
        """`spec` and `notices` describe the environments, `resumable` says whether episodes can be restored."""
        self.spec, self.notices, self._resumable, self._office = spec, notices, resumable, office
        self._crew: Crew | None = None

    def make_sampler(self, actor: Acting, source: ExperienceSource[Any]) -> Sampler:
        self.restart()
        self._crew = self._office.hire(actor, source)
        return self._office.sampler(self._crew, actor, source, resumable=self._resumable)

    def restart(self) -> None:
        """End the crew; the next sampler gets a new one."""
        if self._crew is not None:
            self._crew.close()
            self._crew = None

    def close(self) -> None:
        self.restart()
        self._office.close()


class LocalCrew:
    """One host in this process, which collects when a ticket is submitted."""

    def __init__(self, make_host: MakeHost, num_groups: int, layout: Callable[[int], Layout]) -> None:
        self.groups = [list(range(num_groups))]
        self._host = make_host(
            self.groups[0],
            lambda group, slot: {name: np.zeros(*each) for name, each in layout(group).items()},
        )
        self._answers: deque[Rollout | Started | Exception] = deque()
        self._newest = 0
        self._published: dict[int, Array] = {}

    def publish(self, version: int, packed: Array) -> None:
        self._newest = version
        kept = sorted(self._published)[-2:]
        self._published = {number: self._published[number] for number in kept} | {version: packed}

    def begin(self, group: int, start: Start) -> None:
        self._answers.append(self._host.begin(group, start))

    def submit(self, group: int, ticket: Ticket) -> None:
        version = self._newest if ticket.version is None else ticket.version
        self._host.load(version, self._published[version])
        try:
            self._answers.append(self._host.collect(group, ticket))
        except Exception as error:  # raised in its turn: the rollouts before it are whole
            self._answers.append(error)

    def receive(self, timeout: float) -> Rollout | Started | HostLost | None:
        answer = self._answers.popleft() if self._answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def restart(self, host: int) -> None:
        raise AssertionError("this process hosts all groups: it cannot be lost")

    def close(self) -> None:
        self._host.close()
