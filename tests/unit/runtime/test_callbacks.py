import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rl_training.core.types import Progress, UpdateResult
from rl_training.runtime import callbacks
from rl_training.runtime.callbacks import (
    Callback,
    PauseTraining,
    SaveEvery,
    StopAtReward,
    StopOnPlateau,
    StopTraining,
    TimeLimit,
)


def evaluate(callback: Callback, reward: float) -> None:
    callback.on_evaluate(Progress(), {"mean_reward": reward})


@pytest.mark.parametrize(("reward", "stops"), [(474.9, False), (475.0, True), (500.0, True)])
def test_stop_at_reward_stops_from_its_threshold_on(reward: float, stops: bool) -> None:
    callback = StopAtReward(475.0)
    if stops:
        with pytest.raises(StopTraining, match=re.escape(f"mean return {reward} reached 475")):
            evaluate(callback, reward)
    else:
        evaluate(callback, reward)


def test_stop_on_plateau_counts_evaluations_since_the_best() -> None:
    callback = StopOnPlateau(patience=3)
    for reward in (1.0, 0.0, 1.0, 2.0, 1.5, 2.0):
        evaluate(callback, reward)
    with pytest.raises(StopTraining, match=r"3 evaluations without improvement on 2\.0"):
        evaluate(callback, -1.0)


def test_stop_on_plateau_does_not_stop_at_the_first_evaluation_however_bad() -> None:
    callback = StopOnPlateau(patience=1)
    evaluate(callback, -1e9)
    with pytest.raises(StopTraining):
        evaluate(callback, -1e9)


@pytest.mark.parametrize("history", [[], [5.0], [5.0, 1.0], [5.0, 1.0, 2.0]])
def test_stop_on_plateau_goes_on_counting_after_a_json_round_trip(history: list[float]) -> None:
    one, other = StopOnPlateau(patience=3), StopOnPlateau(patience=3)
    for reward in history:
        evaluate(one, reward)
    other.load_state_dict(json.loads(json.dumps(one.state_dict(), allow_nan=False)))
    assert (other.best, other.stale) == (one.best, one.stale)
    assert other.stale == max(len(history) - 1, 0)


def test_time_limit_pauses_at_the_first_collect_after_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: now)
    callback = TimeLimit(30.0)
    now = 129.9
    callback.on_collect(Progress())
    now = 130.0
    with pytest.raises(PauseTraining, match="time limit of 30 s"):
        callback.on_collect(Progress())


def test_only_the_clock_pauses_the_others_finish_a_run() -> None:
    assert issubclass(PauseTraining, StopTraining)
    patience = StopOnPlateau(1)
    evaluate(patience, 1.0)
    for callback in (StopAtReward(0.0), patience):
        with pytest.raises(StopTraining) as caught:
            evaluate(callback, 1.0)
        assert not isinstance(caught.value, PauseTraining)


def test_a_plain_callback_remembers_nothing() -> None:
    callback = Callback()
    callback.load_state_dict({})
    assert callback.state_dict() == {}


@pytest.mark.parametrize(
    ("start", "expected"), [(0, [12, 20, 31, 40]), (20, [31, 40]), (25, [31, 40]), (31, [40])]
)
def test_save_every_saves_once_per_interval_and_nothing_twice_after_a_resume(
    tmp_path: Path, start: int, expected: list[int]
) -> None:
    saved: list[Path] = []

    class Agent:
        save = staticmethod(saved.append)

    context: Any = SimpleNamespace(agent=Agent(), run_dir=tmp_path, start=Progress(timesteps=start))
    callback = SaveEvery(10)
    callback.on_start(context)
    for timesteps in (5, 12, 19, 20, 27, 31, 38, 40):
        if timesteps > start:
            callback.on_update(Progress(timesteps=timesteps), UpdateResult({}))
    assert saved == [tmp_path / "agents" / f"step_{timesteps}" for timesteps in expected]
