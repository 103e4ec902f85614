from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from records import act_arrays, step_arrays

from rl_training.core.types import ActArrays, EnvSpec, Progress
from rl_training.policies.continuous import DeterministicPolicy, SquashedGaussianPolicy
from rl_training.policies.explorers import ContinuousExplorer, EpsilonGreedyExplorer
from rl_training.policies.noise import ActionNoise, GaussianNoise, OrnsteinUhlenbeckNoise
from rl_training.policies.q_policy import QPolicy

ENVS = 6
LEARNING = Progress(timesteps=100, total_timesteps=1000)


def q_policy(noisy: bool = False) -> QPolicy:
    return QPolicy(
        EnvSpec(spaces.Box(-5, 5, (3,)), spaces.Discrete(4), ENVS),
        hidden_sizes=(8,),
        activation="relu",
        dueling=False,
        noisy=noisy,
        distribution="none",
        num_atoms=2,
        v_min=0.0,
        v_max=1.0,
        num_quantiles=1,
        normalize_obs=False,
        reward_normalizer=None,
        generator=torch.Generator().manual_seed(0),
    )


def epsilon_greedy(
    initial: float = 0.5,
    final: float = 0.5,
    *,
    fraction: float = 0.5,
    learning_starts: int = 0,
    seed: int = 0,
    noisy: bool = False,
) -> EpsilonGreedyExplorer:
    return EpsilonGreedyExplorer(
        q_policy(noisy),
        np.random.default_rng(seed),
        initial=initial,
        final=final,
        fraction=fraction,
        learning_starts=learning_starts,
    )


def continuous(
    kind: Any = DeterministicPolicy,
    noise: ActionNoise | None = None,
    *,
    learning_starts: int = 0,
    seed: int = 0,
) -> ContinuousExplorer:
    policy = kind(
        EnvSpec(spaces.Box(-5, 5, (3,)), spaces.Box(-2, 3, (2,)), ENVS),
        hidden_sizes=(8,),
        activation="relu",
        normalize_obs=False,
        reward_normalizer=None,
        generator=torch.Generator().manual_seed(0),
    )
    return ContinuousExplorer(
        policy, np.random.default_rng(seed), learning_starts=learning_starts, noise=noise
    )


def observations(rows: int = ENVS) -> Any:
    return np.random.default_rng(1).standard_normal((rows, 3)).astype(np.float32)


def continuous_arrays() -> ActArrays:
    return act_arrays(ENVS, np.zeros((ENVS, 2)), dtype=np.float32)


def many_actions(explorer: EpsilonGreedyExplorer, progress: Progress, count: int = 3000) -> Any:
    acted, drawn = act_arrays(ENVS), []
    for _ in range(count):
        explorer.act(observations(), acted, progress)
        drawn.append(acted.action.copy())
    return np.stack(drawn)


def test_epsilon_falls_linearly_between_its_ends_and_stays_there() -> None:
    explorer = epsilon_greedy(0.9, 0.1, fraction=0.5)
    at = {t: explorer.epsilon(Progress(timesteps=t, total_timesteps=1000)) for t in (0, 125, 250, 500, 1000)}
    assert at == pytest.approx({0: 0.9, 125: 0.7, 250: 0.5, 500: 0.1, 1000: 0.1})


def test_every_action_is_random_until_learning_starts() -> None:
    explorer = epsilon_greedy(0.0, 0.0, learning_starts=50)
    assert explorer.epsilon(Progress(timesteps=49, total_timesteps=1000)) == 1.0
    assert explorer.epsilon(Progress(timesteps=50, total_timesteps=1000)) == 0.0
    drawn = many_actions(explorer, Progress(timesteps=49, total_timesteps=1000), 2000)
    shares = np.bincount(drawn.reshape(-1), minlength=4) / drawn.size
    np.testing.assert_allclose(shares, 0.25, atol=0.02)


def test_each_environment_has_a_coin_of_its_own() -> None:
    explorer = epsilon_greedy(0.4, 0.4)
    greedy = explorer.policy.act(observations(), (), deterministic=True, rng=np.random.default_rng(0))[0]
    differs = many_actions(explorer, LEARNING) != greedy
    # a random action is the greedy one in a quarter of the cases
    np.testing.assert_allclose(differs.mean(0), 0.3, atol=0.035)
    together = np.corrcoef(differs.T) - np.eye(ENVS)
    assert np.abs(together).max() < 0.08
    wrong = [np.bincount(column, minlength=4) for column in many_actions(explorer, LEARNING).T]
    for counts, best in zip(wrong, greedy, strict=True):  # all other actions equally often
        others = np.delete(counts, best) / 3000
        np.testing.assert_allclose(others, 0.1, atol=0.025)


def test_without_epsilon_the_best_action_is_taken_and_nothing_drawn() -> None:
    explorer, acted = epsilon_greedy(0.0, 0.0), act_arrays(ENVS, 9)
    explorer.act(observations(), acted, LEARNING)
    greedy = explorer.policy.act(observations(), (), deterministic=True, rng=np.random.default_rng(0))[0]
    np.testing.assert_array_equal(acted.action, greedy)
    assert explorer.rng.random() == np.random.default_rng(0).random()


