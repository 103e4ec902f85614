from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces

from rl_training.core.types import EnvSpec
from rl_training.policies.base import NetworkPolicy
from rl_training.policies.continuous import DeterministicPolicy, SquashedGaussianPolicy
from rl_training.policies.q_policy import QPolicy

BOX = spaces.Box(np.array([-1.0, -3.0], np.float32), np.array([1.0, 5.0], np.float32))


def spec(action_space: Space[Any], observation_space: Space[Any] | None = None) -> EnvSpec:
    return EnvSpec(observation_space or spaces.Box(-5, 5, (3,)), action_space, 4)


def continuous(
    kind: type[SquashedGaussianPolicy] | type[DeterministicPolicy],
    action_space: Space[Any] = BOX,
    *,
    seed: int = 0,
    normalize_obs: bool = False,
    observation_space: Space[Any] | None = None,
) -> SquashedGaussianPolicy | DeterministicPolicy:
    return kind(
        spec(action_space, observation_space),
        hidden_sizes=(8, 6),
        activation="relu",
        normalize_obs=normalize_obs,
        reward_normalizer=None,
        generator=torch.Generator().manual_seed(seed),
    )


def q_policy(action_space: Space[Any] | None = None, *, seed: int = 0, **settings: Any) -> QPolicy:
    return QPolicy(
        spec(action_space or spaces.Discrete(5)),
        **{
            "hidden_sizes": (8, 6),
            "activation": "relu",
            "dueling": False,
            "noisy": False,
            "distribution": "none",
            "num_atoms": 7,
            "v_min": -2.0,
            "v_max": 4.0,
            "num_quantiles": 6,
            "normalize_obs": False,
            "reward_normalizer": None,
            "generator": torch.Generator().manual_seed(seed),
        }
        | settings,
    )


def acted(policy: Any, obs: Any, **settings: Any) -> Any:
    """Act without memory, and check that none comes back."""
    actions, state = policy.act(obs, policy.initial_state(len(obs)), **settings)
    assert state == ()
    return actions


def observations(rows: int = 40) -> Any:
    return 2 * np.random.default_rng(1).standard_normal((rows, 3)).astype(np.float32)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("kind", [SquashedGaussianPolicy, DeterministicPolicy])
@pytest.mark.parametrize("normalize_obs", [False, True])
def test_acting_in_numpy_equals_the_torch_network(kind: Any, normalize_obs: bool) -> None:
    policy = continuous(kind, normalize_obs=normalize_obs)
    policy.observe(torch.from_numpy(observations() + 3))
    with torch.no_grad():
        outputs = policy.network(policy.prepare(torch.from_numpy(observations())))
    np.testing.assert_allclose(policy.outputs(observations()), outputs.numpy(), rtol=1e-4, atol=1e-5)
    done = acted(policy, observations(), deterministic=True, rng=rng())
    np.testing.assert_allclose(done, outputs[:, :2].tanh().numpy(), rtol=1e-4, atol=1e-5)


def test_observing_changes_the_features_only_of_a_normalising_policy() -> None:
    for normalize_obs in (False, True):
        policy = continuous(DeterministicPolicy, normalize_obs=normalize_obs)
        before = policy.prepare(torch.from_numpy(observations()))
        policy.observe(torch.from_numpy(10 + observations()))
        after = policy.prepare(torch.from_numpy(observations()))
        assert torch.allclose(before, after) is not normalize_obs


def test_a_dict_observation_reaches_the_network() -> None:
    space = spaces.Dict({"a": spaces.Box(-5, 5, (2,)), "b": spaces.Discrete(3)})
    policy = continuous(DeterministicPolicy, observation_space=space)
    obs = {"a": np.ones((4, 2), np.float32), "b": np.array([0, 1, 2, 2])}
    actions = acted(policy, obs, deterministic=True, rng=rng())
    assert actions.shape == (4, 2)
    np.testing.assert_array_equal(actions[2], actions[3])
    assert not np.allclose(actions[0], actions[1])


def test_a_squashed_gaussian_samples_inside_the_range_and_from_the_given_generator() -> None:
    policy = continuous(SquashedGaussianPolicy)
    one, same, other = (
        acted(policy, observations(), deterministic=False, rng=np.random.default_rng(seed))
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, other)
    assert np.abs(one).max() <= 1.0
    assert one.shape == (40, 2)


