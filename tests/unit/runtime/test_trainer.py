import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rl_training.core.errors import RunFault
from rl_training.core.state import join_state, split_state
from rl_training.core.types import Collected, Evaluation, Progress, UpdateResult
from rl_training.runtime import trainer as trainer_module
from rl_training.runtime.callbacks import Callback, PauseTraining, StopOnPlateau, StopTraining
from rl_training.runtime.trainer import Cadence, Trainer, Trigger


class Fakes:
    """Sampler, source, learner, logger, evaluator and checkpointer in one; everything is noted in `events`."""

    def __init__(
        self, rewards: tuple[float, ...] = (1.0,), *, per_collect: int = 10, num_batches: int = 1
    ) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.rows: list[dict[str, float]] = []
        self.steps_per_collect = per_collect
        self.num_batches = num_batches
        self.rewards = rewards
        self.evaluations = 0

    def collect(self, num_steps: int, progress: Progress) -> Collected:
        self.events.append(("collect", progress.timesteps))
        return Collected(num_steps, [])

    def metrics(self) -> dict[str, float]:
        return {}

    def batches(self, progress: Progress) -> Iterator[int]:
        yield from range(self.num_batches)

    def update(self, batch: int, progress: Progress) -> UpdateResult:
        self.events.append(("update", progress.timesteps, progress.updates))
        return UpdateResult({"loss": torch.tensor(float(progress.updates))})

    def feedback(self, batch: int, result: UpdateResult) -> None:
        self.events.append(("feedback", batch))

    def log(self, metrics: dict[str, float], timesteps: int) -> None:
        self.events.append(("log", timesteps))
        self.rows.append(metrics)

    def evaluate(self) -> Evaluation:
        self.events.append(("evaluate",))
        reward = self.rewards[min(self.evaluations, len(self.rewards) - 1)]
        self.evaluations += 1
        return Evaluation([reward], [1])

    def save_checkpoint(self, progress: Progress, *, evaluation: dict[str, Any] | None, best: bool) -> None:
        seen = None if evaluation is None else evaluation["mean_reward"]
        self.events.append(("checkpoint", progress.timesteps, seen, best))

    def named(self, *names: str) -> list[tuple[Any, ...]]:
        return [event for event in self.events if event[0] in names]


def make_trainer(
    fakes: Fakes, *, log: int = 0, evaluate: int = 0, checkpoint: int = 0, callbacks: Any = ()
) -> Trainer:
    return Trainer(
        fakes,  # type: ignore[arg-type]
        fakes,  # type: ignore[arg-type]
        fakes,  # type: ignore[arg-type]
        cadence=Cadence(log, evaluate, checkpoint),
        logger=fakes,  # type: ignore[arg-type]
        evaluate=fakes.evaluate,
        save_checkpoint=fakes.save_checkpoint,
        callbacks=callbacks,
    )


class Stopping(Callback):
    def __init__(self, event: str, at: int, error: type[StopTraining] = StopTraining) -> None:
        self.event, self.at, self.error, self.ended = event, at, error, 0

    def _stop(self, event: str, progress: Progress) -> None:
        if event == self.event and progress.timesteps >= self.at:
            raise self.error(f"enough at {event}")

    def on_collect(self, progress: Progress) -> None:
        self._stop("on_collect", progress)

    def on_update(self, progress: Progress, result: UpdateResult) -> None:
        self._stop("on_update", progress)

    def on_evaluate(self, progress: Progress, summary: dict[str, Any]) -> None:
        self._stop("on_evaluate", progress)

    def on_end(self, progress: Progress) -> None:
        self.ended += 1


def test_a_trigger_is_due_once_per_crossed_boundary() -> None:
    trigger = Trigger(10)
    assert [trigger.due(t) for t in (0, 9, 10, 10, 19, 35, 39, 40)] == [
        False, False, True, False, False, True, False, True,
    ]  # fmt: skip


def test_a_trigger_of_zero_is_never_due() -> None:
    assert not any(Trigger(0).due(t) for t in (0, 1, 10**9))