def test_a_noisy_network_explores_without_epsilon() -> None:
    drawn = many_actions(epsilon_greedy(0.0, 0.0, noisy=True), LEARNING, 200)
    assert any(len(set(column.tolist())) > 1 for column in drawn.T)


def test_an_epsilon_greedy_stream_continues_after_a_state_round_trip() -> None:
    one, other = epsilon_greedy(seed=0), epsilon_greedy(seed=1)
    many_actions(one, LEARNING, 3)
    other.load_state_dict(one.state_dict())
    np.testing.assert_array_equal(many_actions(one, LEARNING, 20), many_actions(other, LEARNING, 20))


@pytest.mark.parametrize("kind", [SquashedGaussianPolicy, DeterministicPolicy])
def test_actions_are_uniform_over_the_whole_range_until_learning_starts(kind: Any) -> None:
    explorer = continuous(kind, GaussianNoise((ENVS, 2), 5.0), learning_starts=50)
    acted, drawn = continuous_arrays(), []
    for _ in range(500):
        explorer.act(observations(), acted, Progress(timesteps=49, total_timesteps=1000))
        drawn.append(acted.action.copy())
    values = np.stack(drawn)
    assert -1.0 <= values.min() < -0.99
    assert 0.99 < values.max() <= 1.0
    assert abs(values.mean()) < 0.03
    assert values.std() == pytest.approx(3**-0.5, rel=0.03)
    explorer.act(observations(), acted, Progress(timesteps=50, total_timesteps=1000))
    first = acted.action.copy()
    explorer.noise = None
    explorer.act(observations(), acted, Progress(timesteps=50, total_timesteps=1000))
    assert not np.allclose(first, acted.action)


def test_noise_is_added_to_the_policys_action_and_clipped_to_the_range() -> None:
    explorer, acted = continuous(noise=GaussianNoise((ENVS, 2), 1.0)), continuous_arrays()
    plain = explorer.policy.act(observations(), (), deterministic=True, rng=np.random.default_rng(0))[0]
    reference, clipped = np.random.default_rng(0), 0
    for _ in range(50):
        explorer.act(observations(), acted, LEARNING)
        noisy = plain + reference.standard_normal((ENVS, 2))
        np.testing.assert_allclose(acted.action, noisy.clip(-1, 1), rtol=1e-5, atol=1e-6)
        clipped += int((np.abs(noisy) > 1).sum())
    assert clipped > 10


def test_without_noise_the_policys_own_sample_is_taken() -> None:
    explorer, acted = continuous(SquashedGaussianPolicy), continuous_arrays()
    explorer.act(observations(), acted, LEARNING)
    expected = explorer.policy.act(observations(), (), deterministic=False, rng=np.random.default_rng(0))[0]
    np.testing.assert_array_equal(acted.action, expected)


def test_noise_begins_anew_in_environments_whose_episode_ended() -> None:
    noise = OrnsteinUhlenbeckNoise((ENVS, 2), 0.5)
    explorer, acted = continuous(noise=noise), continuous_arrays()
    explorer.act(observations(), acted, LEARNING)
    before = noise.value.copy()
    explorer.after_step(step_arrays(observations(), np.zeros(ENVS)), acted)
    np.testing.assert_array_equal(noise.value, before)
    terminated, truncated = np.arange(ENVS) == 1, np.arange(ENVS) == 4
    explorer.after_step(
        step_arrays(observations(), np.zeros(ENVS), terminated=terminated, truncated=truncated), acted
    )
    ended = terminated | truncated
    assert not noise.value[ended].any()
    np.testing.assert_array_equal(noise.value[~ended], before[~ended])


def test_noise_begins_anew_where_an_episode_will_not_go_on() -> None:
    noise = OrnsteinUhlenbeckNoise((ENVS, 2), 0.5)
    explorer = continuous(noise=noise)
    explorer.act(observations(), continuous_arrays(), LEARNING)
    before = noise.value.copy()
    explorer.forget([])
    np.testing.assert_array_equal(noise.value, before)
    explorer.forget([0, 2])
    assert not noise.value[[0, 2]].any()
    np.testing.assert_array_equal(noise.value[[1, 3]], before[[1, 3]])


def test_an_ended_episode_needs_no_noise() -> None:
    explorer, acted = continuous(SquashedGaussianPolicy), continuous_arrays()
    explorer.after_step(step_arrays(observations(), np.zeros(ENVS), terminated=True), acted)
    assert explorer.state_dict().keys() == {"rng"}


def test_stream_and_noise_continue_after_a_state_round_trip() -> None:
    explorers = [continuous(noise=OrnsteinUhlenbeckNoise((ENVS, 2), 0.5), seed=seed) for seed in (0, 1)]
    arrays = [continuous_arrays() for _ in explorers]
    for _ in range(3):
        explorers[0].act(observations(), arrays[0], LEARNING)
    explorers[1].load_state_dict(explorers[0].state_dict())
    for _ in range(3):
        for explorer, acted in zip(explorers, arrays, strict=True):
            explorer.act(observations(), acted, LEARNING)
        np.testing.assert_array_equal(arrays[0].action, arrays[1].action)
