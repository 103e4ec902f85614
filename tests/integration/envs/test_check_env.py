"""`check_env`: every problem before a run, in sentences, and what is worth knowing."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import rl_training


class Odd(gymnasium.Env[Any, Any]):
    """Ten steps of nothing; `fault` says what is wrong."""

    observation_space: Any = spaces.Box(-1, 1, (3,), np.float32)
    action_space: Any = spaces.Discrete(2)
    count_of_all = 0

    def __init__(self, fault: str = "", length: int = 10) -> None:
        self.fault, self.length = fault, length
        if fault == "spaces":
            self.observation_space = spaces.Dict({"a": spaces.Text(3), "b": spaces.Text(3)})
            self.action_space = spaces.Text(3)
        if fault == "cube":
            self.observation_space = spaces.Box(0, 255, (10, 10, 10), np.uint8)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        reward = {"shape": np.ones(2), "large": 5e3}.get(self.fault, 1.0)
        return self.observe(), reward, self.count >= self.length, False, {}

    def observe(self) -> Any:
        Odd.count_of_all += 1
        return {
            "nan": np.full(3, np.nan, np.float32),
            "outside": np.full(3, 7.0, np.float32),
            "whim": np.full(3, 1 / Odd.count_of_all, np.float32),
        }.get(self.fault, np.zeros(3, np.float32))


def test_a_good_one_is_told_its_facts_and_algorithms():
    report = rl_training.check_env("CartPole-v1")
    assert report.ok
    assert report.algorithms == ["ppo", "a2c", "dqn", "recurrent_ppo"]
    assert report.facts["time limit"] == "500 steps"
    assert report.facts["rewards"] == "1 to 1"
    assert report.facts["deterministic"].startswith("yes")
    assert str(report).endswith("ok")
    assert "sac" in rl_training.check_env("Pendulum-v1").algorithms


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("spaces", ["Text (entry 'a')", "Text (entry 'b')", "action space Text is not supported"]),
        ("nan", ["not finite"]),
        ("shape", ["a reward of shape (2,)", "LinearReward"]),
    ],
)
def test_problems_are_told_all_at_once(fault, words):
    report = rl_training.check_env(lambda: Odd(fault))
    assert not report.ok
    assert all(word in "\n".join(report.problems) for word in words)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("outside", "outside the bounds of its space"),
        ("large", "normalize-reward"),
        ("whim", "may not be exact"),
    ],
)
def test_what_is_worth_knowing_is_remarked(fault, words):
    report = rl_training.check_env(lambda: Odd(fault))
    assert report.ok
    assert words in "\n".join(report.remarks)


def test_an_endless_one_is_remarked():
    assert any("no time limit" in text for text in rl_training.check_env(lambda: Odd(length=10**9)).remarks)


def test_masks_are_heeded_and_remarked():
    report = rl_training.check_env("rl_training.envs.tasks:rl_training/Locks-v0")
    assert report.ok
    assert any("info['action_mask']" in text for text in report.remarks)


def test_one_itself_is_checked_and_still_open():
    env = gymnasium.make("CartPole-v1")
    report = rl_training.check_env(env)
    assert report.ok
    assert any("give a function that builds it" in text for text in report.remarks)
    env.reset()
    env.step(0)


def test_what_cannot_be_built_is_a_problem():
    assert "NoSuchThing" in rl_training.check_env("NoSuchThing-v0").problems[0]


def test_images_that_a_run_could_not_read_are_a_problem():
    """Ten of everything: nobody can know which of them are the channels."""
    report = rl_training.check_env(lambda: Odd("cube"))
    assert "image_channels" in report.problems[0]


def test_it_leaves_the_global_generators_alone():
    np.random.seed(3)
    before = np.random.get_state()[1].tolist()
    rl_training.check_env(lambda: Odd("whim"))
    assert np.random.get_state()[1].tolist() == before


class TestTheCommand:
    def test_good_and_bad_have_exit_codes(self, cli):
        good = cli("check-env", "CartPole-v1")
        assert (good.code, good.out.splitlines()[-1]) == (0, "ok")
        bad = cli("check-env", "--env-factory", f"{__name__}:broken")
        assert bad.code == 2
        assert "problem: " in bad.out

    def test_arguments_reach_the_environment(self, cli):
        assert "30 steps" in cli("check-env", "CartPole-v1", "--env-kwargs", "{max_episode_steps: 30}").out

    def test_none_is_told_how(self, cli):
        outcome = cli("check-env")
        assert outcome.code == 2
        assert "check-env CartPole-v1" in outcome.sentence


def broken() -> Odd:
    return Odd("shape")