def test_a_squashed_gaussian_acts_as_it_samples_while_learning() -> None:
    policy = continuous(SquashedGaussianPolicy)
    assert isinstance(policy, SquashedGaussianPolicy)
    done = acted(policy, observations(), deterministic=False, rng=rng())
    noise = torch.from_numpy(rng().standard_normal((40, 2), dtype=np.float32))
    actions, _ = policy.sample(policy.prepare(torch.from_numpy(observations())), noise)
    np.testing.assert_allclose(done, actions.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_a_deterministic_policy_draws_nothing() -> None:
    policy, generator = continuous(DeterministicPolicy), rng()
    one = acted(policy, observations(), deterministic=False, rng=generator)
    np.testing.assert_array_equal(one, acted(policy, observations(), deterministic=True, rng=generator))
    assert generator.random() == rng().random()


@pytest.mark.parametrize("hidden_sizes", [(), (8,), (8, 6)])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("distribution", ["none", "c51", "quantile"])
def test_the_greedy_action_has_the_largest_value(
    distribution: str, dueling: bool, hidden_sizes: tuple[int, ...]
) -> None:
    policy = q_policy(distribution=distribution, dueling=dueling, hidden_sizes=hidden_sizes)
    with torch.no_grad():
        values = policy.action_values(policy.network(torch.from_numpy(observations())))
    assert values.shape == (40, 5)
    actions = acted(policy, observations(), deterministic=False, rng=rng())
    np.testing.assert_array_equal(actions, values.argmax(1).numpy())
    assert len(set(actions.tolist())) > 1


def test_a_histograms_value_is_its_mean() -> None:
    policy = q_policy(distribution="c51")
    assert policy.support.tolist() == [-2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0]
    logits = torch.full((1, 2, 7), -50.0)
    logits[0, 0, 6] = 50.0  # all at 4
    logits[0, 1, 0] = logits[0, 1, 5] = 50.0  # half at -2, half at 3
    torch.testing.assert_close(policy.action_values(logits), torch.tensor([[4.0, 0.5]]))


def test_the_value_of_quantiles_is_their_mean() -> None:
    quantiles = torch.tensor([[[0.0, 1.0, 5.0], [1.0, 1.0, 1.0]]])
    assert q_policy(distribution="quantile").action_values(quantiles).tolist() == [[2.0, 1.0]]


def test_a_noisy_policy_acts_without_noise_when_deterministic() -> None:
    policy, generator = q_policy(noisy=True), rng()
    actions = acted(policy, observations(), deterministic=True, rng=generator)
    with torch.no_grad():
        values = policy.network(torch.from_numpy(observations()), None)[:, :, 0]
    np.testing.assert_array_equal(actions, values.argmax(1).numpy())
    assert generator.random() == rng().random()


def test_a_noisy_policy_explores_row_by_row() -> None:
    policy = q_policy(noisy=True)
    same = np.ones((200, 3), np.float32)
    actions = acted(policy, same, deterministic=False, rng=rng())
    assert len(set(actions.tolist())) > 1
    np.testing.assert_array_equal(actions, acted(policy, same, deterministic=False, rng=rng()))


@pytest.mark.parametrize("noisy", [False, True])
def test_acting_follows_training_in_place_and_a_recast_network(noisy: bool) -> None:
    policy = q_policy(noisy=noisy)
    acted(policy, observations(), deterministic=True, rng=rng())
    last = policy.network.advantage.layers[-1]
    with torch.no_grad():
        last.bias[3] += 1000.0
    assert (acted(policy, observations(), deterministic=True, rng=rng()) == 3).all()
    for parameter in policy.parameters():  # what an optimizer on one flat vector does
        parameter.data = parameter.data.clone()
    with torch.no_grad():
        last.bias[1] += 5000.0
    assert (acted(policy, observations(), deterministic=True, rng=rng()) == 1).all()


@pytest.mark.parametrize("kind", ["q", SquashedGaussianPolicy, DeterministicPolicy])
def test_a_state_round_trip_acts_alike(kind: Any) -> None:
    def make(seed: int) -> NetworkPolicy:
        if kind == "q":
            return q_policy(seed=seed, normalize_obs=True)
        return continuous(kind, seed=seed, normalize_obs=True)

    one, other = make(0), make(1)
    one.observe(torch.from_numpy(observations() + 2))
    assert not np.allclose(one.outputs(observations()), other.outputs(observations()))
    other.load_state_dict(one.state_dict())
    np.testing.assert_array_equal(one.outputs(observations()), other.outputs(observations()))
