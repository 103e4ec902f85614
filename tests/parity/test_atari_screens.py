"""The reference scripts play Atari games as the package does: the same observations, rewards, ends and lost lives."""

from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from parity_harness import load_script

from rl_training.config import TrainConfig
from rl_training.envs.preprocessing.atari import AtariPreprocessing, single_frames

pytest.importorskip("ale_py", reason="ale-py is not installed: the extra atari brings it")
pytest.importorskip("cv2", reason="OpenCV is not installed: the extra atari brings it")

STEPS = 400


@pytest.fixture(params=["ppo_breakout_atari_reference", "dqn_breakout_atari_reference"])
def script(request: pytest.FixtureRequest) -> ModuleType:
    return load_script(request.param)


def package_game(env_id: str, noop_max: int) -> AtariPreprocessing:
    config = TrainConfig(algo="ppo", env_id=env_id, preprocessing="atari", noop_max=noop_max)
    return AtariPreprocessing(gymnasium.make(env_id, **single_frames(env_id, {})), config)


# Breakout has five lives, Pong has none
@pytest.mark.parametrize(("env_id", "noop_max"), [("BreakoutNoFrameskip-v4", 0), ("PongNoFrameskip-v4", 30)])
def test_same_actions_show_pay_and_cut_the_same(script: ModuleType, env_id: str, noop_max: int) -> None:
    theirs, ours = script.AtariGame(env_id, noop_max), package_game(env_id, noop_max)
    assert theirs.observation_space == ours.observation_space
    assert theirs.action_space == ours.action_space
    rng = np.random.default_rng(0)
    games, lives_lost, score = 0, 0, 0.0
    obs, expected = theirs.reset(seed=games)[0], ours.reset(seed=games)[0]
    assert_same_pixels(obs, expected)
    for _ in range(STEPS):
        action = int(rng.integers(theirs.action_space.n))
        obs, reward, terminated, truncated, info = theirs.step(action)
        expected, *rest, expected_info = ours.step(action)
        assert [reward, terminated, truncated] == rest
        assert info["life_lost"] == expected_info.get("cut_bootstrap", False)
        assert_same_pixels(obs, expected)
        score += abs(reward)
        lives_lost += info["life_lost"]
        if terminated or truncated:
            games += 1
            assert_same_pixels(theirs.reset(seed=games)[0], ours.reset(seed=games)[0])
    assert score > 0
    if "Breakout" in env_id:
        assert games > 0
        assert lives_lost >= 4 * games, "a game that has lives must go on after one was lost"


def assert_same_pixels(obs: Any, expected: Any) -> None:
    assert obs.dtype == expected.dtype == np.uint8
    np.testing.assert_array_equal(obs, expected)
