"""Environments are brought back by playing their unfinished episodes again."""

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, VectorEnv
from records import CountingEnv, DrawingEnv

from rl_training.config import TrainConfig
from rl_training.core.state import join_state, split_state
from rl_training.core.types import leaves
from rl_training.envs.episodes import SeededEpisodes
from rl_training.envs.factory import make_vector_env
from rl_training.envs.stepper import VectorStepper

OBSERVATIONS = {
    "box": spaces.Box(-9.0, 9.0, (2,), np.float32),
    "discrete": spaces.Discrete(50, start=-3),
    "dict": spaces.Dict({"a": spaces.Box(-9.0, 9.0, (2, 2), np.float64), "b": spaces.MultiBinary(4)}),
    "nested": spaces.Dict(
        {
            "in": spaces.Dict({"x": spaces.Box(-9.0, 9.0, (1,))}),
            "pair": spaces.Tuple([spaces.Discrete(9)] * 2),
        }
    ),
}
ACTIONS = {
    "discrete": spaces.Discrete(5, start=2),
    "box": spaces.Box(-1.0, 3.0, (2,), np.float32),
    "multidiscrete": spaces.MultiDiscrete([3, 4]),
    "multibinary": spaces.MultiBinary(3),
}


class WalkEnv(gymnasium.Env[Any, Any]):
    """Random observations whose generator is stirred by every action: another action, another future."""

    def __init__(self, observation: str = "box", action: str = "discrete", length: int = 40) -> None:
        self.observation_space = copy.deepcopy(OBSERVATIONS[observation])
        self.action_space = copy.deepcopy(ACTIONS[action])
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.count += 1
        stirred = (float(np.sum(action)), float(self.np_random.random()))
        self.observation_space.seed(hash(stirred) % 2**31)
        return self.observation_space.sample(), stirred[1], self.count >= self.length, False, {}


class WhimEnv(DrawingEnv):
    """Shows numbers that no seed decides, so it cannot be replayed; `whims` says from which step on."""

    def __init__(self, whims: int = 0, length: int = 9) -> None:
        super().__init__()
        self.whims, self.length, self.count = whims, length, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.count = 0
        obs, info = super().reset(seed=seed)
        self.left = self.length
        return obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return super().step(action)

    def _draw(self) -> Any:
        drawn = super()._draw()
        return np.random.default_rng().random(3, np.float32) if self.count > self.whims else drawn


def same(one: Any, other: Any) -> bool:
    """Equal to the last bit, whatever the nesting."""
    return data_equivalence(one, other, exact=True)


def actions_of(env: gymnasium.Env[Any, Any], count: int) -> list[Any]:
    return [env.action_space.sample() for _ in range(count)]


def replayed(original: SeededEpisodes, fresh: SeededEpisodes) -> tuple[Any, dict[str, Any]]:
    episode, actions = original.episode_state()
    assert isinstance(episode, int)
    fresh.resume_at = episode, torch.from_numpy(actions).numpy()  # as a checkpoint holds them
    return fresh.reset()


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("steps", [0, 1, 6])
def test_an_episode_is_replayed_from_its_number_and_its_actions(
    observation: str, action: str, steps: int
) -> None:
    build = partial(SeededEpisodes, seed=3, env_index=2)
    env, fresh = (build(WalkEnv(observation, action)) for _ in range(2))
    for _ in range(3):  # the third episode of its stream
        obs, _ = env.reset()
    for choice in actions_of(env, steps):
        obs, *_ = env.step(choice)
    assert same(replayed(env, fresh)[0], obs)
    assert fresh.episode == env.episode == 2
    again, kept = fresh.episode_state(), env.episode_state()
    assert again[0] == kept[0]
    assert np.array_equal(again[1], kept[1])
    assert again[1].dtype == kept[1].dtype == env.action_space.dtype
    for choice in actions_of(env, 5):
        assert same(env.step(choice), fresh.step(choice))
    assert same(env.reset(), fresh.reset())
    assert fresh.episode == 3


def test_the_state_of_a_wrapper_comes_back_with_the_episode() -> None:
    """A time limit inside counts the replayed steps; a replay that only restored numbers would run on."""
    build = partial(SeededEpisodes, seed=1, env_index=0)
    env, fresh = (build(gymnasium.wrappers.TimeLimit(WalkEnv(), 8)) for _ in range(2))
    env.reset()
    for choice in actions_of(env, 5):
        env.step(choice)
    replayed(env, fresh)
    ends = []
    for choice in actions_of(env, 3):
        ends.append(env.step(choice)[3])
        fresh.step(choice)
    assert ends == [False, False, True]
    assert fresh.env.get_wrapper_attr("_elapsed_steps") == 8


def test_a_frame_stack_inside_comes_back_too() -> None:
    build = partial(SeededEpisodes, seed=1, env_index=0)
    env, fresh = (build(gymnasium.wrappers.FrameStackObservation(DrawingLong(), 4)) for _ in range(2))
    env.reset()
    for _ in range(6):
        obs = env.step(0)[0]
    assert same(replayed(env, fresh)[0], obs)


