"""A timeline remembers the last iterations, and how long each side waited in them."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from rl_training.runtime.engines.ray import HostHandle
from rl_training.runtime.timeline import COLLECT, ITERATIONS, MAX_SPANS, UPDATE, Span, Timeline


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def played(iterations: int, *, updates: int = 1, samples: bool = True) -> Timeline:
    """Return the timeline of a run that collects for 2 seconds, updates for 3, and ends with an evaluation."""
    clock = Clock()

    def lasts(seconds: float) -> Any:
        def call(*given: Any) -> None:
            clock.now += seconds

        return call

    trainer: Any = SimpleNamespace(
        sampler=SimpleNamespace(collect=lasts(2.0)) if samples else None,
        learner=SimpleNamespace(update=lasts(3.0)),
        evaluate=lasts(1_000.0),
        save_checkpoint=lasts(0.5),
    )
    timeline = Timeline(clock)
    timeline.watch(trainer)
    for _ in range(iterations):
        if samples:
            trainer.sampler.collect(8, None)
        for _ in range(updates):
            trainer.learner.update(None, None)
        trainer.save_checkpoint()
    trainer.evaluate()
    return timeline


def test_the_window_is_that_of_the_last_iterations_without_the_end_of_the_run():
    few, many = played(3), played(100)
    assert (few.iterations, few.seconds) == (3, 3 * 5.5 - 0.5)
    assert (many.iterations, many.seconds) == (ITERATIONS, ITERATIONS * 5.5 - 0.5)
    assert many.share(UPDATE) == pytest.approx(ITERATIONS * 3 / (ITERATIONS * 5.5 - 0.5))
    assert many.share(COLLECT) == pytest.approx(ITERATIONS * 2 / (ITERATIONS * 5.5 - 0.5))
    assert {span.what for span in many.shown()} == {"collect", "update", "checkpoint"}


def test_a_run_that_only_learns():
    assert played(4, samples=False).iterations == 4
    assert played(0).seconds == 0.0


def test_memory_is_bounded():
    timeline = played(3, updates=MAX_SPANS)
    assert len(timeline.learner) == MAX_SPANS
    assert timeline.window[0] == timeline.learner[0].start  # what was before it is forgotten
    assert timeline.iterations == 0
    assert timeline.rollouts.maxlen == MAX_SPANS


def test_waiting_times_of_samplers():
    timeline = Timeline()
    timeline.learner.extend([Span(COLLECT, 0.0, 4.0), Span(UPDATE, 4.0, 10.0)])
    timeline._begun.append(0.0)
    timeline.hosts = [[0, 1], [2]]
    timeline.rollouts = deque([(0, -1.0, 1.0), (1, 1.0, 4.0), (2, 0.0, 2.5), (0, 9.0, 12.0), (2, 20.0, 30.0)])
    assert timeline.report() == {
        "iterations": 1,
        "seconds": 10.0,
        "learner_waits": pytest.approx(0.4),
        "samplers_wait": [pytest.approx(0.5), pytest.approx(0.75)],
    }


def test_times_of_another_machine_are_shifted_to_this_one(monkeypatch):
    """The clock of the other machine is 1,000 seconds ahead, and the second rollout has waited to be received."""
    clock = Clock()
    monkeypatch.setattr("rl_training.runtime.engines.ray.time", SimpleNamespace(monotonic=clock))
    handle = HostHandle(None, None)
    assert handle.by_our_clock(1_090.0, 1_099.5) == (90.5, 100.0)
    clock.now = 120.0
    assert handle.by_our_clock(1_100.0, 1_110.0) == (100.5, 110.5)
    clock.now = 120.1
    assert handle.by_our_clock(1_115.0, 1_120.0) == (pytest.approx(115.1), pytest.approx(120.1))
