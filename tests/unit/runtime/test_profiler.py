"""Where the time goes: every second in one section, the insides of an update apart, and the same results."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rl_training.core.timing import lap
from rl_training.core.types import Progress
from rl_training.runtime import profiler as profiler_module
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.profiler import Profiler
from rl_training.runtime.sampler import LocalSampler
from rl_training.runtime.trainer import Cadence, Trainer


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that goes on when it is told to."""
    now = [100.0]
    monkeypatch.setattr(profiler_module.time, "perf_counter", lambda: now[0])

    def go_on(seconds: float) -> None:
        now[0] += seconds

    return go_on


def fake_trainer(wait: Callable[[float], None]) -> Any:
    """What a profiler touches of a trainer, each call with a known price."""

    def costs(seconds: float) -> Callable[..., None]:
        return lambda *_, **__: wait(seconds)

    def batches(progress: Any) -> Iterator[int]:
        for batch in range(2):
            wait(0.25)
            yield batch

    def update(batch: int, progress: Any) -> str:
        wait(1.0)
        lap("forward")
        wait(2.0)
        lap("backward")
        wait(4.0)
        return f"result {batch}"

    explorer = SimpleNamespace(act=costs(0.5), after_step=costs(0.125), end_collect=costs(0.0625))
    source = SimpleNamespace(
        record_action=costs(3),
        record_outcome=costs(5),
        end_collect=costs(7),
        batches=batches,
        feedback=costs(0.75),
    )
    sampler: Any = LocalSampler.__new__(LocalSampler)
    sampler.stepper, sampler.explorer = SimpleNamespace(step=costs(10)), explorer
    return SimpleNamespace(
        sampler=sampler,
        source=source,
        learner=SimpleNamespace(update=update),
        logger=SimpleNamespace(log=costs(11)),
        evaluate=costs(13),
        save_checkpoint=costs(17),
    )


def seconds(profiler: Profiler) -> dict[str, float]:
    return {name: found["seconds"] for name, found in profiler.report()["sections"].items()}


def test_every_second_is_in_one_section(wait: Callable[[float], None]):
    trainer, profiler = fake_trainer(wait), Profiler()
    wait(1_000)
    profiler.watch(trainer)
    trainer.sampler.explorer.act()
    trainer.source.record_action()
    trainer.sampler.stepper.step()
    trainer.sampler.explorer.after_step()
    trainer.source.record_outcome()
    trainer.sampler.explorer.end_collect()
    trainer.source.end_collect()
    results = []
    for batch in trainer.source.batches(None):
        results.append(trainer.learner.update(batch, None))
        trainer.source.feedback(batch, None)
    trainer.logger.log({}, 0)
    trainer.evaluate()
    trainer.save_checkpoint()
    wait(100)  # nobody's
    assert results == ["result 0", "result 1"]
    assert seconds(profiler) == {
        "env": 10, "act": 0.6875, "store": 15, "sample": 2.0, "update": 14, "update/forward": 2, "update/backward": 4,
        "log": 11, "evaluate": 13, "checkpoint": 17, "other": 100,
    }  # fmt: skip
    assert profiler.report()["seconds"] == sum(
        value for name, value in seconds(profiler).items() if "/" not in name
    )
    assert profiler.report()["sections"]["update"]["calls"] == 2


def test_a_section_within_another_counts_once(wait: Callable[[float], None]):
    profiler = Profiler()
    inner = SimpleNamespace(step=lambda: wait(1))
    profiler.time_calls(inner, "step", "env")

    def evaluated() -> None:
        wait(2)
        inner.step()
        wait(4)

    outer = SimpleNamespace(evaluate=evaluated)
    profiler.time_calls(outer, "evaluate", "evaluate")
    outer.evaluate()
    assert seconds(profiler)["env"] == 1
    assert seconds(profiler)["evaluate"] == 6


def test_an_error_goes_through_and_its_time_is_counted(wait: Callable[[float], None]):
    def fails() -> None:
        wait(3)
        raise ValueError("gone")

    profiler, env = Profiler(), SimpleNamespace(step=fails)
    profiler.time_calls(env, "step", "env")
    with pytest.raises(ValueError, match="gone"):
        env.step()
    assert seconds(profiler)["env"] == 3


def test_what_is_printed_begins_with_the_dearest_and_has_insides_under_their_section(
    wait: Callable[[float], None],
):
    trainer, profiler = fake_trainer(wait), Profiler()
    profiler.watch(trainer)
    trainer.learner.update(0, None)
    trainer.evaluate()
    lines = profiler.text().splitlines()
    assert lines[0] == "Where the time went (20.0 s):"
    assert [line.split()[0] for line in lines[1:]] == ["evaluate", "update", "forward", "backward"]
    assert lines[1].split() == ["evaluate", "65.0%", "13.00", "s", "1", "call"]
    assert lines[3].startswith("    forward")


def test_a_logger_that_outlives_its_trainer_is_timed_once(wait: Callable[[float], None]):
    first, second, profiler = fake_trainer(wait), fake_trainer(wait), Profiler()
    second.logger = first.logger
    profiler.watch(first)
    profiler.watch(second)
    second.logger.log({}, 0)
    assert profiler.report()["sections"]["log"] == {"seconds": 11, "calls": 1}


@pytest.mark.parametrize("callbacks", [[], [Callback()], [Profiler()]])
def test_a_trainer_without_a_profiler_wraps_nothing(wait: Callable[[float], None], callbacks: list[Callback]):
    parts = fake_trainer(wait)
    update = parts.learner.update
    trainer: Any = Trainer(
        None,
        parts.source,
        parts.learner,
        cadence=Cadence(1, 1, 1),
        logger=parts.logger,
        evaluate=parts.evaluate,
        save_checkpoint=parts.save_checkpoint,
        callbacks=callbacks,
    )
    trainer.begin(SimpleNamespace(start=Progress()))
    watched = any(isinstance(callback, Profiler) for callback in callbacks)
    assert (parts.learner.update is not update) == watched
    assert (trainer.logger is not parts.logger) == watched
