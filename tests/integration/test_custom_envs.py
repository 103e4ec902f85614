"""Environments of the user's own: a function that builds one, or `module:Id`."""

import sys

import numpy as np
import pytest
from tiny_envs import Clockwork

import rl_training
from rl_training.algorithms import PPO
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.envs import make_vector_env
from rl_training.envs.factory import make_env
from rl_training.trainer import train_ppo

MODULE = '''
import gymnasium
import numpy as np


class Echo(gymnasium.Env):
    """Reward 1 for repeating the observation; `size` choices."""

    observation_space = gymnasium.spaces.Box(0.0, 9.0, (1,), np.float32)

    def __init__(self, size=2):
        self.action_space = gymnasium.spaces.Discrete(size)
        self.time = 0

    def _obs(self):
        self.wanted = int(self.np_random.integers(self.action_space.n))
        return np.array([self.wanted], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._obs(), {}

    def step(self, action):
        reward = float(action == self.wanted)
        self.time += 1
        return self._obs(), reward, False, self.time >= 4, {}


gymnasium.register("Echo-v0", entry_point="users_envs:Echo", disable_env_checker=True)
'''


@pytest.fixture
def users_module(tmp_path, monkeypatch):
    """A module in the folder one works in, which is where people have theirs."""
    import gymnasium

    (tmp_path / "users_envs.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield "users_envs:Echo-v0"
    sys.modules.pop("users_envs", None)
    gymnasium.registry.pop("Echo-v0", None)


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_module_and_id_through_every_command(users_module, cli, tiny, tmp_path, backend):
    path = tmp_path / "settings.yaml"
    path.write_text(tiny(env_id=users_module, env_backend=backend).to_yaml(), encoding="utf-8")
    trained = cli("train", "--config", path, "--quiet", "--env-kwargs", "{size: 3}")
    assert (trained.code, trained.err) == (0, "")
    run_dir = trained.out.strip()
    assert "users_envs-Echo-v0" in run_dir
    model = rl_training.load(run_dir)
    assert model.agent.spec.action_space.n == 3
    assert model.evaluate(2)["lengths"] == [4, 4]
    assert cli("eval", run_dir, "--num-episodes", 2).code == 0
    assert cli("resume", run_dir, "--total-timesteps", 96, "--quiet").code == 0


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_a_function_that_builds_one(tiny, tmp_path, backend):
    made = []

    def build(length):
        made.append(length)
        return Clockwork(length=length)

    config = tiny(env_id="my clock", env_kwargs={"length": 5}, env_backend=backend)
    model = PPO(config, env=build).learn()
    assert model.evaluate(3)["lengths"] == [5, 5, 5]
    assert set(made) == {5}
    model.save(tmp_path / "agent")
    again = PPO.load(tmp_path / "agent", env=build)
    assert again.evaluate(3) == model.evaluate(3)
    again.learn(32)
    assert again.agent.timesteps == 96


def test_an_agent_of_a_function_needs_the_function_again(tiny, tmp_path):
    PPO(tiny(env_id="my-clock-v0"), env=Clockwork).learn().save(tmp_path / "agent")
    with pytest.raises(UserError, match="env_id 'my-clock-v0'"):
        PPO.load(tmp_path / "agent")


def test_a_function_has_no_native_backend(tiny):
    with pytest.raises(UserError, match="'native' needs a registered environment"):
        PPO(tiny(env_backend="native"), env=Clockwork).learn()


def test_module_and_id_with_an_implementation_of_its_own(tiny):
    result = train_ppo(tiny(env_id="tiny_envs:Pole-v0", env_backend="native"))
    assert result.metrics["global_step"] >= 64
    assert rl_training.load(result.run_dir).evaluate(3)["num_episodes"] == 3


def test_the_promised_calls_of_the_envs_package():
    from gymnasium.vector import SyncVectorEnv

    config = TrainConfig(algo="ppo", env_id="CartPole-v1", num_envs=3)
    vector = make_vector_env(config)
    assert type(vector) is SyncVectorEnv
    assert vector.num_envs == 3
    vector.close()
    vector = make_vector_env(config, num_envs=2)
    assert vector.num_envs == 2
    vector.close()
    first, again, other = (make_env(config, index)() for index in (0, 0, 1))
    starts = [env.reset()[0] for env in (first, again, other)]
    assert np.array_equal(starts[0], starts[1])
    assert not np.array_equal(starts[0], starts[2])


def test_defaults_suit_two_environments_of_64_steps(tiny):
    config = TrainConfig(
        algo="ppo", env_id="CartPole-v1", seed=1, output_dir=tiny().output_dir, num_eval_episodes=1
    )
    result = train_ppo(config, total_timesteps=128, num_envs=2, num_steps=64)
    assert result.metrics["global_step"] == 128
    assert result.checkpoint_path.parents[1] == result.run_dir