def test_collect_and_update_alternate_until_the_budget_is_used_up() -> None:
    fakes = Fakes(num_batches=2)
    progress = make_trainer(fakes).fit(Progress(total_timesteps=15))
    assert fakes.named("collect", "update", "feedback") == [
        ("collect", 0),
        ("update", 10, 0),
        ("feedback", 0),
        ("update", 10, 1),
        ("feedback", 1),
        ("collect", 10),
        ("update", 20, 2),
        ("feedback", 0),
        ("update", 20, 3),
        ("feedback", 1),
    ]
    assert progress == Progress(timesteps=20, updates=4, total_timesteps=15)


def test_a_finished_run_is_not_trained_further() -> None:
    fakes = Fakes()
    finished = make_trainer(fakes)
    progress = finished.fit(Progress(total_timesteps=10))
    again = Fakes()
    trainer = make_trainer(again)
    trainer.load_state_dict(finished.state_dict())
    trainer.fit(progress)
    assert again.events == []


def test_jobs_run_in_the_order_evaluate_log_checkpoint_after_the_update() -> None:
    """And where an evaluation may lose something, a checkpoint is written first."""
    fakes = Fakes(rewards=(3.0, 2.0, 1.0))
    make_trainer(fakes, log=10, evaluate=20, checkpoint=10).fit(Progress(total_timesteps=40))
    jobs = [event[0] for event in fakes.events if event[0] != "feedback"]
    assert jobs == [
        *["collect", "update", "log", "checkpoint"],
        *[
            "collect",
            "update",
            "checkpoint",
            "evaluate",
            "log",
            "checkpoint",
        ],  # a new best is saved with its score
        *["collect", "update", "log", "checkpoint"],
        *["collect", "update", "checkpoint", "evaluate", "log", "checkpoint"],  # and so is the end
    ]
    worse = Fakes(rewards=(3.0, 2.0, 1.0))
    make_trainer(worse, evaluate=10, checkpoint=20).fit(Progress(total_timesteps=30))
    assert worse.named("evaluate", "checkpoint")[2:4] == [("checkpoint", 20, None, False), ("evaluate",)]
    assert worse.named("evaluate", "checkpoint")[4][0] == "checkpoint", "the next is of step 30"


def test_each_job_keeps_its_own_cadence_and_runs_once_more_at_the_end() -> None:
    fakes = Fakes(rewards=(5.0, 4.0))
    make_trainer(fakes, log=20, evaluate=30, checkpoint=40).fit(Progress(total_timesteps=70))
    at: dict[str, list[int]] = {"log": [], "evaluate": [], "checkpoint": []}
    now = 0
    for event in fakes.events:
        if event[0] == "update":
            now = event[1]
        elif event[0] in at:
            at[event[0]].append(now)
    assert at["evaluate"] == [30, 60, 70]
    assert at["checkpoint"] == [
        30,
        40,
        70,
        70,
    ]  # the first evaluation is a new best; the last, before and after
    assert set(at["log"]) >= {20, 40, 60, 70}


def test_jobs_that_are_due_at_the_end_run_once() -> None:
    fakes = Fakes()
    make_trainer(fakes, log=10, evaluate=10, checkpoint=10).fit(Progress(total_timesteps=10))
    assert [len(fakes.named(name)) for name in ("evaluate", "log")] == [1, 1]
    assert fakes.named("checkpoint") == [("checkpoint", 10, None, False), ("checkpoint", 10, 1.0, True)]
    assert sum("train/loss" in row for row in fakes.rows) == 1


def test_a_cadence_of_zero_runs_at_the_end_only() -> None:
    fakes = Fakes()
    make_trainer(fakes).fit(Progress(total_timesteps=50))
    assert set(fakes.named("log")) == {("log", 50)}
    assert fakes.named("checkpoint") == [("checkpoint", 50, None, False), ("checkpoint", 50, 1.0, True)]
    assert len(fakes.named("evaluate")) == 1


def test_a_new_best_is_always_saved_and_only_a_new_best_is_called_so() -> None:
    fakes = Fakes(rewards=(1.0, 1.0, 3.0, 2.0))
    make_trainer(fakes, evaluate=10).fit(Progress(total_timesteps=40))
    assert fakes.named("checkpoint") == [
        ("checkpoint", 10, 1.0, True),
        ("checkpoint", 30, 3.0, True),
        ("checkpoint", 40, None, False),
        ("checkpoint", 40, 2.0, False),
    ]


