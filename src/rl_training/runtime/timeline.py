"""When the samplers collected and what the learner did meanwhile, for the last iterations of a run."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rl_training.runtime.engines.local import LocalCrew
from rl_training.runtime.scheduled_sampler import ScheduledSampler

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Trainer

ITERATIONS = 40
"""Iterations that are remembered; more would not be readable."""
MAX_SPANS = 20_000
"""Most spans of each side that are remembered, however many groups there are and updates an iteration has."""
COLLECT, UPDATE, EVALUATE, CHECKPOINT = "collect", "update", "evaluation", "checkpoint"


class Span(NamedTuple):
    """What took place from `start` to `end`, in seconds by `time.monotonic`."""

    what: str
    start: float
    end: float


class Timeline:
    """Remembers spans of the last iterations by wrapping methods of a trainer, as the profiler does."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.learner: deque[Span] = deque(maxlen=MAX_SPANS)
        self.rollouts: deque[tuple[int, float, float]] = deque(maxlen=MAX_SPANS)
        """Group, start and end of rollouts of groups."""
        self.hosts: Sequence[Sequence[int]] = []
        """The groups of each sampler; empty if this process collects."""
        self._begun: deque[float] = deque(maxlen=ITERATIONS)

    def watch(self, trainer: "Trainer") -> None:
        """Wrap the methods that the trainer calls."""
        sampler = trainer.sampler
        if sampler is not None:
            self._time(sampler, "collect", COLLECT, begins=True)
        self._time(trainer.learner, "update", UPDATE, begins=sampler is None)
        if trainer.evaluate is not None:
            self._time(trainer, "evaluate", EVALUATE)
        self._time(trainer, "save_checkpoint", CHECKPOINT)
        if isinstance(sampler, ScheduledSampler) and not isinstance(sampler.crew, LocalCrew):
            self.hosts, sampler.spans = sampler.crew.groups, self.rollouts

    def _time(self, owner: object, method: str, what: str, *, begins: bool = False) -> None:
        inner = getattr(owner, method)

        def timed(*arguments: Any, **settings: Any) -> Any:
            start = self._clock()
            if begins:
                self._begun.append(start)
            try:
                return inner(*arguments, **settings)
            finally:
                self.learner.append(Span(what, start, self._clock()))

        setattr(owner, method, timed)

    @property
    def iterations(self) -> int:
        """How many iterations begin in the window."""
        first, _ = self.window
        return sum(begun >= first for begun in self._begun)

    @property
    def window(self) -> tuple[float, float]:
        """From the begin of the first remembered iteration to the last update: what follows may take much longer."""
        last = next((span.end for span in reversed(self.learner) if span.what in (COLLECT, UPDATE)), None)
        if last is None:
            return 0.0, 0.0
        return max(self._begun[0], self.learner[0].start), last

    @property
    def seconds(self) -> float:
        """The length of the window."""
        first, last = self.window
        return last - first

    def shown(self) -> list[Span]:
        """Return what the learner's process did in the window."""
        first, last = self.window
        cut = (Span(what, max(start, first), min(end, last)) for what, start, end in self.learner)
        return [span for span in cut if span.end > span.start]

    def rollouts_of(self, host: int) -> list[tuple[int, float, float]]:
        """Return group, start and end of the rollouts of a sampler in the window."""
        groups, (first, last) = set(self.hosts[host]), self.window
        own = (each for each in self.rollouts if each[0] in groups)
        cut = ((group, max(start, first), min(end, last)) for group, start, end in own)
        return [each for each in cut if each[2] > each[1]]

    def share(self, what: str) -> float:
        """Return the share of the window that the learner's process spent on something."""
        return sum(end - start for name, start, end in self.shown() if name == what) / max(self.seconds, 1e-9)

    def waits(self, host: int) -> float:
        """Return the share of the window in which a sampler did not collect."""
        busy = sum(end - start for _, start, end in self.rollouts_of(host))
        return max(1.0 - busy / max(self.seconds, 1e-9), 0.0)

    def report(self) -> dict[str, Any]:
        """Return the share of time that each side waited, and over which iterations."""
        found: dict[str, Any] = {"iterations": self.iterations, "seconds": self.seconds}
        if self.hosts:
            waits = [self.waits(host) for host in range(len(self.hosts))]
            found |= {"learner_waits": self.share(COLLECT), "samplers_wait": waits}
        return found
