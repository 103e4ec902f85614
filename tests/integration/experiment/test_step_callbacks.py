"""Callbacks that see every step and every batch, on every backend, exactly once, at no cost to those that do not."""

import gc
import sys
from typing import Any
from zlib import crc32

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.core.types import leaves
from rl_training.envs.info_keys import infos_by_row
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import Callback, PauseTraining, StopTraining
from rl_training.runtime.sampler import LocalSampler
from support.compared_runs import assert_same_run, crashed
from support.configs import OFFLINE, ONLINE


class Talker(gymnasium.Env[Any, Any]):
    """Five steps; the reward is the number of the step, and `info` tells it, too."""

    action_space = spaces.Discrete(3, start=1)

    def __init__(self, nested: bool = False, masked: bool = False) -> None:
        self.nested, self.masked = nested, masked
        box = spaces.Box(-9, 9, (2,), np.float32)
        self.observation_space: Any = spaces.Dict(a=box, b=spaces.Discrete(9)) if nested else box

    def _obs(self) -> Any:
        seen = np.array([self.count, self.kind], np.float32)
        return {"a": seen, "b": self.count} if self.nested else seen

    def _info(self, **told: Any) -> dict[str, Any]:
        return told | ({"action_mask": np.array([1, 1, 0], np.int8)} if self.masked else {})

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count, self.kind = 0, int(self.np_random.integers(1, 5))
        return self._obs(), self._info(number=-1)

    def step(self, action: Any) -> Any:
        self.count += 1
        told: dict[str, Any] = {"number": self.count, "inner": {"kind": self.kind}}
        if self.count == 5:
            told["text"] = "over"
        ended = self.count == 5
        return self._obs(), float(self.count), ended and self.kind < 3, ended, self._info(**told)


gymnasium.register("Talker-v0", entry_point=Talker)


class Watching(Callback):
    def __init__(self) -> None:
        self.steps: list[Any] = []

    def on_step(self, context: Any) -> None:
        self.steps.append(context)


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("kind", ["plain", "nested", "masked"])
def test_a_step_is_seen_as_it_was(tiny, backend, kind):
    watching = Watching()
    config = tiny(
        "ppo", env_id="Talker-v0", env_kwargs={} if kind == "plain" else {kind: True}, env_backend=backend
    )
    train(config.with_overrides(num_envs=3), callbacks=[watching])
    steps = watching.steps
    assert [step.timesteps for step in steps] == list(range(3, 97, 3))
    before = steps[0].observations
    for step in steps:
        for (key, now), (_, seen) in zip(leaves(step.observations), leaves(before), strict=True):
            assert np.array_equal(now, seen), key
        observed = step.observations["a"] if kind == "nested" else step.observations
        after = step.next_observations["a"] if kind == "nested" else step.next_observations
        assert observed.shape == after.shape == (3, 2)
        assert np.array_equal(after[:, 0], observed[:, 0] + 1)  # also where an episode ended
        assert np.array_equal(step.rewards, after[:, 0])
        ended = after[:, 0] == 5
        assert np.array_equal(step.terminations, ended & (after[:, 1] < 3))
        assert np.array_equal(step.truncations, ended & (after[:, 1] >= 3))
        assert [info["number"] for info in step.infos] == after[:, 0].tolist()
        assert [info["inner"]["kind"] for info in step.infos] == after[:, 1].tolist()
        assert [info.get("text") for info in step.infos] == ["over" if each else None for each in ended]
        assert set(step.actions.tolist()) <= ({1, 2} if kind == "masked" else {1, 2, 3})
        assert step.valid.all()
        masks = [[True, True, False]] * 3 if kind == "masked" else None
        assert (None if step.action_masks is None else step.action_masks.tolist()) == masks
        before = step.next_observations
        if ended.any():  # the next episodes begin elsewhere
            before = next(
                (later.observations for later in steps if later.timesteps == step.timesteps + 3), None
            )


def test_native_vectors_say_which_rows_only_reset(tiny):
    watching = Watching()
    config = tiny("a2c", env_id="CartPole-v1", env_backend="native", num_envs=4, total_timesteps=200)
    train(config, callbacks=[watching])
    valid = np.stack([step.valid for step in watching.steps])
    ended = np.stack([step.terminations | step.truncations for step in watching.steps])
    assert ended.any()
    assert np.array_equal(~valid[1:], ended[:-1])
    assert watching.steps[-1].timesteps == valid.sum()


def test_infos_of_a_vector_by_row():
    out: Any = type("Out", (), {"ended": np.array([False, True]), "any_ended": True})
    info = {
        "a": np.array([1, 2]), "_a": np.array([True, True]), "_own": np.array([3, 4]),
        "final_obs": 0, "final_info": {"a": np.array([0, 7]), "_a": np.array([False, True])},
    }  # fmt: skip
    assert infos_by_row(info, out, same_step=True) == [{"a": 1, "_own": 3}, {"a": 7}]
    assert infos_by_row(info, out, same_step=False) == [{"a": 1, "_own": 3}, {"a": 2, "_own": 4}]