def test_a_checkpoint_carries_an_evaluation_only_if_it_is_of_the_same_moment() -> None:
    fakes = Fakes(rewards=(2.0, 1.0))
    make_trainer(fakes, evaluate=20, checkpoint=10).fit(Progress(total_timesteps=40))
    assert fakes.named("checkpoint") == [
        ("checkpoint", 10, None, False),
        ("checkpoint", 20, None, False),
        ("checkpoint", 20, 2.0, True),
        ("checkpoint", 30, None, False),
        ("checkpoint", 40, None, False),
        ("checkpoint", 40, 1.0, False),
    ]


def test_log_rows_average_the_updates_since_the_last_row() -> None:
    fakes = Fakes(num_batches=2)
    make_trainer(fakes, log=20).fit(Progress(total_timesteps=40))
    trained = [row["train/loss"] for row in fakes.rows if "train/loss" in row]
    assert trained == [1.5, 5.5]
    assert fakes.rows[0]["time/total_timesteps"] == 20
    assert fakes.rows[0]["time/iterations"] == 4


def test_evaluations_are_logged_at_their_timestep() -> None:
    fakes = Fakes(rewards=(2.0, 7.0))
    make_trainer(fakes, log=10, evaluate=20).fit(Progress(total_timesteps=40))
    logged = {
        event[1]: row["eval/mean_reward"]
        for event, row in zip(fakes.named("log"), fakes.rows, strict=True)
        if "eval/mean_reward" in row
    }
    assert logged == {20: 2.0, 40: 7.0}


@pytest.mark.parametrize("event", ["on_collect", "on_update", "on_evaluate"])
def test_a_stop_ends_the_run_at_the_boundary_with_a_checkpoint(event: str) -> None:
    fakes, stopping = Fakes(rewards=(5.0, 4.0, 3.0)), Stopping(event, at=20)
    trainer = make_trainer(fakes, evaluate=10, callbacks=[stopping])
    progress = trainer.fit(Progress(total_timesteps=1000))
    assert progress.timesteps == 20
    assert trainer.stop_reason == f"enough at {event}"
    assert fakes.named("update")[-1] == ("update", 20, 1)
    assert fakes.named("checkpoint")[-1] == ("checkpoint", 20, 4.0, False)
    assert len(fakes.named("evaluate")) == 2
    assert stopping.ended == 1


def test_the_first_reason_to_stop_is_the_one_that_is_kept() -> None:
    fakes = Fakes()
    trainer = make_trainer(fakes, callbacks=[Stopping("on_update", 10), Stopping("on_collect", 10)])
    trainer.fit(Progress(total_timesteps=100))
    assert trainer.stop_reason == "enough at on_collect"


@pytest.mark.parametrize("event", ["on_collect", "on_update"])
def test_a_pause_writes_a_checkpoint_and_runs_no_job_that_is_not_due(event: str) -> None:
    fakes, pausing = Fakes(), Stopping(event, at=20, error=PauseTraining)
    trainer = make_trainer(fakes, log=30, evaluate=30, checkpoint=30, callbacks=[pausing])
    progress = trainer.fit(Progress(total_timesteps=1000))
    assert progress.timesteps == 20
    assert trainer.paused
    assert (trainer.stop_reason, trainer.pause_reason) == (None, f"enough at {event}")
    assert fakes.named("update")[-1] == ("update", 20, 1), "the update of the collected steps comes first"
    assert fakes.named("evaluate", "log", "checkpoint") == [("checkpoint", 20, None, False)]
    assert pausing.ended == 1


def test_a_pause_leaves_the_jobs_that_are_due_to_the_resumed_run() -> None:
    """They may take long, and whoever pauses a run wants it to end."""
    fakes = Fakes()
    pausing = Stopping("on_collect", at=20, error=PauseTraining)
    trainer = make_trainer(fakes, log=20, evaluate=20, checkpoint=20, callbacks=[pausing])
    progress = trainer.fit(Progress(total_timesteps=1000))
    assert fakes.named("evaluate", "log", "checkpoint") == [("checkpoint", 20, None, False)]
    rest = Fakes()
    again = make_trainer(rest, log=20, evaluate=20, checkpoint=20, callbacks=[Stopping("on_collect", 30)])
    again.load_state_dict(trainer.state_dict())
    again.fit(progress)
    assert rest.events[:3] == [("evaluate",), ("log", 20), ("checkpoint", 20, 1.0, True)]
    assert rest.events[3] == ("collect", 20)


