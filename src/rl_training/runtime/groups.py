"""Groups of environments, and hosts that collect with them: in this process, in another one, or on another machine."""

import contextlib
import copy
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from rl_training.core.blocks import Block
from rl_training.core.errors import UserError, reason
from rl_training.core.packing import PackedModule
from rl_training.core.protocols import Recorder
from rl_training.core.seeding import (
    callers_generators_kept,
    global_generators,
    seed_global_generators,
    set_global_generators,
)
from rl_training.core.state import as_arrays, as_tensors
from rl_training.core.types import Array, Collected, Progress, State, WatchedStep
from rl_training.runtime.sampler import LocalSampler
from rl_training.runtime.steps import StepContext, StepWatcher


@dataclass(frozen=True)
class Ticket:
    """All that a rollout depends on, besides the state of its group and the parameters."""

    number: int
    """Rollouts of a group are numbered 0, 1, 2, ..."""
    version: int | None
    """Parameters to act with; None for the newest ones."""
    num_steps: int
    progress: Progress
    watched: bool = False
    """Whether callbacks want to see every step."""
    generators: State | None = None
    """The state of the global generators; None if the group has its own."""


@dataclass(frozen=True)
class Rollout:
    """What a group returns for a ticket."""

    group: int
    number: int
    version: int
    """The parameters that it acted with."""
    block: Block | None
    """The recorded steps; None on the way between processes with shared memory."""
    collected: Collected
    state: State
    """The state of the group after the rollout, as arrays."""
    num_steps: int
    started: float
    ended: float
    """When it was collected, by `time.monotonic`."""
    generators: State | None = None
    """The state of the global generators afterwards, if they came with the ticket."""
    steps: Sequence[StepContext] = ()
    """Every step, if callbacks want to see them."""
    warnings: Sequence["Told"] = ()


@dataclass(frozen=True)
class Start:
    """How a group begins: with new episodes, or from a saved state."""

    state: State | None = None
    seed_stream: tuple[int, ...] = ()
    """Another stream of episodes, for environments that cannot be restored."""
    statistics: list[Any] = field(default_factory=list)
    """Running statistics of wrappers that the environments begin with."""
    generators: State | None = None
    """The state of the global generators; None if the group has its own."""


@dataclass(frozen=True)
class Started:
    """A group is ready: its state, and the environments that could not be restored."""

    group: int
    state: State
    lost: Sequence[int] = ()
    warnings: Sequence["Told"] = ()
    generators: State | None = None
    """The state of the global generators afterwards, if they came with the start."""


class BlockTaker(Recorder, Protocol):
    """A recorder whose steps can be taken as a block."""

    def take(self) -> Block: ...


