"""What a step and an update cost, counted in calls and memory: unlike seconds, these are the same on every machine."""

import fnmatch
import gc
import re
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rl_training.config import TrainConfig
from rl_training.core.types import Progress
from rl_training.envs.factory import make_vector_env
from rl_training.envs.stepper import VectorStepper
from rl_training.experiment.building import build_parts
from rl_training.runtime.sampler import LocalSampler

pytestmark = pytest.mark.slow

STEPS = 64
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"num_steps": STEPS, "batch_size": 256, "update_epochs": 1},
    "a2c": {"num_steps": STEPS},
    "dqn": {"train_freq": 4 * STEPS, "gradient_steps": 8, "learning_starts": 1, "batch_size": 32},
    "sac": {"train_freq": 4 * STEPS, "gradient_steps": 8, "learning_starts": 1, "batch_size": 32},
    "td3": {"train_freq": 4 * STEPS, "gradient_steps": 8, "learning_starts": 1, "batch_size": 32},
}


class Still(gymnasium.Env[Any, Any]):
    """Says the same all the time, and calls nothing for it."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self.action_space = action_space
        self.said = np.zeros(4, np.float32), 1.0, False, False, dict[str, Any]()

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return self.said[0], {}

    def step(self, action: Any) -> Any:
        return self.said


class Running:
    """The parts of a run as its trainer drives them, after their first iterations."""

    def __init__(self, algo: str) -> None:
        continuous = algo in ("sac", "td3")
        space: Any = spaces.Box(-1.0, 1.0, (2,), np.float32) if continuous else spaces.Discrete(2)
        config = TrainConfig(algo=algo, env_id="Still-v0", seed=0, num_envs=4).with_overrides(
            rebuild_envs="off", use_action_masks="off", **SETTINGS[algo]
        )
        stepper = VectorStepper(make_vector_env(config, factory=lambda: Still(space)))
        parts = build_parts(config, stepper.spec)
        self.source: Any = parts.source
        self.learner: Any = parts.learner
        self.sampler = LocalSampler(stepper, parts.actor.explorer, parts.source)
        self.progress = Progress(1000, 0, 10_000)
        stepper.reset()
        for _ in range(3):
            self.collect()
            self.update()

    def collect(self) -> None:
        self.sampler.collect(STEPS, self.progress)

    def update(self) -> int:
        updates = 0
        for batch in self.source.batches(self.progress):
            result = self.learner.update(batch, self.progress)
            self.source.feedback(batch, result)
            updates += result.updates
        return updates


@contextmanager
def no_collections() -> Iterator[None]:
    """Keep the garbage collector away: what it calls and frees belongs to other tests of the process."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def calls_in(work: Callable[[], Any]) -> int:
    """Return how many functions were called, of Python and of C."""
    count = 0

    def counted(_: FrameType, event: str, __: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    with no_collections():
        sys.setprofile(counted)
        try:
            work()
        finally:
            sys.setprofile(None)
    return count


# four environments, of which each takes six calls of its own: Gymnasium's wrappers and ours
@pytest.mark.parametrize(
    ("algo", "most"), [("ppo", 124), ("a2c", 124), ("dqn", 142), ("sac", 139), ("td3", 135)]
)
def test_a_step_makes_few_calls(algo: str, most: int) -> None:
    running = Running(algo)
    found = calls_in(running.collect) / STEPS
    assert found <= most


@pytest.mark.parametrize(
    ("algo", "most"), [("ppo", 500), ("a2c", 445), ("dqn", 130), ("sac", 435), ("td3", 230)]
)
def test_an_update_makes_few_calls(algo: str, most: int) -> None:
    running = Running(algo)
    updates = 0

    def work() -> None:
        nonlocal updates
        updates = running.update()

    running.collect()
    found = calls_in(work)
    assert found / updates <= most


COUNTED = [
    *(
        tracemalloc.Filter(True, f"*/{package}/*")
        for package in ("rl_training", "gymnasium", "numpy", "torch")
    ),
    # actions and rewards of episodes, which are how an environment comes back to a step
    tracemalloc.Filter(False, "*/envs/episodes.py"),
]
"""Where memory is counted: not in what measures it, nor in other threads of the process."""


def memory_of(work: Callable[[], Any]) -> tuple[int, int]:
    """Return how many bytes a second call of some work leaves behind more than the first, and needs at most."""

    def held() -> int:
        gc.collect()
        return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(COUNTED).traces)

    with no_collections():
        tracemalloc.start()
        try:
            work()
            first = held()
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            work()
            peak = tracemalloc.get_traced_memory()[1] - before
            return held() - first, peak
        finally:
            tracemalloc.stop()


def collecting(algo: str) -> Callable[[], None]:
    """Return the work of a rollout."""
    running = Running(algo)

    def work() -> None:
        if algo in ("ppo", "a2c"):
            running.source.buffer.reset()
        running.collect()

    return work


@pytest.mark.parametrize("algo", SETTINGS)
def test_steps_leave_nothing_behind_and_need_little(algo: str) -> None:
    left, needed = memory_of(collecting(algo))
    assert left < 2_000 + 40 * 4 * STEPS, "more than the number of an action is kept"
    assert needed < 100_000


@contextmanager
def disturbed() -> Iterator[None]:
    """A process in which other tests left a callback of the collector, a thread, and caches to be filled."""
    stop, hoard = threading.Event(), list[bytes]()

    def grow() -> None:
        while not stop.wait(0.001):
            hoard.append(bytes(10_000))

    def called(phase: str, info: dict[str, int]) -> None:
        len(phase)

    thread, thresholds = threading.Thread(target=grow), gc.get_threshold()
    re.purge()
    fnmatch._compile_pattern.cache_clear()  # type: ignore[attr-defined]
    gc.callbacks.append(called)
    gc.set_threshold(10, 5, 5)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(called)


def test_the_measurements_do_not_depend_on_what_else_is_in_the_process() -> None:
    work = collecting("ppo")
    calls, (left, _) = calls_in(work), memory_of(work)
    with disturbed():
        assert calls_in(work) == calls
        assert memory_of(work)[0] == pytest.approx(left, abs=200)
