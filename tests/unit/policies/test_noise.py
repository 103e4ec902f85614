import numpy as np
import pytest

from rl_training.policies.noise import GaussianNoise, OrnsteinUhlenbeckNoise, make_noise


def test_gaussian_noise_has_the_asked_deviation_and_no_memory() -> None:
    noise, rng = GaussianNoise((50, 4), 0.3), np.random.default_rng(0)
    drawn = np.stack([noise.sample(rng) for _ in range(200)])
    assert drawn.shape == (200, 50, 4)
    assert abs(drawn.mean()) < 0.01
    assert drawn.std() == pytest.approx(0.3, rel=0.02)
    assert abs((drawn[1:] * drawn[:-1]).mean()) < 0.001
    assert abs((drawn[:, :, 0] * drawn[:, :, 1]).mean()) < 0.005
    assert noise.state_dict() == {}


def test_ornstein_uhlenbeck_noise_follows_its_recursion() -> None:
    noise, rng = OrnsteinUhlenbeckNoise((2, 3), 0.4, theta=0.2, dt=0.25), np.random.default_rng(0)
    reference, expected = np.random.default_rng(0), np.zeros((2, 3))
    for _ in range(20):
        kick = reference.standard_normal((2, 3))
        expected = expected - 0.2 * expected * 0.25 + 0.4 * np.sqrt(0.25) * kick
        np.testing.assert_allclose(noise.sample(rng), expected, rtol=1e-12)


def test_ornstein_uhlenbeck_noise_settles_at_its_stationary_deviation() -> None:
    noise, rng = OrnsteinUhlenbeckNoise((4000, 1), 0.4, theta=2.0, dt=0.1), np.random.default_rng(0)
    for _ in range(100):
        drawn = noise.sample(rng)
    assert drawn.std() == pytest.approx(0.4 * np.sqrt(0.1 / (1 - (1 - 0.2) ** 2)), rel=0.05)
    following = noise.sample(rng)
    assert np.corrcoef(drawn[:, 0], following[:, 0])[0, 1] == pytest.approx(0.8, abs=0.03)


def test_only_environments_whose_episode_ended_begin_at_zero() -> None:
    noise = OrnsteinUhlenbeckNoise((3, 2), 0.4)
    before = noise.sample(np.random.default_rng(0)).copy()
    noise.restart(np.array([False, True, False]))
    np.testing.assert_array_equal(noise.value[[0, 2]], before[[0, 2]])
    assert not noise.value[1].any()
    noise.restart(np.array([2]))
    np.testing.assert_array_equal(noise.value[0], before[0])
    assert not noise.value[2].any()


def test_ornstein_uhlenbeck_noise_goes_on_after_a_state_round_trip() -> None:
    one, other = OrnsteinUhlenbeckNoise((3, 2), 0.4), OrnsteinUhlenbeckNoise((3, 2), 0.4)
    one.sample(np.random.default_rng(0))
    state = one.state_dict()
    other.load_state_dict(state)
    expected = one.sample(np.random.default_rng(1)).copy()
    np.testing.assert_array_equal(other.sample(np.random.default_rng(1)), expected)
    one.restart(np.array([True, True, True]))  # the saved state is a copy
    assert state["value"].abs().min() > 0


def test_noise_of_another_number_of_environments_begins_anew() -> None:
    one, other = OrnsteinUhlenbeckNoise((3, 2), 0.4), OrnsteinUhlenbeckNoise((4, 2), 0.4)
    one.sample(np.random.default_rng(0))
    other.load_state_dict(one.state_dict())
    assert other.value.shape == (4, 2)
    assert not other.value.any()


def test_noise_is_made_by_name() -> None:
    gaussian = make_noise("gaussian", 0.2, 3, 2)
    correlated = make_noise("ornstein_uhlenbeck", 0.2, 3, 2)
    assert isinstance(gaussian, GaussianNoise)
    assert isinstance(correlated, OrnsteinUhlenbeckNoise)
    assert gaussian.sigma == correlated.sigma == 0.2
    assert gaussian.sample(np.random.default_rng(0)).shape == (3, 2)
    assert correlated.sample(np.random.default_rng(0)).shape == (3, 2)
