"""The action after a transition is a column of a dataset's batches only if an algorithm asks for it."""

import numpy as np
from gymnasium import spaces

from rl_training.data.dataset_source import HAS_NEXT_ACTION, NEXT_ACTIONS, DatasetRows
from rl_training.datasets.dataset import Dataset

BOX = spaces.Box(-1, 1, (1,), np.float32)
# two episodes of 3 and 2 steps; the action of step k is k / 10
DATASET = Dataset(
    "tiny",
    BOX,
    BOX,
    obs=np.zeros((7, 1), np.float32),
    actions=np.arange(5, dtype=np.float32)[:, None] / 10,
    rewards=np.zeros(5, np.float32),
    terminated=np.array([False, False, True, False, False]),
    ends=np.array([3, 5]),
)
STEPS, EPISODES = np.arange(5), np.array([0, 0, 0, 1, 1])


def test_it_is_that_of_the_next_step_and_never_of_another_episode():
    rows = DatasetRows(DATASET, gamma=0.9, next_actions=True).transitions(STEPS, EPISODES)
    assert rows.extra[HAS_NEXT_ACTION].tolist() == [True, True, False, True, False]
    np.testing.assert_allclose(rows.extra[NEXT_ACTIONS][:, 0], [0.1, 0.2, 0.2, 0.4, 0.4])


def test_after_several_steps_it_is_that_of_the_observation_that_is_bootstrapped_from():
    rows = DatasetRows(DATASET, gamma=0.9, n_step=2, next_actions=True).transitions(STEPS, EPISODES)
    assert rows.extra[HAS_NEXT_ACTION].tolist() == [True, False, False, False, False]
    assert float(rows.extra[NEXT_ACTIONS][0, 0]) == np.float32(0.2)


def test_other_algorithms_have_no_such_column():
    assert DatasetRows(DATASET, gamma=0.9).transitions(STEPS, EPISODES).extra == {}
