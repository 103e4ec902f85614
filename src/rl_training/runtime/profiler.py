"""Measures where the time of a run goes, by wrapping methods; without a profiler there is no overhead."""

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

from rl_training.core.timing import heard_by
from rl_training.core.types import Progress
from rl_training.runtime.callbacks import Callback, TrainingContext
from rl_training.runtime.sampler import LocalSampler

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Trainer

Method: TypeAlias = Callable[..., Any]
SECTIONS = ("env", "act", "store", "sample", "update", "log", "evaluate", "checkpoint")
UPDATE = "update"


class Profiler(Callback):
    """Counts seconds and calls by section; every second is in one section, or in `other`.

    Time in a nested section is not counted in the outer one. The parts of an update that a learner reports by `lap` are
    listed as `update/<name>`, as parts of `update`. Profiling does not change the result of a run.
    """

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(SECTIONS, 0.0)
        self._calls = dict.fromkeys(SECTIONS, 0)
        self._laps: dict[str, float] = {}
        self._open: list[str] = []
        self._since = self._lapped = self._started = time.perf_counter()
        self._ended: float | None = None
        self._watches = False
        self._first_step = 0
        self._timesteps: int | None = None

    def watch(self, trainer: "Trainer") -> None:
        """Wrap the methods that the trainer calls; time counts from the first trainer, as a fault may replace it."""
        if not self._watches:
            self._started, self._watches = time.perf_counter(), True
        sampler, source = trainer.sampler, trainer.source
        if isinstance(sampler, LocalSampler):
            self.time_calls(sampler.stepper, "step", "env")
            self.time_calls(sampler.explorer, "act", "act")
            self.time_calls(sampler.explorer, "after_step", "act", counted=False)
            self.time_calls(sampler.explorer, "end_collect", "act", counted=False)
        elif sampler is not None:  # it runs elsewhere
            self.time_calls(sampler, "collect", "env")
        if sampler is not None:
            self.time_calls(source, "record_action", "store")
            self.time_calls(source, "record_outcome", "store", counted=False)
            self.time_calls(source, "end_collect", "store", counted=False)
        self.time_calls(source, "feedback", "sample", counted=False)
        _replace(source, "batches", self._timed_batches)
        _replace(trainer.learner, "update", self._heard)
        self.time_calls(trainer.learner, "update", UPDATE)
        # the logger outlives a trainer that is replaced after a fault, so it must not be wrapped itself
        logger: Any = SimpleNamespace(log=trainer.logger.log)
        self.time_calls(logger, "log", "log")
        trainer.logger = logger
        if trainer.evaluate is not None:
            self.time_calls(trainer, "evaluate", "evaluate")
        self.time_calls(trainer, "save_checkpoint", "checkpoint")

    def time_calls(self, owner: object, method: str, section: str, *, counted: bool = True) -> None:
        """Count the time of a method of this object in a section."""
        _replace(owner, method, lambda inner: self._timed(inner, section, counted))

    def _timed(self, inner: Method, section: str, counted: bool) -> Method:
        def timed(*arguments: Any, **settings: Any) -> Any:
            self._enter(section)
            try:
                return inner(*arguments, **settings)
            finally:
                self._leave()
                self._calls[section] += counted

        return timed

    def on_start(self, context: TrainingContext) -> None:
        self._first_step = context.start.clock

    def on_end(self, progress: Progress) -> None:
        self._ended, self._timesteps = time.perf_counter(), progress.clock - self._first_step

    def report(self) -> dict[str, Any]:
        """Return the total seconds, the steps, and seconds and calls by section."""
        total = (time.perf_counter() if self._ended is None else self._ended) - self._started
        sections: dict[str, dict[str, float]] = {}
        for name in SECTIONS:
            sections[name] = {"seconds": self._seconds[name], "calls": self._calls[name]}
            if name == UPDATE:
                sections |= {f"{UPDATE}/{part}": {"seconds": found} for part, found in self._laps.items()}
        sections["other"] = {"seconds": max(0.0, total - sum(self._seconds.values()))}
        return {"seconds": total, "timesteps": self._timesteps, "sections": sections}

    def text(self) -> str:
        """Return a table of the sections, the longest first."""
        found = self.report()
        total, sections = found["seconds"], found["sections"]

        def line(label: str, entry: dict[str, float]) -> str:
            calls = entry.get("calls")
            told = "" if calls is None else f"{calls:>12,} call{'s' if calls != 1 else ''}"
            return f"{label:<14}{entry['seconds'] / max(total, 1e-9):>7.1%}{entry['seconds']:>10.2f} s{told}"

        lines = [f"Where the time went ({total:.1f} s):"]
        whole = [name for name in sections if "/" not in name and sections[name]["seconds"] > 0.0]
        for name in sorted(whole, key=lambda each: -sections[each]["seconds"]):
            lines.append(line(f"  {name}", sections[name]))
            inside = [part for part in sections if part.startswith(f"{name}/")]
            lines += [line(f"    {part.partition('/')[2]}", sections[part]) for part in inside]
        return "\n".join(lines)

    def _timed_batches(self, inner: Method) -> Method:
        def batches(*arguments: Any) -> Iterator[Any]:
            drawn, end = iter(inner(*arguments)), object()
            draw = self._timed(lambda: next(drawn, end), "sample", False)
            while (batch := draw()) is not end:
                self._calls["sample"] += 1
                yield batch

        return batches

    def _heard(self, inner: Method) -> Method:
        def update(*arguments: Any) -> Any:
            self._lapped = time.perf_counter()
            with heard_by(self._lap):
                return inner(*arguments)

        return update

    def _lap(self, name: str) -> None:
        now = time.perf_counter()
        self._laps[name] = self._laps.get(name, 0.0) + now - self._lapped
        self._lapped = now

    def _enter(self, section: str) -> None:
        now = time.perf_counter()
        if self._open:
            self._seconds[self._open[-1]] += now - self._since
        self._open.append(section)
        self._since = now

    def _leave(self) -> None:
        now = time.perf_counter()
        self._seconds[self._open.pop()] += now - self._since
        self._since = now


def _replace(owner: object, method: str, wrapper: Callable[[Method], Method]) -> None:
    """Wrap a method of one object."""
    setattr(owner, method, wrapper(getattr(owner, method)))
