from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from records import SeenAndDone, act_arrays, step_arrays

from rl_training.core.types import EnvSpec, Progress
from rl_training.policies.actor_critic import ActorCriticPolicy
from rl_training.policies.explorers import ActorCriticExplorer

BOX = spaces.Box(-5, 5, (3,), np.float32)


def make_policy(action_space: Space[Any] = BOX, **settings: Any) -> ActorCriticPolicy:
    defaults = {
        "hidden_sizes": (8,),
        "activation": "tanh",
        "shared_network": False,
        "orthogonal_init": False,
        "log_std_init": -0.5,
        "normalize_obs": True,
        "reward_normalizer": None,
        "generator": torch.Generator().manual_seed(0),
    }
    policy = ActorCriticPolicy(EnvSpec(BOX, action_space, 4), **defaults | settings)
    if policy.normalizer is not None:
        policy.normalizer.update(3 + 2 * torch.randn(50, 3, generator=torch.Generator().manual_seed(1)))
    return policy


def played(policy: Any, obs: Any, **settings: Any) -> Any:
    """Act without memory, and check that none comes back."""
    actions, state = policy.act(obs, policy.initial_state(len(obs)), **settings)
    assert state == ()
    return actions


def observations(rows: int = 4, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(rows, 3)).astype(np.float32)


@pytest.mark.parametrize(
    "space", [spaces.Discrete(4), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3), BOX], ids=str
)
@pytest.mark.parametrize("normalize_obs", [False, True])
def test_what_is_recorded_while_acting_is_what_learning_computes(
    space: Space[Any], normalize_obs: bool
) -> None:
    policy = make_policy(space, normalize_obs=normalize_obs)
    explorer = ActorCriticExplorer(policy, np.random.default_rng(0))
    obs, acted = observations(), act_arrays(4)
    acted.action = np.zeros((4, *policy.action_shape), policy.action_dtype)
    explorer.act(obs, acted, Progress())
    with torch.no_grad():
        features = policy.prepare(torch.from_numpy(obs))
        logprobs, _, values = policy.evaluate_actions(SeenAndDone(features, torch.from_numpy(acted.action)))
    np.testing.assert_allclose(acted.logprob, logprobs, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(acted.value, values, rtol=1e-5, atol=1e-5)
    assert np.unique(acted.value).size == 4


def test_final_values_are_those_of_truncated_rows_and_zero_elsewhere() -> None:
    policy = make_policy()
    explorer = ActorCriticExplorer(policy, np.random.default_rng(0))
    final, acted = observations(seed=7), act_arrays(4, final_value=9.0)
    step = step_arrays(
        observations(),
        np.zeros(4),
        terminated=[True, False, False, False],
        truncated=[False, True, False, True],
        final_obs=final,
    )
    explorer.after_step(step, acted)
    expected = policy.values(final) * [0, 1, 0, 1]
    np.testing.assert_allclose(acted.final_value, expected, rtol=1e-6)
    assert np.count_nonzero(acted.final_value) == 2


def test_final_values_of_the_last_step_do_not_linger() -> None:
    explorer = ActorCriticExplorer(make_policy(), np.random.default_rng(0))
    acted = act_arrays(4, final_value=9.0)
    explorer.after_step(step_arrays(observations(), np.zeros(4)), acted)
    assert not acted.final_value.any()


def test_the_last_value_is_that_of_the_observation_that_follows() -> None:
    policy, obs, acted = make_policy(), observations(), act_arrays(4)
    ActorCriticExplorer(policy, np.random.default_rng(0)).end_collect(step_arrays(obs, np.zeros(4)), acted)
    np.testing.assert_array_equal(acted.last_value, policy.values(obs))
    assert np.unique(acted.last_value).size == 4


def test_a_deterministic_action_is_the_mode_and_draws_nothing() -> None:
    policy, rng = make_policy(), np.random.default_rng(0)
    action = played(policy, observations(), deterministic=True, rng=rng)
    np.testing.assert_array_equal(action, policy.outputs(observations())[0])
    assert rng.random() == np.random.default_rng(0).random()


def test_a_sampled_action_comes_from_the_given_generator() -> None:
    policy = make_policy()
    actions = [
        played(policy, observations(), deterministic=False, rng=np.random.default_rng(seed))
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(actions[0], actions[1])
    assert not np.allclose(actions[0], actions[2])


def test_acting_follows_a_recast_network() -> None:
    policy = make_policy()
    before = policy.outputs(observations())[0]
    policy.double()
    with torch.no_grad():
        policy.network.actor_head.bias.add_(1.0)
    np.testing.assert_allclose(policy.outputs(observations())[0], before + 1.0, rtol=1e-5)


def test_acting_leaves_observations_alone() -> None:
    policy, obs = make_policy(), observations()
    before = obs.copy()
    policy.outputs(obs)
    policy.values(obs)
    np.testing.assert_array_equal(obs, before)


def test_a_state_round_trip_acts_alike_with_normaliser_and_deviation() -> None:
    one, other = make_policy(), make_policy(generator=torch.Generator().manual_seed(5))
    assert one.normalizer is not None
    one.normalizer.update(10 * torch.ones(20, 3))
    with torch.no_grad():
        one.get_parameter("head.log_std").fill_(-1.0)
    other.load_state_dict(one.state_dict())
    for deterministic in (True, False):
        actions = [
            played(p, observations(), deterministic=deterministic, rng=np.random.default_rng(3))
            for p in (one, other)
        ]
        np.testing.assert_array_equal(*actions)


def test_an_explorers_stream_continues_after_a_state_round_trip() -> None:
    explorers = [ActorCriticExplorer(make_policy(), np.random.default_rng(seed)) for seed in (0, 1)]
    drawn = [act_arrays(4, np.zeros((4, 3)), dtype=np.float32) for _ in explorers]
    explorers[0].act(observations(), drawn[0], Progress())
    explorers[1].load_state_dict(explorers[0].state_dict())
    for explorer, acted in zip(explorers, drawn, strict=True):
        explorer.act(observations(), acted, Progress())
    np.testing.assert_array_equal(drawn[0].action, drawn[1].action)
