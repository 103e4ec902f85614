"""The check before a run: what environments keep across resets is found, and nothing else is."""

import random
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TimeLimit
from records import CountingEnv, DrawingEnv

from rl_training.config import TrainConfig
from rl_training.envs.determinism import (
    EARLIER_EPISODES,
    MAX_STEPS,
    Finding,
    check_determinism,
    settle_rebuilding,
)

CONFIG = TrainConfig(algo="ppo", env_id="Drawing", seed=5)


class Drifting(DrawingEnv):
    """Starts where the episode before ended."""

    drift = 0.0

    def step(self, action: Any) -> Any:
        self.drift += 1.0
        return super().step(action)

    def _draw(self) -> Any:
        return super()._draw() + np.float32(self.drift)


class Whim(DrawingEnv):
    """Draws from a generator that nobody seeds, made in the constructor."""

    def __init__(self) -> None:
        super().__init__()
        self.own = np.random.default_rng()

    def _draw(self) -> Any:
        return self.own.random(3, np.float32)


class Curriculum(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Pays less with every episode."""

    episodes = 0

    def reset(self, **kwargs: Any) -> Any:
        self.episodes += 1
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, float(reward) / self.episodes, terminated, truncated, info


class Stuck(DrawingEnv):
    def step(self, action: Any) -> Any:
        raise RuntimeError("motor burnt")


def test_an_environment_that_keeps_nothing_is_left_alone() -> None:
    assert check_determinism(CONFIG, DrawingEnv) == Finding()


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_what_is_left_from_the_episode_before_is_found_and_cleared_by_building_anew(backend: str) -> None:
    finding = check_determinism(CONFIG.with_overrides(env_backend=backend), lambda: TimeLimit(Drifting(), 3))
    assert finding.rebuild
    assert finding.problems == []
    assert 0 < finding.seconds_per_rebuild < 1


def test_fresh_environments_that_differ_are_named() -> None:
    finding = check_determinism(CONFIG, Whim)
    assert not finding.rebuild
    (problem,) = finding.problems
    assert "two new ones with the same seed and actions differ after 0 steps in the observation" in problem


def test_what_building_anew_does_not_clear_is_named() -> None:
    finding = check_determinism(CONFIG, lambda: Curriculum(DrawingEnv()))
    assert not finding.rebuild
    (problem,) = finding.problems
    assert "even if it is rebuilt" in problem
    assert "differ after 1 steps in the reward" in problem


def test_running_statistics_of_wrappers_are_no_hindrance() -> None:
    """They are saved and restored."""
    assert check_determinism(CONFIG, lambda: NormalizeReward(NormalizeObservation(DrawingEnv()))) == Finding()


@pytest.mark.parametrize(
    ("env_id", "seed"), [("BipedalWalker-v3", 0), ("BipedalWalker-v3", 1), ("BipedalWalkerHardcore-v3", 0)]
)
def test_a_world_that_is_reused_is_found(env_id: str, seed: int) -> None:
    pytest.importorskip("Box2D")
    finding = check_determinism(CONFIG.with_overrides(env_id=env_id, seed=seed))
    assert finding.rebuild
    assert finding.problems == []


@pytest.mark.parametrize("env_id", ["LunarLander-v3", "CartPole-v1"])
def test_a_world_that_is_made_for_every_episode_needs_no_other_environment(env_id: str) -> None:
    pytest.importorskip("Box2D")
    assert check_determinism(CONFIG.with_overrides(env_id=env_id)) == Finding()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_failing_environment_is_left_to_the_run(bad: float) -> None:
    assert check_determinism(CONFIG, Stuck) == Finding()
    assert check_determinism(CONFIG.with_overrides(env_id="NoSuchEnvironment-v0")) == Finding()
    poison = {(episode, 1): bad for episode in range(1, 9)}  # the first one of a fresh environment is fine
    assert check_determinism(CONFIG, lambda: CountingEnv(poisoned_rewards=poison)) == Finding()


def test_one_environment_lives_at_a_time_and_takes_a_bounded_number_of_steps() -> None:
    alive, most, steps = 0, 0, 0

    class Endless(CountingEnv):
        def __init__(self) -> None:
            super().__init__(lengths=(10**9,))
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def step(self, action: Any) -> Any:
            nonlocal steps
            steps += 1
            return super().step(action)

        def close(self) -> None:
            nonlocal alive
            alive -= 1

    check_determinism(CONFIG, Endless)
    assert (alive, most) == (0, 1)
    assert 0 < steps <= MAX_STEPS * (2 + 2 * (EARLIER_EPISODES + 1))


def test_global_generators_are_left_as_they_were() -> None:
    class Dice(DrawingEnv):
        def step(self, action: Any) -> Any:
            random.random(), np.random.random(), torch.rand(())
            return super().step(action)

    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    expected = random.random(), np.random.random(), float(torch.rand(()))
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    check_determinism(CONFIG, Dice)
    assert (random.random(), np.random.random(), float(torch.rand(()))) == expected


def test_auto_becomes_what_is_needed_and_the_cost_is_said() -> None:
    told: list[str] = []
    assert settle_rebuilding(CONFIG, DrawingEnv, told.append).rebuild_envs == "off"
    assert told == []
    assert settle_rebuilding(CONFIG, Drifting, told.append).rebuild_envs == "on"
    (note,) = told
    assert "'Drawing' keeps state across resets" in note
    assert " ms;" in note
    told.clear()
    assert settle_rebuilding(CONFIG, Whim, told.append).rebuild_envs == "off"
    (note,) = told
    assert "'Drawing' is not deterministic" in note
    assert "resuming this run may not be exact" in note


@pytest.mark.parametrize(
    "settings", [{"rebuild_envs": "on"}, {"rebuild_envs": "off"}, {"env_backend": "native"}]
)
def test_nothing_is_built_where_nothing_is_asked(settings: dict[str, Any]) -> None:
    def refuse() -> Any:
        raise AssertionError("built")

    told: list[str] = []
    config = CONFIG.with_overrides(**settings)
    settled = settle_rebuilding(config, refuse, told.append)
    assert settled.rebuild_envs == settings.get("rebuild_envs", "off")
    assert told == []