@pytest.mark.parametrize("pause_first", [True, False])
def test_a_stop_overrides_a_pause_whichever_comes_first(pause_first: bool) -> None:
    pause, stop = Stopping("on_collect", 10, PauseTraining), Stopping("on_collect", 10)
    fakes = Fakes()
    trainer = make_trainer(fakes, callbacks=[pause, stop] if pause_first else [stop, pause])
    trainer.fit(Progress(total_timesteps=1000))
    assert trainer.stop_reason == "enough at on_collect"
    assert not trainer.paused
    assert len(fakes.named("evaluate")) == 1, "a stopped run ends with an evaluation"


@pytest.mark.parametrize("pause_at", [10, 20, 30, 40, 50, 60, 70])
def test_a_paused_and_resumed_run_leaves_the_same_rows(pause_at: int) -> None:
    """The means of a row cover the updates on both sides of the pause."""
    settings: dict[str, Any] = {"log": 30, "evaluate": 40, "checkpoint": 30}
    whole = Fakes(num_batches=2)
    make_trainer(whole, **settings).fit(Progress(total_timesteps=80))

    first = Fakes(num_batches=2)
    pausing = Stopping("on_collect", pause_at, PauseTraining)
    half = make_trainer(first, **settings, callbacks=[pausing])
    progress = half.fit(Progress(total_timesteps=80))
    second = Fakes(num_batches=2)
    rest = make_trainer(second, **settings)
    tensors, plain = split_state(half.state_dict())  # as a checkpoint would
    rest.load_state_dict(join_state(tensors, json.loads(json.dumps(plain))))
    rest.fit(progress)
    clock = {"time/fps", "time/time_elapsed"}
    rows = [{name: row[name] for name in row if name not in clock} for row in first.rows + second.rows]
    assert rows == [{name: row[name] for name in row if name not in clock} for row in whole.rows]


def test_callbacks_get_back_what_their_class_saved_in_order() -> None:
    class Memory(Callback):
        def __init__(self, value: int) -> None:
            self.value = value

        def state_dict(self) -> dict[str, Any]:
            return {"value": self.value}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.value = state["value"]

    class Other(Memory):
        pass

    saved = make_trainer(Fakes(), callbacks=[Memory(1), Other(2), Memory(3)]).state_dict()
    assert saved["callbacks"] == [["Memory", {"value": 1}], ["Other", {"value": 2}], ["Memory", {"value": 3}]]
    later = [Other(0), Memory(0), Callback(), Memory(0), Memory(0)]
    make_trainer(Fakes(), callbacks=later).load_state_dict(saved)
    assert [getattr(callback, "value", None) for callback in later] == [2, 1, None, 3, 0]
    assert len(saved["callbacks"]) == 3, "the saved state is the caller's"


def test_elapsed_time_goes_on_after_a_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 5))
    monkeypatch.setattr(trainer_module.time, "monotonic", lambda: float(next(clock)))
    first = make_trainer(Fakes())
    first.fit(Progress(total_timesteps=10))
    saved = first.state_dict()
    assert saved["elapsed"] > 0
    fakes = Fakes()
    rest = make_trainer(fakes)
    rest.load_state_dict(saved)
    rest.fit(Progress(timesteps=10, total_timesteps=20))
    assert fakes.rows[0]["time/time_elapsed"] > saved["elapsed"]
    assert rest.state_dict()["elapsed"] > fakes.rows[0]["time/time_elapsed"], "and after the next one"


