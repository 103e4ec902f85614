"""CPU threads of a run: which library gets them, and idle cores that `num_threads: auto` borrows for updates.

torch and NumPy's BLAS each have a pool of threads that wait by spinning. With two threads each on two cores they take
the cores from each other: products of 256 x 256 in turn took 13 times as long as with one thread. So only one of them
gets threads: the one that computes most of an update.
"""

import contextlib
import copy
import os
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import ThreadpoolController

from rl_training.algorithms.components import StatefulLearner, image_reading
from rl_training.config import TrainConfig
from rl_training.core.cpu import usable_cores
from rl_training.core.seeding import global_generators, set_global_generators
from rl_training.core.spaces.layout import num_features
from rl_training.core.state import split_state
from rl_training.core.types import EnvSpec, Progress, State, UpdateResult
from rl_training.experiment.agent_copies import copied_state
from rl_training.experiment.building import choose_device
from rl_training.models.images import image_leaves

WORTHWHILE = 2**23
"""Multiply-adds of the largest layer of a gradient step from which another thread can help: half of 256 x 256 x 256."""
WORK_PER_VALUE = 128
"""Multiply-adds of a CNN's largest convolution per value of an image: 116 for Nature's, 144 for the others here."""
MAX_AUTO_THREADS = 4
"""Most threads that `num_threads: auto` uses; more have not been measured."""
CPU_TIMES = Path("/proc/stat")
IDLE_COLUMN = 4
"""Column of a line of `/proc/stat` with the time that a core was idle, in ticks."""

SetThreads = Callable[[int], None]


def thread_setter(config: TrainConfig, spec: EnvSpec, update_path: str) -> SetThreads:
    """Return the function that sets the threads of the library which computes most of an update.

    That is NumPy's BLAS if the hand-written passes run on arrays, and torch for images, encoders and autograd.
    """
    if not _by_numpy(config, spec, update_path):
        return torch.set_num_threads
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers

    def set_threads(number: int) -> None:
        for library in libraries:
            library.set_num_threads(number)

    return set_threads


def _by_numpy(config: TrainConfig, spec: EnvSpec, update_path: str) -> bool:
    """Return whether NumPy computes most of an update."""
    by_hand = update_path.startswith("explicit") and choose_device(config.device).type == "cpu"
    return by_hand and config.algorithm.encoder in ("auto", "flat") and not _pixels(config, spec)


@contextlib.contextmanager
def run_threads(
    config: TrainConfig,
    spec: EnvSpec,
    learner: StatefulLearner,
    *,
    own_code: bool = False,
    acts: bool = False,
) -> Iterator["StatefulLearner | SpareCores | MoreThreads"]:
    """Set the threads of a run; yield the learner, which with `num_threads: auto` borrows idle cores.

    With `own_code`, part of the update is the user's: it may keep state of its own, so no update is taken twice.
    """
    set_threads = thread_setter(config, spec, learner.update_path)
    built_in = not own_code and ":" not in config.algo and config.algorithm.encoder in ("auto", "flat")
    most = min(MAX_AUTO_THREADS, available_cores())
    borrows = config.num_threads == "auto" and built_in and most > 1
    borrows = borrows and largest_layer(config, spec) >= WORTHWHILE
    number = 1 if config.num_threads == "auto" else config.num_threads
    try:
        if acts and number > 1:  # hosts in other processes act with one thread, so this one must, too
            yield MoreThreads(learner, set_threads, number)
            return
        set_threads(number)
        yield SpareCores(learner, set_threads, most) if borrows else learner
    finally:
        set_threads(1)


class UpdatesAround:
    """Takes the updates of a learner in its own way; callbacks set the learner's rate through it."""

    learner: StatefulLearner

    @property
    def fixed_learning_rate(self) -> float | None:
        """That of the learner."""
        return self.learner.fixed_learning_rate

    @fixed_learning_rate.setter
    def fixed_learning_rate(self, value: float | None) -> None:
        self.learner.fixed_learning_rate = value


class MoreThreads(UpdatesAround):
    """A learner whose updates, and nothing else, use several threads."""

    def __init__(self, learner: StatefulLearner, set_threads: SetThreads, number: int) -> None:
        self.learner, self._set_threads, self._number = learner, set_threads, number

    def update(self, batch: Any, progress: Progress) -> UpdateResult:
        self._set_threads(self._number)
        try:
            return self.learner.update(batch, progress)
        finally:
            self._set_threads(1)