class DrawingLong(DrawingEnv):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed)
        self.left = 30
        return obs, info


def test_the_actions_that_are_kept_are_copies_and_those_of_this_episode_alone() -> None:
    env = SeededEpisodes(WalkEnv(action="box", length=3), seed=0, env_index=0)
    env.reset()
    memory = np.zeros(2, np.float32)
    for value in (0.0, 1.0):
        memory[:] = value  # a vector environment may reuse its memory
        env.step(memory)
    assert env.episode_state()[1].tolist() == [[0.0, 0.0], [1.0, 1.0]]
    env.step(memory)
    env.reset()
    episode, actions = env.episode_state()
    assert (episode, actions.shape) == (1, (0, 2))


def test_a_replay_happens_once() -> None:
    env = SeededEpisodes(DrawingLong(), seed=0, env_index=0)
    env.resume_at = 4, np.zeros(3, np.int64)
    env.reset()
    assert env.resume_at is None
    assert env.episode == 4
    env.reset()
    assert env.episode == 5
    assert len(env.episode_state()[1]) == 0


def test_a_replay_that_ends_too_early_begins_the_next_episode() -> None:
    env = SeededEpisodes(CountingEnv(lengths=(2,)), seed=0, env_index=0)
    env.resume_at = 0, np.zeros(5, np.int64)
    env.reset()
    assert env.episode == 1
    assert env.episode_state()[1].tolist() == []


def test_faults_are_counted_in_steps_of_the_episode_after_a_replay_too() -> None:
    class Breaking(CountingEnv):
        def step(self, action: Any) -> Any:
            if self.count == 4:
                raise RuntimeError("motor burnt")
            return super().step(action)

    env = SeededEpisodes(Breaking(lengths=(9,)), seed=0, env_index=0)
    env.resume_at = 6, np.zeros(3, np.int64)
    env.reset()
    env.step(0)
    with pytest.raises(Exception, match="step 5 of its episode 6"):
        env.step(0)


def config(backend: str) -> TrainConfig:
    return TrainConfig(algo="ppo", env_id="Test", seed=5, env_backend=backend)


@contextmanager
def steppers(backend: str, factory: Any, num_envs: int, count: int = 2) -> Iterator[list[VectorStepper]]:
    built: list[VectorStepper] = []
    try:
        for _ in range(count):
            built.append(VectorStepper(make_vector_env(config(backend), num_envs, factory=factory)))
        yield built
    finally:
        for stepper in built:
            stepper.close()


def through_a_checkpoint(state: dict[str, Any]) -> dict[str, Any]:
    tensors, plain = split_state(state)
    return join_state(tensors, json.loads(json.dumps(plain)))


def snapshot(stepper: VectorStepper) -> dict[str, Any]:
    out = stepper.out
    arrays = {name: getattr(out, name).tolist() for name in ("reward", "terminated", "truncated", "valid")}
    finals = [array[out.ended].tolist() for _, array in leaves(out.final_obs)]
    return arrays | {"obs": [array.tolist() for _, array in leaves(out.obs)], "final_obs": finals}


def policy_actions(stepper: VectorStepper, count: int) -> list[Any]:
    """Actions in policy units, the same for every stepper."""
    rng, space = np.random.default_rng(9), stepper.spec.action_space
    n = stepper.spec.num_envs
    if isinstance(space, spaces.Box):
        return [rng.normal(size=(n, *space.shape)).astype(np.float32) for _ in range(count)]
    if isinstance(space, spaces.Discrete):
        return [rng.integers(space.n, size=n) for _ in range(count)]
    high = space.nvec if isinstance(space, spaces.MultiDiscrete) else 2
    return [rng.integers(high, size=(n, *(space.shape or ()))) for _ in range(count)]


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("steps", [0, 1, 13])
@pytest.mark.parametrize(
    ("observation", "action"),
    [("box", "discrete"), ("nested", "box"), ("dict", "multidiscrete"), ("discrete", "multibinary")],
)
def test_a_stepper_is_resumed_bit_for_bit_and_stays_so(
    backend: str, steps: int, observation: str, action: str
) -> None:
    """Episodes of five steps: 13 steps later all are in the middle of their third."""
    factory = partial(WalkEnv, observation, action, length=5)
    with steppers(backend, factory, 3) as (one, other):
        one.reset()
        choices = policy_actions(one, steps + 17)
        for choice in choices[:steps]:
            one.step(choice)
        state = through_a_checkpoint(one.state_dict())
        assert state["lengths"] == [steps % 5] * 3
        assert other.resume(state) == []
        assert other.vector_steps == one.vector_steps == steps
        for (_, seen), (_, expected) in zip(leaves(other.out.obs), leaves(one.out.obs), strict=True):
            assert np.array_equal(seen, expected)
        for choice in choices[steps:]:
            one.step(choice)
            other.step(choice)
            assert snapshot(other) == snapshot(one)


