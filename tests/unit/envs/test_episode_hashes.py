"""The running hash tells episodes apart by everything they showed, whatever an observation is made of."""

from typing import Any

import numpy as np
import pytest
from records import DrawingEnv

from rl_training.config import TrainConfig
from rl_training.envs.episodes import trace, trace_of_rewards
from rl_training.envs.factory import make_vector_env
from rl_training.envs.stepper import VectorStepper

CONFIG = TrainConfig(algo="ppo", env_id="Drawing", seed=5)
GRID = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (GRID, GRID.copy(), GRID + 1),
        (GRID.T, np.ascontiguousarray(GRID.T), GRID),
        (GRID[:, ::2], GRID[:, ::2].copy(), GRID[:, 1::2]),
        (np.int64(3), 3, 4),
        (0.5, np.float64(0.5), 0.25),
        ({"a": GRID, "b": (1, GRID)}, {"a": GRID.copy(), "b": (1, GRID)}, {"a": GRID, "b": (2, GRID)}),
        ((GRID, {"c": GRID[::2]}), (GRID, {"c": GRID[::2].copy()}), (GRID, {"c": GRID[1:]})),
    ],
)
def test_equal_observations_have_equal_hashes_and_others_have_not(one: Any, same: Any, other: Any) -> None:
    assert trace(one) == trace(same) != trace(other)
    assert trace(one, 5) != trace(one, 6)


def test_the_order_and_the_number_of_rewards_count() -> None:
    assert trace_of_rewards([1, 0.5]) == trace_of_rewards([np.float64(1), np.float32(0.5)])
    assert len({trace_of_rewards(each) for each in ([], [0.0], [0.0, 0.0], [1, 0.5], [0.5, 1])}) == 5


class Flicker(DrawingEnv):
    """Shows in its last step what its seed says, and before that, or in what it pays, what its life was."""

    lives = 0

    def __init__(self, where: str) -> None:
        super().__init__()
        Flicker.lives += 1
        self.where, self.life = where, Flicker.lives

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        self.left = 9
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        strange = self.left == 7
        if strange and self.where == "observation":
            obs = obs + np.float32(self.life)
        return obs, reward + (self.life if strange and self.where == "reward" else 0), *rest


def interrupted(where: str) -> tuple[VectorStepper, dict[str, Any]]:
    first, second = (
        VectorStepper(make_vector_env(CONFIG, 2, factory=lambda: Flicker(where))) for _ in range(2)
    )
    first.reset()
    for _ in range(4):
        first.step(np.zeros(2, np.int64))
    return second, first.state_dict()


def test_a_difference_in_the_middle_of_an_episode_is_noticed() -> None:
    """The last observation is the same: only the hash can tell."""
    stepper, state = interrupted("observation")
    assert stepper.resume(state) == [0, 1]
    assert [len(actions) for _, actions in stepper.env.call("episode_state")] == [0, 0]  # type: ignore[attr-defined]


def test_a_difference_in_the_rewards_is_told() -> None:
    stepper, state = interrupted("reward")
    with pytest.warns(
        UserWarning, match=r"environments \[0, 1\] returned the same observations but other rewards"
    ):
        assert stepper.resume(state) == []