class SpareCores(UpdatesAround):
    """A learner that updates with `most` threads while cores are idle, and with one otherwise.

    The bytes are those of one thread. It takes one update twice, with one thread and with `most`, and borrows cores
    only if both results are equal to the bit, only inside of updates, and only for batches of the same size: BLAS
    divides a product by its shape. It returns the cores when updates become slower than with one thread, because two
    threads beside a busy process take many times as long as one. An attempt that failed costs time; the next one waits
    until that time is less than 3% of the run, and until the cores have been idle.
    """

    CLOCK = staticmethod(time.perf_counter)
    GAIN = 0.95
    """Time of an update, in terms of one thread's, below which borrowed cores help."""
    PATIENCE = 30.0
    """Seconds to wait per second lost in a failed attempt."""
    LOOK_EVERY = 0.25
    """Seconds over which the idle time of the cores is measured."""
    WINDOW = 0.2
    """Seconds of updates that are judged together, at least two: single ones vary."""
    UNTIMED = 2
    """First updates, which are slower than the others."""
    TIMED = 5
    """Updates with one thread that are timed before the first attempt."""

    def __init__(
        self,
        learner: StatefulLearner,
        set_threads: SetThreads,
        most: int,
        idle_cores: "IdleCores | None" = None,
    ) -> None:
        self.learner, self.most = learner, most
        self._set_threads, self._idle = set_threads, idle_cores or IdleCores()
        self.borrowing = False
        self.exact: bool | None = None
        """Whether more threads give the same bytes; None before it was tried."""
        self._rows = -1
        """Size of the batch that was compared."""
        self._metrics: set[str] = set()
        """Names of all metrics so far: an update without some of them left out a part of the work."""
        self._updates, self._single = 0, float("inf")
        self._window: list[float] = [0.0, 0, 0]
        """Seconds, updates and calls since the last judgement."""
        self._next_attempt = self._next_look = 0.0

    def update(self, batch: Any, progress: Progress) -> UpdateResult:
        """Update with one thread or with `most`; see the class."""
        if self.exact is None and self._updates >= self.UNTIMED + self.TIMED and self._cores_are_idle():
            return self._compare(batch, progress)
        if self.exact and not self.borrowing and self._cores_are_idle():
            self._borrow(True)
        if self.borrowing and len(batch) != self._rows:
            return self.learner.update(batch, progress)
        started = self.CLOCK()
        self._set_threads(self.most if self.borrowing else 1)
        try:
            result = self.learner.update(batch, progress)
        finally:
            self._set_threads(1)
        self._metrics |= result.metrics.keys()
        self._judge((self.CLOCK() - started) / max(result.updates, 1), max(result.updates, 1))
        return result

    def _cores_are_idle(self) -> bool:
        now = self.CLOCK()
        if now < max(self._next_attempt, self._next_look):
            return False
        self._next_look = now + self.LOOK_EVERY
        # one core is ours; a core counts as idle if it was so most of the time
        return self._idle.since_last_look() >= 0.8 * (self.most - 1)

    def _borrow(self, wanted: bool) -> None:
        self.borrowing, self._window = wanted, [0.0, 0, 0]

    def _judge(self, seconds: float, updates: int) -> None:
        """Compare the mean time of some updates with that of one thread; return the cores if they do not help."""
        self._updates += 1
        if self._updates <= self.UNTIMED:
            return
        self._window[0] += seconds * updates
        self._window[1] += updates
        self._window[2] += 1
        total, count, calls = self._window
        if calls < 2 or (total < self.WINDOW and calls < self.TIMED):
            return
        self._window, mean = [0.0, 0, 0], total / count
        if not self.borrowing:
            known = self._single < float("inf")
            self._single = 0.8 * self._single + 0.2 * mean if known else mean
        elif mean > self.GAIN * self._single:
            lost = max(mean - self._single, 0.0) * count
            self._borrow(False)
            self._next_attempt = self.CLOCK() + self.PATIENCE * lost + 1.0
            self._idle.since_last_look()

    def _compare(self, batch: Any, progress: Progress) -> UpdateResult:
        """Take one update with one thread, and find out whether `most` would have given the same."""
        result, same = compared_update(self.learner, batch, progress, self._set_threads, self.most)
        if same is False:
            self.exact = False
        elif same and self._metrics <= result.metrics.keys():
            self.exact, self._rows = True, len(batch)
        return result


