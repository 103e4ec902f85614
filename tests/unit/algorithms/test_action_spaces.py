"""Each algorithm declares the actions it takes; a refusal names the algorithms that take what there is."""

from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces

from rl_training.algorithms import ALGORITHMS, DQN, SAC, TD3, TD3BC, refuse_actions
from rl_training.core.errors import UserError

BOX = spaces.Box(np.array([-1.0, -3.0], np.float32), np.array([1.0, 5.0], np.float32))


@pytest.mark.parametrize("algorithm", [SAC, TD3])
@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)])
def test_discrete_actions_are_refused_in_one_sentence(algorithm: Any, space: Space[Any]) -> None:
    with pytest.raises(UserError) as caught:
        refuse_actions(algorithm, space)
    others = (
        "ppo, a2c, dqn or recurrent_ppo"
        if isinstance(space, spaces.Discrete)
        else "ppo, a2c or recurrent_ppo"
    )
    assert str(caught.value) == (
        f"{algorithm.name} needs continuous actions, but the action space is {type(space).__name__}; "
        f"use {others}, or an environment with Box actions"
    )


@pytest.mark.parametrize("algorithm", [SAC, TD3])
@pytest.mark.parametrize(("low", "high"), [(-np.inf, np.inf), (-1.0, np.inf), (-np.inf, 1.0)])
def test_unbounded_actions_are_refused_in_one_sentence(algorithm: Any, low: float, high: float) -> None:
    lows, highs = np.array([-1.0, low], np.float32), np.array([1.0, high], np.float32)
    with pytest.raises(UserError, match="needs actions with finite bounds, but the action space is Box") as e:
        refuse_actions(algorithm, spaces.Box(lows, highs))
    assert "TransformAction" in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("space", [BOX, spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)])
def test_dqn_refuses_other_than_one_discrete_choice(space: Space[Any]) -> None:
    with pytest.raises(UserError) as caught:
        refuse_actions(DQN, space)
    others = (
        "ppo, a2c, sac, td3 or recurrent_ppo"
        if isinstance(space, spaces.Box)
        else "ppo, a2c or recurrent_ppo"
    )
    assert str(caught.value) == (
        f"dqn needs discrete actions, but the action space is {type(space).__name__}; "
        f"use {others}, or an environment with Discrete actions"
    )


def test_the_only_algorithm_for_a_dataset_is_named_alone() -> None:
    with pytest.raises(UserError, match="is MultiDiscrete; use bc, or an environment with Box actions"):
        refuse_actions(TD3BC, spaces.MultiDiscrete([2, 3]))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_is_declared_is_taken(name: str) -> None:
    examples = [spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2), BOX]
    for space in examples:
        if isinstance(space, ALGORITHMS[name].action_spaces):
            refuse_actions(ALGORITHMS[name], space)


def test_actions_of_no_known_kind_are_refused() -> None:
    with pytest.raises(UserError, match="action space Text is not supported"):
        refuse_actions(DQN, spaces.Text(3))
