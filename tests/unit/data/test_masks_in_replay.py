"""Masks that are replayed are those of their own observations, whatever lies between."""

import numpy as np
import pytest
from gymnasium import spaces
from records import step_arrays

from rl_training.core.spaces.masks import MASK_KEY
from rl_training.core.spaces.stored import stored_space
from rl_training.core.types import EnvSpec
from rl_training.data.replay_buffer import ReplayBuffer

STACK = 3


def mask_of(moment: float) -> np.ndarray:
    """Allow what the bits of a moment's number say, and the last choice always."""
    bits = [(int(moment) >> bit) & 1 for bit in range(5)]
    return np.array([*bits, 1], np.bool_)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("stacked", [False, True])
def test_each_mask_stays_with_what_was_seen(n_step: int, stacked: bool) -> None:
    shape = (STACK, 4, 4) if stacked else (2,)
    spec = EnvSpec(spaces.Box(0, 1000, shape, np.float32), spaces.Discrete(6), 1, masked=True)
    buffer = ReplayBuffer.for_spaces(
        stored_space(spec),
        spec.action_space,
        capacity=50,
        num_envs=1,
        n_step=n_step,
        frame_stack=STACK if stacked else None,
    )

    def seen(moment: int, first: int) -> dict[str, np.ndarray]:
        """The newest frame, and all of a plain observation, is full of the moment's number."""
        frames = [np.full((1, 1, 4, 4), max(moment - age, first), np.float32) for age in (2, 1, 0)]
        obs = np.concatenate(frames, axis=1) if stacked else np.full((1, 2), moment, np.float32)
        return {"": obs, MASK_KEY: mask_of(moment)[None]}

    moment = 0
    for length in (4, 7, 1, 9):
        first = moment
        for step in range(length):
            buffer.record_action(seen(moment, first), np.zeros(1, np.int64))
            moment += 1
            ended = step == length - 1
            following = seen(moment + 1, moment + 1) if ended else seen(moment, first)
            final = seen(moment, first)
            buffer.record_outcome(step_arrays(following, [1.0], truncated=ended, final_obs=final))
        moment += 1
    rows = buffer.sample(400, np.random.default_rng(0))
    for obs, masks in ((rows.obs, rows.action_masks), (rows.next_obs, rows.next_action_masks)):
        newest = obs[:, -1, 0, 0] if stacked else obs[:, 0]
        assert (masks.numpy() == np.stack([mask_of(number) for number in newest.numpy()])).all()
    assert len(np.unique(rows.next_obs.numpy())) > 10
