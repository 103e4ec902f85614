"""EnvPool resets in the step after an end, and calls an end at the time limit a truncation: neither is passed on."""

from typing import Any

import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from rl_training.config import TrainConfig
from rl_training.core.types import StepArrays
from rl_training.envs.stepper import VectorStepper
from rl_training.envs.stepper_factory import training_stepper

pytestmark = pytest.mark.extra
pytest.importorskip("envpool", reason="envpool is not installed: run make test-extras")

RIGHT = np.ones(3, np.int64)


def stepper_of(**settings: Any) -> VectorStepper:
    given = {"algo": "ppo", "env_id": "CartPole-v1", "num_envs": 3, "env_backend": "envpool", "seed": 5}
    stepper = training_stepper(TrainConfig(**given | settings), None)
    assert isinstance(stepper, VectorStepper)
    stepper.reset()
    return stepper


def outcome_of(model: CartPoleEnv, obs: Any) -> tuple[Any, bool]:
    """Return what Gymnasium's CartPole says of a push to the right in this state."""
    model.reset()
    model.state = tuple(float(x) for x in obs)
    after, _, terminated, _, _ = model.step(1)
    return after, terminated


@pytest.mark.parametrize("limit", [5, 500])
def test_every_row_is_a_transition_of_the_environment(limit):
    """No row is a reset, final observations are true, and only a time limit is a truncation."""
    stepper, model = stepper_of(max_episode_steps=limit), CartPoleEnv()
    out, ends = stepper.out, 0
    for _ in range(60):
        before = np.array(out.obs)
        stepper.step(RIGHT)
        assert out.num_valid == 3
        assert (out.reward == 1.0).all()
        after = np.where(out.ended[:, None], np.asarray(out.final_obs), np.asarray(out.obs))
        for row in range(3):
            expected, terminated = outcome_of(model, before[row])
            np.testing.assert_allclose(after[row], expected, atol=1e-4)
            assert out.terminated[row] == terminated
        assert (np.abs(np.asarray(out.obs)[out.ended]) <= 0.05).all()
        ends += int(out.ended.sum())
        if limit == 5:
            assert not out.terminated.any()
    assert ends >= 12
    stepper.close()


def test_an_end_in_the_step_of_the_time_limit_is_a_termination():
    lengths = np.zeros(3, np.int64)
    stepper = stepper_of()
    while not stepper.out.ended[0]:
        stepper.step(RIGHT)
        lengths += 1
    limited = stepper_of(max_episode_steps=int(lengths[0]))
    for _ in range(int(lengths[0])):
        assert not limited.out.ended[0]
        limited.step(RIGHT)
    assert limited.out.terminated[0]
    assert not limited.out.truncated[0]


ATARI: dict[str, Any] = {
    "env_id": "ALE/Breakout-v5",
    "env_kwargs": {"repeat_action_probability": 0.0},
    "preprocessing": "atari",
    "num_envs": 2,
}


@pytest.mark.parametrize(
    ("num_steps", "settings", "least"),
    [
        (700, {}, {"terminated": 4, "cut": 15}),
        (300, {"frame_skip": 3, "image_size": 42, "grayscale": False}, {"terminated": 1, "cut": 6}),
        (130, {"max_episode_steps": 40, "frame_stack": 2}, {"truncated": 6, "cut": 4}),
        (200, {"fire_reset": False, "noop_max": 1, "terminal_on_life_loss": False}, {}),
        (400, {"env_id": "BreakoutNoFrameskip-v4", "env_kwargs": {}, "clip_reward": False}, {"cut": 8}),
    ],
)
def test_games_are_those_of_the_sync_backend_to_the_byte(num_steps, settings, least):
    """Frames, rewards, lost lives, FIRE after them, limits: EnvPool's first game has no no-ops with noop_max 1."""
    pytest.importorskip("cv2")
    envpool = stepper_of(**ATARI | {"noop_max": 1} | settings)
    sync = stepper_of(**ATARI | {"noop_max": 0} | settings | {"env_backend": "sync"})
    seen, rng = dict.fromkeys(("terminated", "truncated", "cut"), 0), np.random.default_rng(0)
    assert_same(envpool.out, sync.out, "at the start")
    for number in range(num_steps):
        actions = rng.integers(4, size=2)
        for stepper in (envpool, sync):
            stepper.step(actions)
        assert_same(envpool.out, sync.out, f"after step {number}")
        cut_off = sync.out.truncated
        np.testing.assert_array_equal(
            np.asarray(envpool.out.final_obs)[cut_off], np.asarray(sync.out.final_obs)[cut_off]
        )
        for name in seen:
            seen[name] += int(getattr(sync.out, name).sum())
    assert all(seen[name] >= count for name, count in least.items()), seen
    assert envpool.out.num_valid == 2


def assert_same(envpool: StepArrays, sync: StepArrays, when: str) -> None:
    for name in ("obs", "reward", "signal", "terminated", "truncated", "cut"):
        assert np.array_equal(getattr(envpool, name), getattr(sync, name)), f"{name} differs {when}"


def test_frames_of_a_limit_are_counted_without_no_ops():
    stepper = stepper_of(
        **ATARI | {"env_kwargs": {"max_num_frames_per_episode": 200}, "fire_reset": False, "noop_max": 30}
    )
    for number in range(1, 101):
        stepper.step(np.zeros(2, np.int64))
        assert stepper.out.truncated.tolist() == [number % 50 == 0] * 2
