"""Tasks that must be remembered: what they hide, and when."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rl_training.core.errors import UserError
from rl_training.envs.tasks.catch import Catch
from rl_training.envs.tasks.memory import (
    HINT_STEPS,
    REACH,
    VELOCITIES,
    MaskVelocity,
    MemoryCorridor,
    no_velocity,
)


@pytest.mark.parametrize("game", ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0"])
def test_velocities_are_zero_and_everything_else_is_as_it_was(game: str) -> None:
    plain, masked = gymnasium.make(game), no_velocity(game)
    hidden = list(VELOCITIES[game])
    shown = [index for index in range(plain.observation_space.shape[0]) if index not in hidden]  # type: ignore[index]
    pairs = [(plain.reset(seed=3)[0], masked.reset(seed=3)[0])]
    plain.action_space.seed(0)
    for _ in range(10):
        action = plain.action_space.sample()
        pairs.append((plain.step(action)[0], masked.step(action)[0]))
    for whole, seen in pairs:
        assert not seen[hidden].any()
        np.testing.assert_array_equal(seen[shown], whole[shown])
        assert seen.dtype == whole.dtype
    assert any(whole[hidden].any() for whole, _ in pairs)


def test_indices_may_be_given_and_are_needed_where_nothing_is_known() -> None:
    env = gymnasium.make("Acrobot-v1")
    with pytest.raises(UserError, match=r"the velocities of 'Acrobot-v1' are unknown"):
        MaskVelocity(env)
    assert not MaskVelocity(env, [4, 5]).reset(seed=0)[0][4:].any()
    with pytest.raises(UserError, match=r"observations of shape \(6,\), which do not have the indices \[6\]"):
        MaskVelocity(env, [6])
    with pytest.raises(UserError, match="game is 'os:CartPole-v1'; use one of CartPole-v1"):
        no_velocity("os:CartPole-v1")


def played(door: int, walk: int) -> list[Any]:
    """Walk one way until the end of an episode whose door is `door`."""
    env = MemoryCorridor()
    for seed in range(100):
        seen = [env.reset(seed=seed)[0]]
        if env.door == door:
            break
    results: list[Any] = []
    while not results or not results[-1][2]:
        results.append(env.step(walk))
        seen.append(results[-1][0])
    assert [float(obs[0]) for obs in seen[:HINT_STEPS]] == [door] * HINT_STEPS
    assert not any(obs[0] for obs in seen[HINT_STEPS:])
    assert [float(obs[1]) for obs in seen[: HINT_STEPS + 1]] == [0.0] * (HINT_STEPS + 1)
    assert len(results) == HINT_STEPS + REACH
    return results


@pytest.mark.parametrize(("door", "walk", "pay"), [(-1, 0, 1.0), (-1, 1, -1.0), (1, 0, -1.0), (1, 1, 1.0)])
def test_the_door_that_was_told_pays(door: int, walk: int, pay: float) -> None:
    results = played(door, walk)
    assert [result[1] for result in results] == [0.0] * (len(results) - 1) + [pay]


def test_the_corridor_is_an_environment_as_gymnasium_wants_it() -> None:
    check_env(gymnasium.make("rl_training/MemoryCorridor-v0").unwrapped, skip_render_check=True)


def test_a_ball_that_is_shown_once_is_gone_afterwards_and_falls_all_the_same() -> None:
    whole, hidden = Catch(), Catch(shown_steps=1, render_mode="rgb_array")
    first = [env.reset(seed=5)[0] for env in (whole, hidden)]
    np.testing.assert_array_equal(*first)
    for _ in range(9):
        everything, rest = whole.step(1), hidden.step(1)
        assert (rest[0] <= everything[0]).all()
        assert rest[1:] == everything[1:]
        np.testing.assert_array_equal(hidden.render()[:, :, 0], everything[0])
    assert rest[0].sum() < first[0].sum()