def test_infos_of_a_vector_that_are_not_one_value_per_row():
    out: Any = type("Out", (), {"ended": np.array([False, False]), "any_ended": False})
    info = {
        "each": [1, 2], "all": 5, "zero": np.array(3), "text": "ab", "long": (1, 2, 3), "few": {1, 2}, "_few": True,
        7: [1, 2], "none": None, "part": {"a": np.array([1, 2]), "b": 4},
    }  # fmt: skip
    shared = {"all": 5, "zero": np.array(3), "text": "ab", "long": (1, 2, 3), "few": {1, 2}, "none": None}
    assert infos_by_row(info, out, same_step=True) == [
        {"each": value, "part": {"a": value, "b": 4}} | shared for value in (1, 2)
    ]


class Hashing(Callback):
    """Hashes every step and batch it sees, and remembers the hash across a resume."""

    def __init__(self) -> None:
        self.hash, self.steps, self.batches = 0, 0, 0

    def on_step(self, context: Any) -> None:
        self.steps += 1
        for array in (context.rewards, context.actions, context.observations, context.next_observations):
            self.hash = crc32(np.ascontiguousarray(array).tobytes(), self.hash)

    def on_rollout(self, batch: Any) -> None:
        self.batches += 1
        self.hash = crc32(batch.actions.numpy().tobytes(), self.hash)

    def state_dict(self) -> Any:
        return {"hash": self.hash, "steps": self.steps, "batches": self.batches}

    def load_state_dict(self, state: Any) -> None:
        self.hash, self.steps, self.batches = state["hash"], state["steps"], state["batches"]


@pytest.mark.parametrize("algo", ONLINE)
def test_a_resumed_run_sees_no_step_twice_and_loses_none(tiny, algo, rows):
    config = tiny(algo, checkpoint_every_timesteps=16)
    whole = Hashing()
    folder = train(config, callbacks=[whole]).run_dir
    killed = crashed(config, 48, callbacks=[Hashing()])
    again = Hashing()
    resume(killed, callbacks=[again])
    assert again.state_dict() == whole.state_dict()
    assert whole.steps == 32
    assert whole.batches > 0
    assert_same_run(killed, folder, rows)


@pytest.mark.parametrize("algo", OFFLINE)
def test_a_resumed_run_that_collects_nothing_sees_no_batch_twice_and_loses_none(tiny, algo, rows):
    config = tiny(algo, checkpoint_every_timesteps=4)
    whole = Hashing()
    folder = train(config, callbacks=[whole]).run_dir
    killed = crashed(config, 11, callbacks=[Hashing()])
    again = Hashing()
    resume(killed, callbacks=[again])
    assert again.state_dict() == whole.state_dict()
    assert (whole.steps, whole.batches) == (0, 16)
    assert_same_run(killed, folder, rows)


def test_watching_changes_nothing(tiny, rows):
    config = tiny("dqn")
    assert_same_run(train(config, callbacks=[Hashing()]).run_dir, train(config).run_dir, rows)


@pytest.mark.parametrize("event", ["on_step", "on_rollout"])
@pytest.mark.parametrize("error", [StopTraining, PauseTraining])
def test_it_may_end_the_run(tiny, event, error):
    class Enough(Callback):
        pass

    def stop(self: Any, seen: Any) -> None:
        raise error("enough")

    setattr(Enough, event, stop)
    result = train(tiny("ppo"), callbacks=[Enough()])
    assert (result.stop_reason, result.metrics["global_step"], result.paused) == (
        "enough",
        32,
        error is PauseTraining,
    )


def test_a_rollout_has_what_the_learner_sees(tiny):
    class Seeing(Callback):
        def on_rollout(self, batch: Any) -> None:
            self.batch = batch

    seeing = Seeing()
    train(tiny("ppo", total_timesteps=32), callbacks=[seeing])
    assert seeing.batch.advantages.shape == seeing.batch.returns.shape == (32,)
    assert torch.allclose(seeing.batch.advantages + seeing.batch.values, seeing.batch.returns)
    train(tiny("sac"), callbacks=[seeing])
    assert seeing.batch.next_obs.shape == (16, 3)  # two batches of eight
    assert seeing.batch.discounts.shape == (16,)


def test_nothing_is_paid_if_nobody_watches(tiny, monkeypatch):
    counts: dict[str, int] = {}
    recorders: dict[str, Any] = {}
    name, collect = "", LocalSampler.collect

    def counted(self: Any, *arguments: Any) -> Any:
        calls = 0

        def note(_: Any, event: str, __: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        gc.collect()
        gc.disable()  # it calls what it finds
        sys.setprofile(note)
        try:
            return collect(self, *arguments)
        finally:
            sys.setprofile(None)
            gc.enable()
            counts.setdefault(name, calls)
            recorders.setdefault(name, (type(self.recorder).__name__, self.stepper.out.watched is None))

    class Idle(Callback):
        def on_update(self, progress: Any, result: Any) -> None:
            pass

    monkeypatch.setattr(LocalSampler, "collect", counted)
    watchers = {"warm": [], "none": [], "idle": [Idle()], "watching": [Watching()]}
    for name in watchers:  # read by `counted`
        train(tiny("ppo", env_id="Talker-v0", total_timesteps=32), callbacks=watchers[name])
    assert recorders["none"] == recorders["idle"] == ("RolloutSource", True)
    assert recorders["watching"] == ("StepWatcher", False)
    assert counts["none"] == counts["idle"] < counts["watching"]
