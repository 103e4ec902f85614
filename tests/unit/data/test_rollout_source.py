import numpy as np
import torch
from records import act_arrays, step_arrays

from rl_training.core.types import Progress
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.sources import RolloutSource
from rl_training.models.normalizer import RewardNormalizer


def make_source(scaler: RewardNormalizer | None = None) -> RolloutSource:
    buffer = RolloutBuffer(num_steps=2, num_envs=2, obs_shape=(1,), action_shape=(), action_dtype=np.int64)
    return RolloutSource(buffer, gamma=0.5, gae_lambda=1.0, reward_scaler=scaler)


def fill(source: RolloutSource, reward: float = 1.0) -> None:
    obs = np.zeros((2, 1), np.float32)
    for _ in range(source.steps_per_collect):
        source.record_action(obs, act_arrays(2))
        source.record_outcome(step_arrays(obs, [reward, 2 * reward]), act_arrays(2))
    source.end_collect(act_arrays(2, last_value=[4.0, 0.0]))


def test_a_rollout_is_yielded_whole_and_once_with_its_last_value() -> None:
    source = make_source()
    fill(source)
    (batch,) = source.batches(Progress())
    assert batch.returns.tolist() == [1 + 0.5 * (1 + 0.5 * 4), 2 + 0.5 * 2, 1 + 0.5 * 4, 2.0]


def test_the_buffer_is_rewound_after_its_batch() -> None:
    source = make_source()
    for reward in (1.0, 5.0):
        fill(source, reward)
        list(source.batches(Progress()))
    assert source.buffer.row == 0
    assert source.buffer.rewards[0].tolist() == [5.0, 10.0]


def test_the_last_value_is_a_copy() -> None:
    source, acted = make_source(), act_arrays(2, last_value=8.0)
    fill(source)
    source.end_collect(acted)
    acted.last_value[:] = 0.0
    (batch,) = source.batches(Progress())
    assert batch.returns[2] == 1 + 0.5 * 8


def test_scaling_changes_returns_and_leaves_recorded_rewards_raw() -> None:
    scaler = RewardNormalizer(gamma=0.5)
    source = make_source(scaler)
    fill(source)
    (batch,) = source.batches(Progress())
    scale = 1 / np.sqrt(np.var([1, 2, 1.5, 3]) + scaler.epsilon)  # running returns of the two environments
    np.testing.assert_allclose(batch.returns[3], 2 * scale, rtol=1e-6)
    assert source.buffer.rewards.tolist() == [[1.0, 2.0], [1.0, 2.0]]


def test_running_returns_continue_after_a_state_round_trip() -> None:
    one, other = RewardNormalizer(0.5), RewardNormalizer(0.5)
    source = make_source(one)
    fill(source)
    list(source.batches(Progress()))
    copy = make_source(other)
    copy.load_state_dict(source.state_dict())
    other.load_state_dict(one.state_dict())
    for each in (source, copy):
        fill(each, 3.0)
        list(each.batches(Progress()))
    assert torch.equal(source.buffer.returns, copy.buffer.returns)
    assert source.state_dict()["running_returns"].tolist() == [3 + 0.5 * (3 + 0.5 * 1.5), 2 * (3 + 1.875)]


def test_a_saved_state_does_not_move_with_the_source() -> None:
    source = make_source(RewardNormalizer(0.5))
    saved = source.state_dict()["running_returns"]
    fill(source)
    list(source.batches(Progress()))
    assert saved.tolist() == [0.0, 0.0]
