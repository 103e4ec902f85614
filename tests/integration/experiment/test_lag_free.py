"""lag free: groups collect all the time. Results depend on the speed of the machine, but no step is lost or changed."""

import json
import os
import signal
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rl_training.experiment import hosting
from rl_training.experiment.console import Console
from rl_training.experiment.resume import resume
from rl_training.experiment.start import NOT_REPRODUCIBLE, train
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.engines.process import ProcessCrew
from rl_training.runtime.scheduled_sampler import TICKETS_AT_ONCE, ScheduledSampler
from support.callbacks import StopAtUpdate

ENGINES = [
    {"engine": "local"},
    {"engine": "process", "num_samplers": 1},
    {"engine": "process", "num_samplers": 2},
]


class Counter(gymnasium.Env[Any, Any]):
    """Counts its steps: the observation and the reward; an episode has as many steps as `length`."""

    observation_space = spaces.Box(0, 10_000, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 1_000) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.time = 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return self._observation(), 1.0, self.time == self.length, False, {}

    def _observation(self) -> Any:
        return np.array([self.time], np.float32)


class Witness(Callback):
    """Keeps what the learner saw [T, N] of every rollout."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_rollout(self, batch: Any) -> None:
        self.seen.append(batch.obs.numpy().reshape(-1, 4).copy())


def free(tiny: Any, algo: str = "ppo", **settings: Any) -> Any:
    return tiny(
        algo,
        **{"num_envs": 4, "env_groups": 2, "lag": "free", "total_timesteps": 1280, "num_eval_episodes": 1}
        | settings,
    )


def lags(run_dir: Any, rows: Any) -> list[float]:
    return [row["rollout/policy_lag_max"] for row in rows(run_dir / "metrics.jsonl")]


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_the_learner_sees_every_step_once_and_in_order(tiny, rows, engine):
    """A group that is ahead must not overwrite the rollout that the learner reads."""
    witness = Witness()
    run = train(free(tiny, **engine), factory=Counter, callbacks=[witness]).run_dir
    steps = np.concatenate(witness.seen)
    np.testing.assert_array_equal(steps, np.repeat(np.arange(320.0)[:, None], 4, axis=1))
    assert max(lags(run, rows)) <= TICKETS_AT_ONCE
    assert {row["rollout/dropped"] for row in rows(run / "metrics.jsonl")} == {0.0}


def test_rollouts_of_episodes_that_end_fit_together(tiny):
    witness = Witness()
    config = free(tiny, engine="process", num_samplers=2)
    train(config, factory=lambda: Counter(7), callbacks=[witness])
    steps = np.concatenate(witness.seen)
    np.testing.assert_array_equal(steps, np.repeat(np.arange(320.0)[:, None] % 7, 4, axis=1))


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_older_rollouts_than_max_policy_lag_are_dropped(tiny, rows, engine):
    witness = Witness()
    config = free(tiny, max_policy_lag=1, **engine)
    run = train(config, factory=Counter, callbacks=[witness]).run_dir
    assert max(lags(run, rows)) <= 1
    steps = np.concatenate(witness.seen)
    assert len(steps) == 320, "only what is learned from counts"
    assert (np.diff(steps, axis=0) >= 1).all()
    if engine["engine"] == "local":  # it is ahead of every update
        assert rows(run / "metrics.jsonl")[-1]["rollout/dropped"] > 0
        assert steps.max() > 320


def test_no_return_spans_a_dropped_rollout(tiny, monkeypatch):
    samplers: list[ScheduledSampler] = []
    build = hosting.CrewBuilder.sampler

    def remember(self: Any, *args: Any, **kwargs: Any) -> Any:
        samplers.append(build(self, *args, **kwargs))
        return samplers[-1]

    monkeypatch.setattr(hosting.CrewBuilder, "sampler", remember)
    config = free(
        tiny, "dqn", max_policy_lag=1, n_step=3, train_freq=8, learning_starts=8, total_timesteps=400
    )
    train(config, factory=Counter)
    assert samplers[0]._dropped > 0
    buffer: Any = samplers[0].source.buffer
    kept = buffer.rows[: len(buffer)]
    assert len(kept) > 50
    np.testing.assert_array_equal(kept["next_obs"] - kept["obs"], np.full((len(kept), 1), 3.0))


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_a_paused_run_continues_with_the_step_after_the_last_one(tiny, rows, engine):
    first, then = Witness(), Witness()
    config = free(tiny, **engine)
    paused = train(config, factory=Counter, callbacks=[first, StopAtUpdate(640)])
    assert paused.paused
    resume(paused.run_dir, factory=Counter, callbacks=[then])
    steps = np.concatenate(first.seen + then.seen)
    np.testing.assert_array_equal(steps, np.repeat(np.arange(320.0)[:, None], 4, axis=1))
    assert json.loads((paused.run_dir / "metadata.json").read_text())["reproducible"] is False


class Killer(Callback):
    """Kills a process of the crew at every third update."""

    def __init__(self) -> None:
        self.crew: ProcessCrew | None = None
        self.updates = self.killed = 0

    def on_update(self, progress: Any, result: Any) -> None:
        self.updates += 1
        assert self.crew is not None
        process = self.crew._hosts[self.killed % 2]
        if self.updates % 3 == 0 and process is not None:
            os.kill(process.pid, signal.SIGKILL)
            self.killed += 1


@pytest.mark.fault
def test_a_lost_process_loses_and_repeats_no_step(tiny, rows, monkeypatch):
    killer, witness, build = Killer(), Witness(), ProcessCrew.__init__

    def remember(self: ProcessCrew, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        killer.crew = self

    monkeypatch.setattr(ProcessCrew, "__init__", remember)
    config = free(tiny, engine="process", num_samplers=2)
    with pytest.warns(UserWarning, match=r"sampler \d \(group \d\) died"):
        run = train(config, factory=Counter, callbacks=[witness, killer]).run_dir
    assert killer.killed >= 3
    steps = np.concatenate(witness.seen)
    np.testing.assert_array_equal(steps, np.repeat(np.arange(320.0)[:, None], 4, axis=1))
    assert max(lags(run, rows)) <= config.max_policy_lag


class Listening(Console):
    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)


@pytest.mark.parametrize(("lag", "told"), [(0, False), (1, False), ("free", True)])
def test_a_run_says_that_it_is_not_reproducible(tiny, lag, told):
    console = Listening()
    run = train(tiny("ppo", lag=lag), console=console).run_dir
    assert (NOT_REPRODUCIBLE in console.notices) is told
    assert json.loads((run / "metadata.json").read_text())["reproducible"] is not told
