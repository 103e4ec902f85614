"""A2C, DQN with each switch, SAC, TD3 and DDPG on probe environments: each must find the known answer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from rl_training.algorithms import ALGORITHMS
from rl_training.algorithms.base import Algorithm
from rl_training.config import TrainConfig
from rl_training.envs.tasks import probes

GAMMA = 0.8
REPLAY = {
    "buffer_size": 5000,
    "learning_starts": 200,
    "batch_size": 64,
    "hidden_sizes": (32, 32),
    "gamma": GAMMA,
}
DQN = {
    **REPLAY,
    "learning_rate": 3e-3,
    "learning_rate_schedule": "linear",
    "train_freq": 4,
    "target_update_every_updates": 20,
    "exploration_fraction": 0.5,
}
SWITCHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "mse": {"td_loss": "mse"},
    "double": {"double": True},
    "dueling": {"dueling": True},
    "prioritized": {"prioritized": True},
    "3-step": {"n_step": 3},
    "noisy": {"noisy": True},
    "c51": {"distribution": "c51", "v_min": -6.0, "v_max": 6.0},
    "quantile": {"distribution": "quantile", "num_quantiles": 20},
}
CONTINUOUS: dict[str, tuple[str, dict[str, Any]]] = {
    "sac": ("sac", {}),
    "td3": ("td3", {}),
    "ddpg": ("td3", {"num_critics": 1, "policy_delay": 1, "target_policy_noise": 0.0}),
    "redq": ("sac", {"num_critics": 4, "critic_subset": 2}),
    "sac, state-dependent noise": ("sac", {"use_sde": True, "log_std_init": -1.0, "sde_sample_freq": 1}),
    "sac, added noise": ("sac", {"action_noise": "gaussian", "action_noise_sigma": 0.3}),
}


def train(
    algo: str, env: Callable[..., gymnasium.Env[Any, Any]], folder: Path, timesteps: int, **settings: Any
) -> Algorithm:
    config = TrainConfig(
        algo=algo,
        env_id="Probe-v0",
        seed=2,
        output_dir=str(folder),
        total_timesteps=timesteps,
        num_envs=4,
        eval_every_timesteps=0,
        checkpoint_every_timesteps=0,
        num_eval_episodes=20,
    ).with_overrides(**settings)
    return ALGORITHMS[algo](config, env=env).learn()


def q_values(model: Algorithm, obs: Any) -> Any:
    policy: Any = model.agent.policy
    with torch.no_grad():
        features = policy.prepare(torch.as_tensor(np.asarray(obs, np.float32))[None])
        return policy.action_values(policy.network(features))[0].numpy()


@pytest.mark.parametrize("switch", SWITCHES)
def test_dqn_does_not_take_a_time_limit_for_death(switch: str, tmp_path: Path) -> None:
    model = train("dqn", probes.ConstantRewardTimeLimit, tmp_path, 5_000, **DQN | SWITCHES[switch])
    assert q_values(model, probes.ZERO) == pytest.approx(1 / (1 - GAMMA), rel=0.05)


@pytest.mark.parametrize("switch", ["plain", "3-step", "c51", "quantile"])
def test_dqn_takes_a_termination_for_death(switch: str, tmp_path: Path) -> None:
    model = train("dqn", probes.ConstantRewardTermination, tmp_path, 5_000, **DQN | SWITCHES[switch])
    expected = [1 + GAMMA + GAMMA**2, 1 + GAMMA, 1.0]
    for state, answer in zip(np.eye(3), expected, strict=True):
        assert q_values(model, state) == pytest.approx(answer, abs=0.15)


@pytest.mark.parametrize("switch", ["plain", "double", "noisy", "c51"])
def test_dqn_acts_by_the_observation(switch: str, tmp_path: Path) -> None:
    model = train("dqn", probes.ObservationDecides, tmp_path, 5_000, **DQN | SWITCHES[switch])
    assert model.evaluate(20)["mean_reward"] == 4.0


def test_dqn_combines_nested_dict_entries(tmp_path: Path) -> None:
    model = train("dqn", probes.NestedDictTarget, tmp_path, 8_000, **DQN | {"gamma": 0.0})
    assert model.evaluate(40)["mean_reward"] == 4.0


def test_a2c_acts_by_the_observation(tmp_path: Path) -> None:
    model = train("a2c", probes.ObservationDecides, tmp_path, 12_000, learning_rate=5e-3, gamma=0.5)
    assert model.evaluate(20)["mean_reward"] == 4.0


def test_a2c_does_not_take_a_time_limit_for_death(tmp_path: Path) -> None:
    settings = {"learning_rate": 7e-3, "learning_rate_schedule": "linear", "gamma": GAMMA}
    model = train("a2c", probes.ConstantRewardTimeLimit, tmp_path, 30_000, **settings)
    policy: Any = model.agent.policy
    assert policy.values(probes.ZERO[None])[0] == pytest.approx(1 / (1 - GAMMA), rel=0.05)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_the_continuous_target_is_hit_in_environment_units(name: str, tmp_path: Path) -> None:
    algo, settings = CONTINUOUS[name]
    replay = REPLAY | {"learning_rate": 3e-3, "learning_rate_schedule": "linear", "gamma": 0.0}
    model = train(algo, probes.ContinuousTarget, tmp_path, 4_000, **replay | settings)
    action, _ = model.predict(probes.ZERO)
    assert float(action[0]) == pytest.approx(probes.ContinuousTarget.target, abs=0.5)
