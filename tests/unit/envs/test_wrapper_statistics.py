"""Running statistics of wrappers: part of an environment's state, and no part of an evaluation's."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TimeLimit
from records import DrawingEnv

from rl_training.config import TrainConfig
from rl_training.envs.episodes import SeededEpisodes
from rl_training.envs.factory import make_vector_env
from rl_training.envs.stepper import VectorStepper, saved_statistics
from rl_training.envs.wrapper_statistics import WrapperStatistics, statistics_from, statistics_state

CONFIG = TrainConfig(algo="ppo", env_id="Drawing", seed=5)


def normalised() -> gymnasium.Env[Any, Any]:
    return TimeLimit(NormalizeReward(NormalizeObservation(DrawingEnv())), 50)


def make_stepper(num_envs: int = 2, backend: str = "sync") -> VectorStepper:
    return VectorStepper(make_vector_env(CONFIG, num_envs, factory=normalised, backend=backend))


def moved(stepper: VectorStepper, steps: int) -> list[Any]:
    seen = []
    for _ in range(steps):
        stepper.step(np.zeros(stepper.spec.num_envs, np.int64))
        seen.append((np.array(stepper.out.obs).tolist(), stepper.out.reward.tolist()))
    return seen


def statistics(stepper: VectorStepper) -> list[Any]:
    return [
        {
            name: {part: np.asarray(value).tolist() for part, value in parts.items()}
            for name, parts in each.items()
        }
        for each in stepper.statistics()
    ]


def test_statistics_are_found_anywhere_in_the_chain() -> None:
    found = WrapperStatistics(normalised()).read()
    assert set(found) == {"1.return_rms", "1.discounted_reward", "2.obs_rms"}
    assert not WrapperStatistics(TimeLimit(DrawingEnv(), 5))


def test_what_was_read_is_a_copy_and_can_be_put_back() -> None:
    env = normalised()
    kept = WrapperStatistics(env)
    env.reset(seed=1)
    env.step(0)
    before = kept.read()
    obs_rms = env.env.env.obs_rms  # type: ignore[attr-defined]
    mean, count = obs_rms.mean.copy(), obs_rms.count
    obs_rms.mean += 1.0
    env.step(0)
    kept.write(statistics_from(statistics_state(before)))
    np.testing.assert_array_equal(obs_rms.mean, mean)
    assert obs_rms.mean.dtype == np.float32
    assert obs_rms.count == count
    assert type(obs_rms.count) is float, "NumPy's number would turn float32 into float64 from here on"


def test_statistics_of_another_shape_are_left_out() -> None:
    env = normalised()
    kept = WrapperStatistics(env)
    kept.write(
        {"2.obs_rms": {"mean": np.ones(7), "var": np.full(3, 4.0, np.float32)}, "9.other": {"mean": 1.0}}
    )
    assert kept.read()["2.obs_rms"]["mean"].tolist() == [0, 0, 0]
    assert kept.read()["2.obs_rms"]["var"].tolist() == [4, 4, 4]


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_a_resumed_environment_normalises_as_the_uninterrupted_one(backend: str) -> None:
    first, second = make_stepper(backend=backend), make_stepper(backend=backend)
    try:
        first.reset()
        moved(first, 9)
        state = first.state_dict()
        assert max(state["lengths"]) > 0
        assert second.resume(state) == []
        assert statistics(second) == statistics(first)
        assert statistics(second)[0]["2.obs_rms"]["count"] > 9, "they must span all episodes"
        assert moved(second, 9) == moved(first, 9)
        assert statistics(second) == statistics(first)
    finally:
        first.close()
        second.close()


def test_two_resumes_within_one_episode_replay_it_from_the_same_statistics() -> None:
    """The second replays from what the first resumed environment saved of its reset."""
    first, second, third = make_stepper(), make_stepper(), make_stepper()
    first.reset()
    moved(first, 9)
    state = first.state_dict()
    assert any(
        length and episode for length, episode in zip(state["lengths"], state["episodes"], strict=True)
    )
    assert second.resume(state) == []
    assert third.resume(second.state_dict()) == []
    assert statistics(third) == statistics(first)
    assert moved(third, 9) == moved(first, 9)


def test_an_environment_without_such_wrappers_saves_none() -> None:
    stepper = VectorStepper(make_vector_env(CONFIG, 2, factory=DrawingEnv))
    stepper.reset()
    assert not {"statistics", "statistics_at_reset"} & set(stepper.state_dict())
    assert saved_statistics({}) == []


def test_other_environments_take_the_statistics_and_do_not_change_them() -> None:
    source, target = make_stepper(2), make_stepper(3)
    source.reset()
    moved(source, 9)
    theirs = statistics(source)
    assert theirs[0] != theirs[1]
    for _ in range(2):
        target.use_statistics(source.statistics())
        target.reset()
        moved(target, 7)
        for ours, expected in zip(statistics(target), [theirs[0], theirs[1], theirs[0]], strict=True):
            for name in ("2.obs_rms", "1.return_rms"):
                assert ours[name] == expected[name]
    target.use_statistics(saved_statistics(source.state_dict()))
    target.reset()
    assert statistics(target)[1]["2.obs_rms"] == theirs[1]["2.obs_rms"]


def test_an_environment_that_is_lost_keeps_its_statistics() -> None:
    source, target = make_stepper(1), make_stepper(1)
    source.reset()
    moved(source, 9)
    state = source.state_dict()
    state["seen"] = [1]
    assert target.resume(state) == [0]
    count = statistics(target)[0]["2.obs_rms"]["count"]
    assert (
        count == statistics(source)[0]["2.obs_rms"]["count"] + 1
    )  # the first observation of its new episode


def test_a_plain_environment_pays_nothing_for_it() -> None:
    env = SeededEpisodes(DrawingEnv(), seed=1, env_index=0)
    env.reset()
    assert env.snapshot().statistics == {}
    assert env.snapshot().statistics_at_reset == {}


class Welford:
    def __init__(self) -> None:
        self.mean, self.m2, self.count = 0.0, 0.0, 0

    @property
    def var(self) -> float:
        return self.m2 / max(self.count, 1)


class Dividing(Welford):
    @property
    def var(self) -> float:
        return self.m2 / self.count


class Keeping(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: Any, kept: Any) -> None:
        super().__init__(env)
        self.kept = kept


@pytest.mark.parametrize("kept", [Welford(), Dividing()])
def test_moments_that_cannot_be_set_are_no_statistics(kept: Any) -> None:
    found = WrapperStatistics(Keeping(gymnasium.make("CartPole-v1"), kept))
    assert not found
    assert found.read() == {}
