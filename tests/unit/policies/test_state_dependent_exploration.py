"""When matrices are drawn, what they do to actions, and that they are saved."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from records import act_arrays, step_arrays

from rl_training.algorithms.sac import SAC, SACConfig, SACLearner
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, UserError
from rl_training.core.seeding import ACTIONS, numpy_generator
from rl_training.core.types import ActArrays, EnvSpec, Progress
from rl_training.experiment.building import build_parts
from rl_training.models.state_dependent import MEAN_LIMIT
from rl_training.policies.noise import GaussianNoise, OrnsteinUhlenbeckNoise

ENVS = 4
OBSERVATIONS, MOTORS = spaces.Box(-5, 5, (3,)), spaces.Box(-2, 3, (2,))
LEARNING = Progress(timesteps=100, total_timesteps=1000)
KINDS = ("ppo", "a2c", "sac")


def parts(algo: str, *, num_envs: int = ENVS, seed: int = 0, space: Any = MOTORS, **settings: Any) -> Any:
    settings = {"use_sde": True, "hidden_sizes": (6, 5)} | settings
    config = TrainConfig(algo=algo, env_id="none", seed=seed, num_envs=num_envs).with_overrides(**settings)
    return build_parts(config, EnvSpec(OBSERVATIONS, space, num_envs))


def seen(seed: int = 1, rows: int = ENVS) -> Any:
    return np.random.default_rng(seed).standard_normal((rows, 3)).astype(np.float32)


def arrays(rows: int = ENVS) -> ActArrays:
    return act_arrays(rows, np.zeros((rows, 2)), dtype=np.float32)


def steps(explorer: Any, count: int, obs: Any = None, progress: Progress = LEARNING) -> Any:
    """Return the actions of so many steps, without an end of collecting."""
    acted, taken = arrays(), []
    for _ in range(count):
        explorer.act(seen() if obs is None else obs, acted, progress)
        taken.append(acted.action.copy())
    return np.stack(taken)


def end(explorer: Any) -> None:
    explorer.end_collect(step_arrays(seen(), np.zeros(ENVS)), arrays())


@pytest.mark.parametrize("algo", KINDS)
def test_the_same_state_gets_the_same_noise_until_a_phase_ends(algo: str) -> None:
    explorer = parts(algo).actor.explorer
    first = steps(explorer, 20)
    assert (first == first[0]).all()
    end(explorer)
    second = steps(explorer, 20)
    assert (second == second[0]).all()
    assert (second[0] != first[0]).all()


@pytest.mark.parametrize("algo", KINDS)
def test_noise_is_drawn_anew_every_so_many_steps_of_a_phase(algo: str) -> None:
    explorer = parts(algo, sde_sample_freq=3).actor.explorer
    taken = steps(explorer, 8)
    changes = [bool((taken[i] != taken[i - 1]).all()) for i in range(1, 8)]
    assert changes == [False, False, True, False, False, True, False]
    end(explorer)  # and not three steps after the last draw
    again = steps(explorer, 4)
    assert (again[0] != taken[-1]).all()
    assert [bool((again[i] != again[i - 1]).any()) for i in (1, 2, 3)] == [False, False, True]


@pytest.mark.parametrize("algo", KINDS)
def test_every_environment_has_a_matrix_of_its_own(algo: str) -> None:
    (taken,) = steps(parts(algo).actor.explorer, 1, np.repeat(seen(rows=1), ENVS, 0))
    assert len(np.unique(taken[:, 0])) == ENVS


@pytest.mark.parametrize("algo", KINDS)
def test_a_state_from_the_middle_of_a_phase_goes_on_with_the_same_noise(algo: str) -> None:
    one, other = (parts(algo, seed=seed, sde_sample_freq=5).actor for seed in (0, 1))
    other.policy.load_state_dict(one.policy.state_dict())
    steps(one.explorer, 7)
    other.explorer.load_state_dict(one.explorer.state_dict())
    np.testing.assert_array_equal(steps(one.explorer, 30), steps(other.explorer, 30))


@pytest.mark.parametrize("algo", KINDS)
def test_matrices_are_saved_with_the_explorer(algo: str) -> None:
    built = parts(algo)
    steps(built.actor.explorer, 1)
    saved = built.actor.explorer.state_dict()["matrices"]
    assert saved["matrices"].shape == (ENVS, 5, 2)
    assert saved["matrices"].abs().min() > 0
    assert saved["steps"] == 1


def test_another_number_of_environments_begins_a_phase() -> None:
    small, large = parts("sac", num_envs=2).actor.explorer, parts("sac").actor.explorer
    large.load_state_dict(small.state_dict())
    assert large.matrices.steps == 0
    assert steps(large, 1).shape == (1, ENVS, 2)


def test_recorded_log_probabilities_are_those_that_learning_finds() -> None:
    actor = parts("ppo").actor
    acted = arrays()
    actor.explorer.act(seen(), acted, LEARNING)
    params = torch.from_numpy(actor.policy.outputs(seen())[0])
    logprobs, _ = actor.policy.head.logprob_entropy(params, torch.from_numpy(acted.action))
    np.testing.assert_allclose(acted.logprob, logprobs.detach(), rtol=1e-4)


@pytest.mark.parametrize("algo", KINDS)
def test_without_chance_a_policy_takes_its_mean_and_otherwise_draws_every_time(algo: str) -> None:
    policy = parts(algo).actor.policy
    rng, obs = np.random.default_rng(0), np.repeat(seen(rows=1), 50, 0)
    outputs = policy.outputs(obs)
    means = (outputs if algo == "sac" else outputs[0])[:, :2]
    if algo == "sac":
        means = np.tanh(means.clip(-MEAN_LIMIT, MEAN_LIMIT))
    np.testing.assert_allclose(policy.act(obs, (), deterministic=True, rng=rng)[0], means, rtol=1e-6)
    assert rng.random() == np.random.default_rng(0).random(), "nothing is drawn for it"
    drawn = policy.act(obs, (), deterministic=False, rng=rng)[0]
    assert len(np.unique(drawn[:, 0])) == 50
    assert not np.array_equal(drawn, policy.act(obs, (), deterministic=False, rng=rng)[0])


def test_squashed_means_stay_where_tanh_has_a_slope() -> None:
    policy = parts("sac").actor.policy
    with torch.no_grad():
        policy.network[-1].bias.fill_(30.0)
    actions = policy.act(seen(), (), deterministic=True, rng=np.random.default_rng(0))[0]
    np.testing.assert_allclose(actions, np.tanh(MEAN_LIMIT), rtol=1e-6)


def test_actions_are_uniform_until_learning_starts() -> None:
    explorer, acted = parts("sac", learning_starts=50).actor.explorer, arrays()
    explorer.act(seen(), acted, Progress(timesteps=49, total_timesteps=1000))
    first = acted.action.copy()
    explorer.act(seen(), acted, Progress(timesteps=49, total_timesteps=1000))
    assert (first != acted.action).all()
    assert explorer.matrices.steps == 0


WARMING_UP = Progress(timesteps=49, total_timesteps=1000)


def test_noise_that_depends_on_the_state_may_act_before_learning_starts_too() -> None:
    explorer = parts("sac", learning_starts=50, use_sde_at_warmup=True, sde_sample_freq=3).actor.explorer
    learned = parts("sac", learning_starts=0, sde_sample_freq=3).actor.explorer
    taken = steps(explorer, 5, progress=WARMING_UP)
    np.testing.assert_array_equal(taken, steps(learned, 5))
    by_matrices = explorer.policy.act_by(seen(), explorer.matrices.matrices)
    np.testing.assert_array_equal(taken[-1], by_matrices)
    assert [bool((taken[i] != taken[i - 1]).all()) for i in range(1, 5)] == [False, False, True, False]


def test_unless_it_is_asked_for_the_first_actions_are_those_of_any_policy() -> None:
    for settings in ({}, {"use_sde_at_warmup": False}, {"use_sde": False}):
        explorer = parts("sac", learning_starts=50, **settings).actor.explorer
        drawn = numpy_generator(0, ACTIONS)
        expected = np.stack([drawn.uniform(-1.0, 1.0, (ENVS, 2)) for _ in range(6)]).astype(np.float32)
        np.testing.assert_array_equal(steps(explorer, 6, progress=WARMING_UP), expected)
        assert explorer.rng.random() == drawn.random(), "nothing else is drawn"


@pytest.mark.parametrize("algo", KINDS)
def test_what_is_learned_is_the_deviation_of_every_entry(algo: str) -> None:
    built = parts(algo, log_std_init=-1.5)
    assert (built.actor.policy.head.log_std == -1.5).all()
    assert built.learner.update_path == "explicit"
    optimizer = built.learner.actor_optimizer if algo == "sac" else built.learner.optimizer
    assert optimizer.gradient_of(built.actor.policy.head.log_std) is not None


@pytest.mark.parametrize("algo", ["ppo", "a2c", "recurrent_ppo"])
@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3])])
def test_choices_have_no_such_noise(algo: str, space: Any) -> None:
    with pytest.raises(
        UserError, match=r"use_sde is true, but action space .* is not continuous; set it to false"
    ):
        parts(algo, space=space)


@pytest.mark.parametrize(
    ("algo", "settings", "said"),
    [
        ("ppo", {"use_sde": True, "sde_sample_freq": 0}, "sde_sample_freq is 0; use 1 or more, or -1"),
        ("sac", {"use_sde": True, "sde_sample_freq": -2}, "sde_sample_freq is -2; use 1 or more, or -1"),
        ("a2c", {"sde_sample_freq": 4}, "sde_sample_freq is 4, but use_sde is false; leave it out"),
        ("sac", {"sde_sample_freq": 4}, "sde_sample_freq is 4, but use_sde is false; leave it out"),
        ("sac", {"use_sde_at_warmup": True}, "use_sde_at_warmup is true, but use_sde is false; leave it out"),
        ("ppo", {"use_sde_at_warmup": True}, "use_sde_at_warmup"),
        (
            "sac",
            {"log_std_init": -2.0},
            "log_std_init is -2.0, but use_sde is false; leave it out",
        ),
        (
            "sac",
            {"action_noise_sigma": 0.3},
            "action_noise_sigma is 0.3, but action_noise is none; leave it out",
        ),
        ("sac", {"action_noise": "gaussian", "action_noise_sigma": -1.0}, "action_noise_sigma is -1.0"),
        ("sac", {"action_noise": "pink"}, "action_noise"),
        ("recurrent_ppo", {"sde_sample_freq": 4}, "sde_sample_freq is 4, but use_sde is false; leave it out"),
        ("dqn", {"use_sde": True}, "use_sde"),
        ("td3", {"use_sde": True}, "use_sde"),
    ],
)
def test_what_is_impossible_is_said_in_a_sentence(algo: str, settings: Any, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        TrainConfig(algo=algo, env_id="none", seed=0).with_overrides(**settings)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


# ------------------------------------------------------------------------------------------- noise on top of SAC


@pytest.mark.parametrize("use_sde", [False, True])
def test_added_noise_is_that_of_td3_on_top_of_the_policys_own_sample(use_sde: bool) -> None:
    settings: dict[str, Any] = {"use_sde": use_sde, "learning_starts": 0}
    plain = parts("sac", **settings).actor.explorer
    noisy = parts("sac", **settings, action_noise="gaussian", action_noise_sigma=0.7).actor.explorer
    assert plain.noise is None
    assert isinstance(noisy.noise, GaussianNoise)
    (first,), (second,) = steps(plain, 1), steps(noisy, 1)
    expected = (first + 0.7 * plain.rng.standard_normal((ENVS, 2))).clip(-1.0, 1.0)
    np.testing.assert_allclose(second, expected, rtol=1e-6)


def test_added_noise_that_remembers_is_saved() -> None:
    built = parts("sac", use_sde=False, action_noise="ornstein_uhlenbeck", learning_starts=0)
    assert isinstance(built.actor.explorer.noise, OrnsteinUhlenbeckNoise)
    steps(built.actor.explorer, 3)
    saved = built.actor.explorer.state_dict()["noise"]["value"]
    assert saved.abs().min() > 0


def test_an_explorer_without_either_keeps_what_it_kept() -> None:
    built = parts("sac", use_sde=False)
    assert isinstance(built.learner, SACLearner)
    assert set(built.actor.explorer.state_dict()) == {"rng"}
    assert SAC.config_class is SACConfig
    assert SACConfig() == SACConfig(use_sde=False, sde_sample_freq=-1, action_noise="none")
