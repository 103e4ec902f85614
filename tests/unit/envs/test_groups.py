"""Environments can be split into groups, each with a stepper of its own, without changing their episodes."""

from typing import Any

import numpy as np
from records import DrawingEnv

from rl_training.config import TrainConfig
from rl_training.envs.stepper_factory import training_stepper

CONFIG = TrainConfig(algo="ppo", env_id="Drawing", seed=5, num_envs=4)


def observations(num_envs: int, first_index: int) -> Any:
    stepper = training_stepper(CONFIG, DrawingEnv, num_envs=num_envs, first_index=first_index)
    stepper.reset()
    seen = [np.array(stepper.out.obs)]
    for _ in range(9):
        stepper.step(np.zeros(num_envs, np.int64))
        seen.append(np.array(stepper.out.obs))
    stepper.close()
    return np.stack(seen)


def test_two_groups_have_the_episodes_of_all_environments_together() -> None:
    together = observations(4, 0)
    apart = np.concatenate([observations(1, 0), observations(3, 1)], axis=1)
    np.testing.assert_array_equal(apart, together)
    assert len(np.unique(together[0], axis=0)) == 4


def test_native_groups_have_other_seeds() -> None:
    config = CONFIG.with_overrides(env_id="CartPole-v1", env_backend="native")
    seen = []
    for first_index in (0, 2):
        stepper = training_stepper(config, None, num_envs=2, first_index=first_index)
        stepper.reset()
        seen.append(np.array(stepper.out.obs))
        stepper.close()
    assert not np.isclose(*seen).any()