def test_a_run_that_is_killed_in_an_evaluation_begins_with_it_when_it_is_resumed() -> None:
    """The checkpoint before the evaluation counts it as undone."""

    class Killed(Fakes):
        def save_checkpoint(self, progress: Progress, **options: Any) -> None:
            self.saved, self.progress = trainer.state_dict(), progress

        def evaluate(self) -> Evaluation:
            raise KeyboardInterrupt

    killed, again = Killed(), Fakes()
    trainer = make_trainer(killed, evaluate=20, checkpoint=20)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(Progress(total_timesteps=100))
    assert killed.progress.timesteps == 20
    rest = make_trainer(again, evaluate=20, checkpoint=20)
    rest.load_state_dict(killed.saved)
    rest.fit(killed.progress)
    assert again.events[0] == ("evaluate",)
    assert again.evaluations == 5


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["loss", "value_loss", "grad_norm"])
def test_a_loss_that_is_not_finite_stops_the_run_and_is_named(name: str, bad: float) -> None:
    class Diverging(Fakes):
        def update(self, batch: int, progress: Progress) -> UpdateResult:
            self.events.append(("update", progress.timesteps, progress.updates))
            value = bad if progress.updates == 2 else 0.5
            fine = {"loss": torch.tensor(0.5), "explained_variance": torch.tensor(float("nan"))}
            return UpdateResult(fine | {name: torch.tensor(value)})

    fakes = Diverging()
    with pytest.raises(RunFault, match=rf"^{name} is {bad} in update 3, after 30 steps; .*learning_rate"):
        make_trainer(fakes, checkpoint=10).fit(Progress(total_timesteps=100))
    after = fakes.events[fakes.events.index(("update", 30, 2)) + 1 :]
    assert [event[0] for event in after] == ["feedback"], "nothing is collected or saved with such weights"
    assert fakes.named("checkpoint") == [("checkpoint", 10, None, False), ("checkpoint", 20, None, False)]


def test_events_reach_callbacks_in_order() -> None:
    seen: list[str] = []

    class Seeing(Callback):
        def on_collect(self, progress: Progress) -> None:
            seen.append(f"collect {progress.timesteps} {progress.updates}")

        def on_update(self, progress: Progress, result: UpdateResult) -> None:
            seen.append(f"update {progress.updates} {result.metrics['loss']:.0f}")

        def on_evaluate(self, progress: Progress, summary: dict[str, Any]) -> None:
            seen.append(f"evaluate {summary['mean_reward']}")

        def on_end(self, progress: Progress) -> None:
            seen.append(f"end {progress.timesteps}")

    make_trainer(Fakes(), callbacks=[Seeing()]).fit(Progress(total_timesteps=10))
    assert seen == ["collect 10 0", "update 1 0", "evaluate 1.0", "end 10"]


def test_cadence_best_and_callbacks_continue_after_a_state_round_trip() -> None:
    settings: dict[str, Any] = {"log": 20, "evaluate": 20, "checkpoint": 30}
    rewards = (5.0, 3.0, 4.0, 6.0)
    whole = Fakes(rewards)
    trainer = make_trainer(whole, **settings, callbacks=[StopOnPlateau(10)])
    trainer.fit(Progress(total_timesteps=80))

    first = Fakes(rewards)
    half = make_trainer(first, **settings, callbacks=[StopOnPlateau(10)])
    half.fit(Progress(total_timesteps=40))
    second = Fakes(rewards[2:])
    rest = make_trainer(second, **settings, callbacks=[StopOnPlateau(10)])
    rest.load_state_dict(half.state_dict())
    rest.fit(Progress(timesteps=40, updates=4, total_timesteps=80))
    late = [event for event in whole.named("checkpoint", "log") if event[1] > 40]
    assert second.named("checkpoint", "log") == late
    assert rest.best.reward == trainer.best.reward == 6.0
    states = [{**each.state_dict(), "elapsed": None} for each in (rest, trainer)]
    assert states[0] == states[1]


def test_speed_counts_the_steps_of_this_session_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 5))
    monkeypatch.setattr(trainer_module.time, "monotonic", lambda: float(next(clock)))
    fakes = Fakes()
    make_trainer(fakes).fit(Progress(timesteps=1000, total_timesteps=1010))
    row = fakes.rows[0]
    assert row["time/fps"] == pytest.approx(10 / row["time/time_elapsed"])
    assert row["time/time_elapsed"] > 0
