import copy

import numpy as np
import pytest
import torch

from rl_training.models.normalizer import ObservationNormalizer, RewardNormalizer, RunningMoments

CONTINUOUS = torch.tensor([True, False, True])


def data(rows: int = 50, seed: int = 0) -> torch.Tensor:
    draws = torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed))
    return draws * torch.tensor([5.0, 1.0, 0.1]) + torch.tensor([100.0, 1.0, -3.0])


def test_an_empty_batch_changes_nothing() -> None:
    moments = RunningMoments(3)
    moments.update(data())
    before = [buffer.clone() for buffer in moments.buffers()]
    moments.update(data()[:0])
    assert all(torch.equal(now, then) for now, then in zip(moments.buffers(), before, strict=True))


def test_statistics_survive_a_large_offset() -> None:
    moments = RunningMoments(1)
    rows = torch.randn(1000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1e7
    for part in rows.split(10):
        moments.update(part)
    np.testing.assert_allclose(moments.var, rows.numpy().var(0), rtol=1e-6)


def test_before_any_data_features_pass_unchanged() -> None:
    rows = torch.tensor([[1.0, 2.0, -3.0]])
    assert torch.equal(ObservationNormalizer(CONTINUOUS)(rows), rows)


def test_only_continuous_features_are_normalised() -> None:
    normalizer, rows = ObservationNormalizer(CONTINUOUS), data()
    normalizer.update(rows)
    result = normalizer(rows)
    assert torch.equal(result[:, 1], rows[:, 1])
    for column in (0, 2):
        expected = (rows[:, column] - rows[:, column].mean()) / rows[:, column].std(correction=0)
        torch.testing.assert_close(result[:, column], expected, rtol=1e-4, atol=1e-4)


def test_torch_and_numpy_normalise_alike() -> None:
    normalizer, rows = ObservationNormalizer(CONTINUOUS), data()
    normalizer.update(rows)
    np.testing.assert_allclose(normalizer.forward_numpy(rows.numpy()), normalizer(rows), rtol=1e-6, atol=1e-6)


def test_numpy_leaves_its_input_alone() -> None:
    normalizer, rows = ObservationNormalizer(CONTINUOUS), data().numpy()
    normalizer.update(data())
    before = rows.copy()
    normalizer.forward_numpy(rows)
    np.testing.assert_array_equal(rows, before)


def test_outliers_are_clipped() -> None:
    normalizer = ObservationNormalizer(CONTINUOUS, clip=2.0)
    normalizer.update(data())
    far = torch.tensor([[1e6, 1.0, -1e6]])
    assert normalizer(far).tolist() == [[2.0, 1.0, -2.0]]
    assert normalizer.forward_numpy(far.numpy()).tolist() == [[2.0, 1.0, -2.0]]


def test_a_constant_feature_gives_zero_and_stays_finite() -> None:
    normalizer = ObservationNormalizer(torch.tensor([True]))
    normalizer.update(torch.full((10, 1), 7.0))
    assert normalizer(torch.tensor([[7.0]])).tolist() == [[0.0]]


def test_statistics_change_in_update_alone() -> None:
    normalizer = ObservationNormalizer(CONTINUOUS)
    normalizer.update(data())
    before = {name: tensor.clone() for name, tensor in normalizer.state_dict().items()}
    normalizer(data(seed=1))
    normalizer.forward_numpy(data(seed=1).numpy())
    for name, tensor in normalizer.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_a_state_round_trip_gives_identical_outputs_and_a_common_future() -> None:
    one, other = ObservationNormalizer(CONTINUOUS), ObservationNormalizer(CONTINUOUS)
    one.update(data())
    other.load_state_dict(one.state_dict())
    for _ in range(2):
        assert torch.equal(one(data(seed=2)), other(data(seed=2)))
        for normalizer in (one, other):
            normalizer.update(data(seed=3))


def test_loading_into_a_copy_changes_the_copy_and_not_its_original() -> None:
    source, original = ObservationNormalizer(CONTINUOUS), ObservationNormalizer(CONTINUOUS)
    source.update(data())
    clone, before = copy.deepcopy(original), original(data(seed=2))
    clone.load_state_dict(source.state_dict())
    assert torch.equal(clone(data(seed=2)), source(data(seed=2)))
    assert torch.equal(original(data(seed=2)), before)


def slow_running_returns(
    rewards: np.ndarray, dones: np.ndarray, valid: np.ndarray, gamma: float
) -> list[float]:
    found = []
    for n in range(rewards.shape[1]):
        running = 0.0
        for t in range(len(rewards)):
            running = gamma * running + rewards[t, n]
            if valid[t, n]:
                found.append(running)
            if dones[t, n]:
                running = 0.0
    return found


def reward_rollout(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards, dones and valid [20, 3]; the row after an end is dead in the last environment."""
    rng = torch.Generator().manual_seed(seed)
    rewards = 4 * torch.randn(20, 3, generator=rng) + 1
    dones = torch.rand(20, 3, generator=rng) < 0.2
    valid = torch.ones(20, 3, dtype=torch.bool)
    dones[1:, 2] &= ~dones[:-1, 2]
    valid[1:, 2] = ~dones[:-1, 2]
    return rewards * valid, dones, valid


@pytest.mark.parametrize("cuts", [[40], [20, 20], [1, 7, 32]])
def test_reward_statistics_equal_a_slow_reference_however_the_rollouts_are_cut(cuts: list[int]) -> None:
    first, second = reward_rollout(0), reward_rollout(1)
    rewards, dones, valid = (torch.cat([a, b]) for a, b in zip(first, second, strict=True))
    normalizer, carry = RewardNormalizer(0.9), torch.zeros(3, dtype=torch.float64)
    for r, d, v in zip(*(tensor.split(cuts) for tensor in (rewards, dones, valid)), strict=True):
        normalizer.update(r, d, v, carry)
    expected = slow_running_returns(rewards.double().numpy(), dones.numpy(), valid.numpy(), 0.9)
    np.testing.assert_allclose(normalizer.moments.var, [np.var(expected)], rtol=1e-9)
    assert normalizer.moments.count == len(expected)
    scaled = rewards.numpy() / np.sqrt(np.var(expected) + 1e-8)
    np.testing.assert_allclose(normalizer(rewards), np.clip(scaled, -10, 10), rtol=1e-5)


def test_scaled_rewards_are_not_shifted_and_are_clipped() -> None:
    normalizer = RewardNormalizer(0.0, clip=3.0)
    rewards = torch.tensor([[8.0], [12.0]])
    none = torch.zeros(2, 1, dtype=torch.bool)
    normalizer.update(rewards, none, ~none, torch.zeros(1, dtype=torch.float64))  # deviation 2
    scaled = normalizer(torch.tensor([0.0, 4.0, -400.0]))
    torch.testing.assert_close(scaled, torch.tensor([0.0, 2.0, -3.0]))


def test_updating_leaves_rewards_alone() -> None:
    rewards, dones, valid = reward_rollout(0)
    before = rewards.clone()
    RewardNormalizer(0.9).update(rewards, dones, valid, torch.zeros(3, dtype=torch.float64))
    assert torch.equal(rewards, before)
