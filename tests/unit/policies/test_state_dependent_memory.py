"""Noise that depends on what a memory gives: when matrices are drawn, what they make of it, and that all is saved."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from records import step_arrays

from rl_training.algorithms.recurrent_ppo import RecurrentPPO, RecurrentPPOConfig
from rl_training.config import TrainConfig
from rl_training.core.columns import allocated
from rl_training.core.types import ActArrays, EnvSpec, Progress
from rl_training.experiment.building import build_parts
from rl_training.models.state_dependent import StateDependentHead

ENVS, CORE = 3, 4
OBSERVATIONS, MOTORS = spaces.Box(-5, 5, (3,)), spaces.Box(-2, 3, (2,))
PROGRESS = Progress(timesteps=100, total_timesteps=1000)
KINDS: dict[str, dict[str, Any]] = {
    "lstm": {},
    "gru": {"core": "gru"},
    "shared core": {"share_core": True},
    "shared network": {"share_core": True, "shared_network": True},
    "no hidden layers": {"hidden_sizes": ()},
}


def parts(*, seed: int = 0, **settings: Any) -> Any:
    settings = {"use_sde": True, "hidden_sizes": (6, 5), "core_size": CORE} | settings
    config = TrainConfig(algo="recurrent_ppo", env_id="none", seed=seed, num_envs=ENVS).with_overrides(
        **settings
    )
    return build_parts(config, EnvSpec(OBSERVATIONS, MOTORS, ENVS))


def seen(seed: int = 1) -> Any:
    return np.random.default_rng(seed).standard_normal((ENVS, 3)).astype(np.float32)


def arrays(explorer: Any) -> ActArrays:
    numbers = [np.zeros(ENVS, np.float32) for _ in range(4)]
    return ActArrays(np.zeros((ENVS, 2), np.float32), *numbers, extra=allocated(explorer.columns, ENVS))


def steps(explorer: Any, count: int) -> Any:
    """Return the actions of so many steps, without an end of collecting or of an episode."""
    acted, taken = arrays(explorer), []
    for number in range(count):
        explorer.act(seen(number), acted, PROGRESS)
        taken.append(acted.action.copy())
    return np.stack(taken)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_what_a_matrix_makes_of_the_last_layer_after_the_memory(kind: str) -> None:
    explorer = parts(**KINDS[kind]).actor.explorer
    policy, acted = explorer.policy, arrays(explorer)
    features = CORE if kind == "no hidden layers" else 5
    assert isinstance(policy.head, StateDependentHead)
    assert policy.head.log_std.shape == (features, 2)
    steps(explorer, 3)
    before = tuple(part.copy() for part in explorer.memory.parts)
    assert all(part.any() for part in before)
    explorer.act(seen(), acted, PROGRESS)
    params, values, after = policy.step(seen(), before)
    noise = np.einsum("nh,nha->na", params[:, 2:], explorer.matrices.matrices)
    np.testing.assert_allclose(acted.action, params[:, :2] + noise, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(acted.value, values)
    for part, expected in zip(explorer.memory.parts, after, strict=True):
        np.testing.assert_array_equal(part, expected)
    if kind == "no hidden layers":
        np.testing.assert_array_equal(params[:, 2:], after[0], "what an lstm says is a part of its memory")
    logprobs, _ = policy.head.logprob_entropy(torch.from_numpy(params), torch.from_numpy(acted.action))
    np.testing.assert_allclose(acted.logprob, logprobs.detach(), rtol=1e-4)


def test_matrices_are_drawn_when_a_phase_begins_and_every_so_many_steps_of_it() -> None:
    explorer = parts(sde_sample_freq=3).actor.explorer
    drawn = []
    for _ in range(5):
        steps(explorer, 1)
        drawn.append(explorer.matrices.matrices)
    explorer.end_collect(step_arrays(seen(), np.zeros(ENVS)), arrays(explorer))
    steps(explorer, 1)
    drawn.append(explorer.matrices.matrices)
    changes = [bool((drawn[i] != drawn[i - 1]).all()) for i in range(1, 6)]
    assert changes == [False, False, True, False, True]
    assert len(np.unique(drawn[0][:, 0, 0])) == ENVS, "every environment has a matrix of its own"


def test_the_end_of_an_episode_takes_the_memory_and_leaves_the_matrices() -> None:
    explorer = parts().actor.explorer
    steps(explorer, 2)
    matrices = explorer.matrices.matrices
    ended = np.array([False, True, False])
    explorer.after_step(step_arrays(seen(), np.zeros(ENVS), terminated=ended), arrays(explorer))
    assert not explorer.memory.parts[0][1].any()
    steps(explorer, 1)
    assert explorer.matrices.matrices is matrices


def test_a_state_from_the_middle_of_a_phase_and_of_an_episode_goes_on_alike() -> None:
    one, other = (parts(seed=seed, sde_sample_freq=5).actor for seed in (0, 1))
    other.policy.load_state_dict(one.policy.state_dict())
    steps(one.explorer, 7)
    saved = one.explorer.state_dict()
    assert set(saved) == {"rng", "memory", "matrices"}
    other.explorer.load_state_dict(saved)
    np.testing.assert_array_equal(steps(one.explorer, 30), steps(other.explorer, 30))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_learned_is_the_deviation_of_every_entry(kind: str) -> None:
    built = parts(log_std_init=-1.5, **KINDS[kind])
    assert (built.actor.policy.head.log_std == -1.5).all()
    assert built.learner.update_path == "explicit"
    assert built.learner.optimizer.gradient_of(built.actor.policy.head.log_std) is not None


def test_without_chance_it_takes_its_mean_and_otherwise_draws_every_time() -> None:
    policy = parts().actor.policy
    state, rng = policy.initial_state(ENVS), np.random.default_rng(0)
    mean, after = policy.act(seen(), state, deterministic=True, rng=rng)
    np.testing.assert_array_equal(mean, policy.step(seen(), state)[0][:, :2])
    drawn, again = (policy.act(seen(), state, deterministic=False, rng=rng)[0] for _ in range(2))
    assert (drawn != mean).all()
    assert (drawn != again).all()
    assert all(part.any() for part in after)


def test_without_it_an_explorer_keeps_what_it_kept() -> None:
    assert set(parts(use_sde=False).actor.explorer.state_dict()) == {"rng", "memory"}
    assert RecurrentPPO.config_class is RecurrentPPOConfig
    assert RecurrentPPOConfig() == RecurrentPPOConfig(use_sde=False, sde_sample_freq=-1)