def compared_update(
    learner: StatefulLearner, batch: Any, progress: Progress, set_threads: SetThreads, number: int
) -> tuple[UpdateResult, bool | None]:
    """Take an update with one thread; return its result, and whether more threads give the same bytes.

    None if that is unknown, because the weights are not finite any more: the trainer raises an error.
    """
    before, generators = copied_state(learner.state_dict()), copy.deepcopy(global_generators())
    result = learner.update(batch, progress)
    single, single_generators = copied_state(learner.state_dict()), copy.deepcopy(global_generators())
    if learner.not_finite(single) is not None:  # such a state cannot be loaded
        return result, None
    learner.load_state_dict(before)
    set_global_generators(generators)
    set_threads(number)
    try:
        again = learner.update(batch, progress)
        same = _same_numbers(again, result) and _same_bytes(learner.state_dict(), single)
    finally:
        set_threads(1)
    learner.load_state_dict(single)
    set_global_generators(single_generators)
    return result, same


class ThreadTrial(UpdatesAround):
    """A learner whose updates find out whether several threads give the bytes of one."""

    def __init__(self, learner: StatefulLearner, set_threads: SetThreads, number: int) -> None:
        self.learner, self._set_threads, self._number = learner, set_threads, number
        self.exact = True

    def update(self, batch: Any, progress: Progress) -> UpdateResult:
        """Take an update with one thread, and compare."""
        result, same = compared_update(self.learner, batch, progress, self._set_threads, self._number)
        self.exact = self.exact and same is True
        return result


class IdleCores:
    """How many of the cores that this process may use were idle since the last look."""

    def __init__(self) -> None:
        self._cores = getattr(os, "sched_getaffinity", lambda _: set[int]())(0)
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._last = self._read()

    def since_last_look(self) -> float:
        """Return the number of idle cores since the last call; 0 if unknown."""
        before, self._last = self._last, self._read()
        if before is None or self._last is None:
            return 0.0
        passed = self._last[0] - before[0]
        return (self._last[1] - before[1]) / passed if passed > 0 else 0.0

    def _read(self) -> tuple[float, float] | None:
        """Return the time and the idle time of all cores together, in seconds."""
        try:
            rows = [line.split() for line in CPU_TIMES.read_text(encoding="ascii").splitlines()]
            idle = [
                int(row[IDLE_COLUMN])
                for row in rows
                if row[0][:3] == "cpu" and row[0][3:].isdecimal() and int(row[0][3:]) in self._cores
            ]
        except (OSError, ValueError, IndexError):
            return None
        return time.monotonic(), sum(idle) / self._ticks


def largest_layer(config: TrainConfig, spec: EnvSpec) -> int:
    """Return the multiply-adds of the largest layer in the forward pass of one gradient step; 0 for another device.

    Recurrent cores do not count: they process one time step after the other, a few rows each.
    """
    if choose_device(config.device).type != "cpu":
        return 0
    settings, pixels = config.algorithm, _pixels(config, spec)
    inputs = num_features(spec.observation_space)
    if spec.critic_space is not None and not pixels:
        inputs += num_features(spec.critic_space)
    if pixels or settings.encoder not in ("auto", "flat"):
        inputs = settings.features_dim
    networks = [getattr(settings, name, None) or () for name in ("hidden_sizes", "critic_hidden_sizes")]
    layers: list[int] = [a * b for widths in networks for a, b in pairwise((inputs, *widths))]
    return settings.rows_per_step(config.num_envs) * max([pixels * WORK_PER_VALUE, *layers])


def available_cores() -> int:
    """Return the number of cores that the machine, the container and OpenMP allow."""
    cores = usable_cores()
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return min(cores, int(first)) if first.isdecimal() and int(first) else cores


def _pixels(config: TrainConfig, spec: EnvSpec) -> int:
    """Return the number of values in the images of an observation that an encoder reads."""
    if config.algorithm.encoder == "flat":
        return 0
    reading = image_reading(config.algorithm, channels_first=config.makes_frames)
    return sum(prod(leaf.space.shape) for leaf in image_leaves(spec.observation_space, reading).values())


def _same_numbers(one: UpdateResult, other: UpdateResult) -> bool:
    same = one.metrics.keys() == other.metrics.keys() and all(
        _same_tensors(value, other.metrics[name]) for name, value in one.metrics.items()
    )
    if one.priorities is None or other.priorities is None:
        return same and one.priorities is other.priorities
    return same and _same_tensors(one.priorities, other.priorities)


def _same_bytes(one: dict[str, State], other: dict[str, State]) -> bool:
    for name, content in one.items():
        (tensors, plain), (others, other_plain) = split_state(content), split_state(other[name])
        if plain != other_plain or tensors.keys() != others.keys():
            return False
        if not all(_same_tensors(tensor, others[key]) for key, tensor in tensors.items()):
            return False
    return one.keys() == other.keys()


def _same_tensors(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.detach().cpu().numpy().tobytes() == other.detach().cpu().numpy().tobytes()
