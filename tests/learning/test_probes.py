"""PPO on probe environments: it must find the known answer, each for one reason.

With 0.7 of the budgets for time limits, continuous and multi actions and nested entries five seeds of five still pass.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rl_training.algorithms import PPO
from rl_training.algorithms.ppo import PPOConfig
from rl_training.config import TrainConfig
from rl_training.core.types import ObsArray
from rl_training.envs.observations import batched
from rl_training.envs.tasks import probes

GAMMA = 0.9


def train(env: Callable[..., gymnasium.Env[Any, Any]], folder: Path, timesteps: int, **settings: Any) -> PPO:
    run_level = {key: settings.pop(key) for key in list(settings) if key.startswith("normalize_obs")}
    config = TrainConfig(
        algo="ppo",
        env_id="Probe-v0",
        seed=2,
        output_dir=str(folder),
        total_timesteps=timesteps,
        num_envs=4,
        eval_every_timesteps=0,
        checkpoint_every_timesteps=0,
        num_eval_episodes=40,
        algorithm=PPOConfig(
            **{
                "num_steps": 32,
                "batch_size": 64,
                "learning_rate": 1e-2,
                "learning_rate_schedule": "linear",
                "gamma": GAMMA,
                "hidden_sizes": (32,),
            }
            | settings
        ),
        **run_level,
    )
    return PPO(config, env=env).learn()


def value(model: PPO, obs: Any) -> float:
    batch: ObsArray = batched(model.agent.spec.observation_space, obs)[0]
    return float(model.agent.policy.values(batch)[0])  # type: ignore[attr-defined]


def test_one_step_reward_has_value_one(tmp_path: Path) -> None:
    model = train(probes.OneStepReward, tmp_path, 3_000)
    assert value(model, probes.ZERO) == pytest.approx(1.0, abs=0.05)


def test_time_limit_is_not_death(tmp_path: Path) -> None:
    model = train(probes.ConstantRewardTimeLimit, tmp_path, 8_000)
    assert value(model, probes.ZERO) == pytest.approx(1 / (1 - GAMMA), rel=0.03)


def test_time_limit_is_not_death_with_a_native_next_step_env(tmp_path: Path) -> None:
    """CartPole that cannot fall within its limit of 8 steps: reward 1 for ever, in next-step autoreset mode."""
    config = TrainConfig(
        algo="ppo",
        env_id="CartPole-v1",
        seed=2,
        output_dir=str(tmp_path),
        total_timesteps=10_000,
        num_envs=8,
        env_backend="native",
        env_kwargs={"max_episode_steps": 5},
        eval_every_timesteps=0,
        algorithm=PPOConfig(
            num_steps=32,
            batch_size=128,
            gamma=GAMMA,
            learning_rate=1e-2,
            learning_rate_schedule="linear",
            hidden_sizes=(32,),
        ),
    )
    model = PPO(config).learn()
    assert value(model, np.zeros(4, np.float32)) == pytest.approx(1 / (1 - GAMMA), rel=0.05)


def test_termination_is_death(tmp_path: Path) -> None:
    model = train(probes.ConstantRewardTermination, tmp_path, 10_000)
    expected = [1 + GAMMA + GAMMA**2, 1 + GAMMA, 1.0]
    for state, answer in zip(np.eye(3, dtype=np.float32), expected, strict=True):
        assert value(model, state) == pytest.approx(answer, abs=0.08)


def test_credit_reaches_back_one_step(tmp_path: Path) -> None:
    model = train(probes.TwoStepCredit, tmp_path, 8_000)
    assert value(model, np.array([-1.0], np.float32)) == pytest.approx(GAMMA, abs=0.05)
    assert value(model, np.array([1.0], np.float32)) == pytest.approx(1.0, abs=0.05)


def test_better_arm_is_found(tmp_path: Path) -> None:
    model = train(probes.TwoArms, tmp_path, 4_000)
    assert model.evaluate(20)["mean_reward"] == 1.0
    assert value(model, probes.ZERO) == pytest.approx(1.0, abs=0.1)


def test_action_follows_the_observation(tmp_path: Path) -> None:
    model = train(probes.ObservationDecides, tmp_path, 6_000)
    assert model.evaluate(20)["mean_reward"] == 4.0


def test_continuous_target_is_hit_in_environment_units(tmp_path: Path) -> None:
    model = train(probes.ContinuousTarget, tmp_path, 8_000)
    action, _ = model.predict(probes.ZERO)
    assert float(action[0]) == pytest.approx(probes.ContinuousTarget.target, abs=0.5)


@pytest.mark.parametrize("sde_sample_freq", [4, -1])
def test_continuous_target_is_hit_with_state_dependent_noise(sde_sample_freq: int, tmp_path: Path) -> None:
    """Biases that are not 0: what is observed is, and features of 0 would make no noise."""
    settings = {"use_sde": True, "sde_sample_freq": sde_sample_freq, "log_std_init": -1.0}
    model = train(probes.ContinuousTarget, tmp_path, 8_000, orthogonal_init=False, **settings)
    action, _ = model.predict(probes.ZERO)
    assert float(action[0]) == pytest.approx(probes.ContinuousTarget.target, abs=0.5)


@pytest.mark.parametrize("env", [probes.MultiDiscreteTarget, probes.MultiBinaryTarget])
def test_every_component_of_a_multi_action_is_learned(env: Any, tmp_path: Path) -> None:
    model = train(env, tmp_path, 8_000, gamma=0.5)
    assert model.evaluate(40)["mean_reward"] >= 0.97 * 4


@pytest.mark.parametrize("normalize_obs", [False, True])
def test_dict_entries_are_told_apart(normalize_obs: bool, tmp_path: Path) -> None:
    model = train(probes.DictTarget, tmp_path, 8_000, normalize_obs=normalize_obs)
    assert model.evaluate(40)["mean_reward"] == 4.0


def test_nested_dict_entries_are_combined(tmp_path: Path) -> None:
    settings = {"num_steps": 64, "batch_size": 128, "hidden_sizes": (64, 64), "learning_rate": 3e-3}
    model = train(probes.NestedDictTarget, tmp_path, 12_500, gamma=0.0, **settings)
    assert model.evaluate(40)["mean_reward"] == 4.0