@pytest.mark.parametrize(("before", "after"), [("sync", "async"), ("async", "sync")])
def test_a_state_of_one_backend_resumes_another(before: str, after: str) -> None:
    with steppers(before, DrawingEnv, 3, 1) as (one,), steppers(after, DrawingEnv, 3, 1) as (other,):
        one.reset()
        for _ in range(7):
            one.step(np.zeros(3, np.int64))
        assert other.resume(through_a_checkpoint(one.state_dict())) == []
        for _ in range(10):
            one.step(np.zeros(3, np.int64))
            other.step(np.zeros(3, np.int64))
            assert snapshot(other) == snapshot(one)


def test_taking_the_state_changes_nothing() -> None:
    with steppers("sync", WalkEnv, 2) as (one, other):
        for stepper in (one, other):
            stepper.reset()
        for choice in policy_actions(one, 12):
            one.state_dict()
            one.step(choice)
            other.step(choice)
            assert snapshot(other) == snapshot(one)


class MixedFactory:
    """Builds environments of which the second one cannot be replayed."""

    def __init__(self) -> None:
        self.built = 0

    def __call__(self) -> gymnasium.Env[Any, Any]:
        self.built += 1
        return WhimEnv(whims=0 if self.built % 3 == 2 else 99)


def test_an_environment_that_is_not_a_function_of_its_seed_goes_on_afresh_and_is_named() -> None:
    with steppers("sync", MixedFactory(), 3) as (one, other):
        one.reset()
        for _ in range(4):
            one.step(np.zeros(3, np.int64))
        state = one.state_dict()
        assert other.resume(state) == [1]
        assert isinstance(one.out.obs, np.ndarray)
        assert isinstance(other.out.obs, np.ndarray)
        assert np.array_equal(other.out.obs[[0, 2]], one.out.obs[[0, 2]])
        episodes, lengths = (other.state_dict()[name] for name in ("episodes", "lengths"))
        assert episodes == [0, 1, 0]  # not the start of the episode whose middle was lost
        assert lengths == [4, 0, 4]
        assert np.isfinite(other.out.obs).all()
        for _ in range(3):
            for stepper in (one, other):
                stepper.step(np.zeros(3, np.int64))
            assert np.array_equal(other.out.obs[[0, 2]], one.out.obs[[0, 2]])


class HalfWhim(WhimEnv):
    """The seed decides all that it shows but the last number."""

    def _draw(self) -> Any:
        whim, drawn = super()._draw(), np.zeros(3, np.float32)
        drawn[2] = whim[2]
        return drawn


def test_one_number_that_differs_is_enough_to_be_lost() -> None:
    with steppers("sync", HalfWhim, 2) as (one, other):
        one.reset()
        one.step(np.zeros(2, np.int64))
        assert isinstance(one.out.obs, np.ndarray)
        assert (one.out.obs[:, :2] == 0).all()
        assert other.resume(one.state_dict()) == [0, 1]


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_all_of_them_may_be_lost(backend: str) -> None:
    with steppers(backend, WhimEnv, 2) as (one, other):
        one.reset()
        for _ in range(4):
            one.step(np.zeros(2, np.int64))
        assert other.resume(one.state_dict()) == [0, 1]
        assert other.state_dict()["lengths"] == [0, 0]
        assert not other.out.ended.any()


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_streams_can_be_restarted(backend: str) -> None:
    with steppers(backend, DrawingEnv, 2, 1) as (stepper,):
        stepper.reset()
        first = np.array(stepper.out.obs)
        stepper.reset()
        assert not np.array_equal(stepper.out.obs, first)
        stepper.restart_streams()
        stepper.reset()
        assert np.array_equal(stepper.out.obs, first)


class Native(VectorEnv[Any, Any, Any]):
    """Stands for an environment's own vector implementation: nobody can look inside."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    num_envs = 2
    single_observation_space = spaces.Box(0, 1, (1,))
    single_action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.seeds: list[Any] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        return np.random.default_rng(seed).random((2, 1), np.float32), {}


def test_native_environments_say_that_they_cannot_be_resumed() -> None:
    stepper = VectorStepper(Native(), seed=3)
    assert not stepper.resumable
    assert stepper.state_dict() == {}
    stepper.reset()
    assert stepper.resume({}) == [0, 1]
    with steppers("sync", DrawingEnv, 1, 1) as (other,):
        assert other.resumable


def test_native_environments_get_another_seed_at_every_resume() -> None:
    def seeds_of(root: int, *streams: int) -> list[Any]:
        env = Native()
        stepper = VectorStepper(env, seed=root)
        stepper.reset()
        for stream in streams:
            stepper.change_seed(stream)
            stepper.resume({})
        return env.seeds

    assert seeds_of(3)[0] == 3
    found = seeds_of(3, 100) + seeds_of(3, 200)[1:] + seeds_of(4, 100)[1:]
    assert len(set(found)) == len(found)
    assert seeds_of(3, 100) == seeds_of(3, 100)


def test_a_seed_is_not_invented_where_the_environments_carry_their_own() -> None:
    with steppers("sync", DrawingEnv, 1, 1) as (stepper,):
        stepper.change_seed(100)
        assert stepper.seed is None