class Group:
    """Some of the environments of a run, with their explorer, random streams and running episodes.

    Its size is part of the experiment: the last bits of a forward pass depend on the number of rows. Where it is hosted
    is not. Environments may use the global generators of Python, NumPy and torch: a group has a state of its own for
    them, unless the state comes with each ticket.
    """

    def __init__(
        self, index: int, sampler: LocalSampler, recorders: Sequence[BlockTaker], *, global_seed: int | None
    ) -> None:
        """`recorders` are used in turn, so that a block stays as it is until the learner has read it.

        `global_seed` seeds the group's own state of the global generators; None if it has none.
        """
        self.index, self.sampler, self.recorders, self.global_seed = index, sampler, recorders, global_seed
        self._generators: State | None = None

    def begin(self, start: Start) -> Started:
        """Start new episodes, or continue those of a saved state."""
        sampler, lost, state = self.sampler, list[int](), as_tensors(start.state)
        with callers_generators_kept():
            if self.global_seed is not None:
                seed_global_generators(self.global_seed)
            elif start.generators is not None:
                set_global_generators(as_tensors(start.generators))
            if start.seed_stream:
                sampler.change_seed(*start.seed_stream)
            if start.statistics:
                sampler.use_statistics(start.statistics, frozen=False)
            if state is None:
                sampler.start()
            else:
                lost = sampler.load_state_dict(state)
            if self.global_seed is not None:
                saved = None if state is None else state.get("generators")
                self._generators = global_generators() if saved is None else saved
            shared = as_arrays(global_generators()) if start.generators is not None else None
        return Started(self.index, self.state_dict(), lost, generators=shared)

    def collect(self, ticket: Ticket, version: int) -> Rollout:
        """Collect one rollout; the policy has the parameters `version` already."""
        sampler, recorder = self.sampler, self.recorders[ticket.number % len(self.recorders)]
        steps: list[StepContext] = []
        sampler.recorder = recorder
        if ticket.watched:
            watched = sampler.stepper.out.watched = sampler.stepper.out.watched or WatchedStep()
            sampler.recorder = StepWatcher(recorder, watched, lambda step: steps.append(_kept(step)), 0)
        started = time.monotonic()
        with self._own_generators(ticket):
            collected = sampler.collect(ticket.num_steps, ticket.progress)
        return Rollout(
            self.index,
            ticket.number,
            version,
            recorder.take(),
            collected,
            self.state_dict(),
            ticket.num_steps,
            started,
            time.monotonic(),
            generators=self._shared,
            steps=steps,
        )

    @contextlib.contextmanager
    def _own_generators(self, ticket: Ticket) -> Iterator[None]:
        """Use the group's state of the global generators, or the ticket's, and restore those of the caller."""
        before = ticket.generators if self._generators is None else self._generators
        self._shared: State | None = None
        if before is None:
            yield
            return
        with callers_generators_kept():
            set_global_generators(as_tensors(before))
            yield
            after = global_generators()
        if self._generators is None:
            self._shared = as_arrays(after)
        else:
            self._generators = after

    def state_dict(self) -> State:
        """Return the state of the environments, the explorer, the running episodes and the generators, as arrays."""
        own = {} if self._generators is None else {"generators": self._generators}
        found: State = as_arrays(self.sampler.state_dict() | own)
        return found


class Host:
    """Some groups, and one copy of the policy that they act with."""

    def __init__(self, policy: PackedModule, groups: Mapping[int, Group]) -> None:
        self.policy, self.groups = policy, groups
        self.version: int | None = None

    def load(self, version: int, packed: Array) -> None:
        """Use these parameters."""
        if version != self.version:
            self.policy.unpack(packed)
            self.version = version

    def begin(self, group: int, start: Start) -> Started:
        """Let a group begin."""
        with recorded_warnings() as told:
            started = self.groups[group].begin(start)
        return replace(started, warnings=tuple(told))

    def collect(self, group: int, ticket: Ticket) -> Rollout:
        """Collect one rollout with the parameters that were loaded last."""
        assert self.version is not None, "load parameters first"
        with recorded_warnings() as told:
            rollout = self.groups[group].collect(ticket, self.version)
        return replace(rollout, warnings=tuple(told)) if told else rollout

    def close(self) -> None:
        for group in self.groups.values():
            group.sampler.stepper.close()


def _kept(step: StepContext) -> StepContext:
    """Return a step with infos of its own: environments may change theirs before the callbacks see them."""
    try:
        return replace(step, infos=copy.deepcopy(step.infos))
    except Exception as error:
        raise UserError(
            f"callbacks with on_step see the infos of environments, but one cannot be copied ({reason(error)}); remove "
            "it in a wrapper, or use engine 'local' with env_groups 1 and lag 0"
        ) from error


MakeHost = Callable[[Sequence[int], Callable[[int, int], Mapping[str, Array]]], Host]
"""(groups, function of a group and a slot that returns the columns of its block) -> a host."""


class Told(NamedTuple):
    """A warning, for another process to show."""

    text: str
    category: type[Warning]
    """A built-in one: the other process may not know those of packages."""
    filename: str
    line: int

    def show(self) -> None:
        """Warn; a text that was shown before is not shown again."""
        warnings.warn_explicit(self.text, self.category, self.filename, self.line, registry=_SHOWN)


_SHOWN: dict[Any, Any] = {}
"""Where the module `warnings` remembers what it has shown."""


@contextlib.contextmanager
def recorded_warnings() -> Iterator[list[Told]]:
    """Collect warnings, which the run's own process shows."""
    told: list[Told] = []

    def keep(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: Any = None,
    ) -> None:
        known = next(each for each in category.__mro__ if each.__module__ == "builtins")
        told.append(Told(str(message), known, filename, lineno))

    show = warnings.showwarning
    warnings.showwarning = keep
    try:
        yield told
    finally:
        warnings.showwarning = show
