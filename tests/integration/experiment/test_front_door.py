"""The short way to a trained agent in Python: an algorithm, an environment, settings as keywords."""

import copy
import functools
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from tiny_encoders import Plain
from tiny_envs import Clockwork

import rl_training
from rl_training import PPO, SAC, algorithms
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, UserError

ROOT = Path(__file__).resolve().parents[3]
TINY = {
    "total_timesteps": 64, "num_envs": 2, "num_steps": 16, "batch_size": 16, "update_epochs": 2, "hidden_sizes": [8],
    "eval_every_timesteps": 0, "num_eval_episodes": 2, "checkpoint_every_timesteps": 0, "log_every_timesteps": 32,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class TestImports:
    def test_every_algorithm_is_at_the_top_and_listed(self):
        for algorithm in algorithms.ALGORITHMS.values():
            assert getattr(rl_training, algorithm.__name__) is algorithm
            assert algorithm.__name__ in dir(rl_training)
            assert algorithm.__name__ in rl_training.__all__

    def test_an_unknown_name(self):
        with pytest.raises(AttributeError, match="no attribute 'PP0'"):
            rl_training.PP0  # noqa: B018
        with pytest.raises(ImportError):
            from rl_training import PP0  # noqa: F401

    def test_listing_the_package_imports_nothing_heavy(self):
        script = (
            "import sys, rl_training; dir(rl_training)\n"
            "print(sorted({'torch', 'numpy', 'gymnasium', 'yaml', 'typing'} & set(sys.modules)))\n"
            "from rl_training import PPO; print('torch' in sys.modules, PPO.__name__)"
        )
        done = subprocess.run([sys.executable, "-Ic", script], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines() == ["[]", "True PPO"]


class TestConstructing:
    def test_an_id_and_settings_of_both_levels(self):
        model = PPO("CartPole-v1", seed=1, num_envs=4, learning_rate=1e-3, hidden_sizes=[32])
        expected = TrainConfig(algo="ppo", env_id="CartPole-v1", seed=1, num_envs=4)
        assert model.config == expected.with_overrides(learning_rate=1e-3, hidden_sizes=(32,))
        assert model.env_id == "CartPole-v1"

    def test_the_environment_by_keyword(self):
        assert PPO(env="CartPole-v1").config == PPO(env_id="CartPole-v1").config == PPO("CartPole-v1").config

    def test_a_config_with_settings_on_top(self, tiny):
        config = tiny("ppo")
        assert PPO(config).config == config
        assert PPO(config, seed=3, gamma=0.5).config == config.with_overrides(seed=3, gamma=0.5)
        assert PPO(config, env="CartPole-v1").config == config.with_overrides(env_id="CartPole-v1")

    @pytest.mark.parametrize(
        ("factory", "name"),
        [
            (Clockwork, "Clockwork"),
            (functools.partial(Clockwork, length=3), "Clockwork"),
            (lambda: Clockwork(), "custom"),
        ],
    )
    def test_a_function_that_builds_an_environment(self, factory, name):
        model = PPO(factory, **TINY).learn()
        assert model.env_id == name
        assert model.run_dir.name.startswith(f"ppo__{name}__seed0__")
        assert PPO(factory, env_id="Mine").env_id == "Mine"

    def test_an_encoder_by_name_and_by_class(self):
        assert PPO("CartPole-v1", encoder="flat").config.algorithm.encoder == "flat"
        model = PPO("CartPole-v1", encoder=Plain, features_dim=5, **TINY).learn()
        assert model.config.algorithm.encoder == "tiny_encoders:Plain"

    def test_runs_lie_under_runs(self, tmp_path):
        model = PPO("tiny_envs:Clockwork-v0", **TINY).learn(32)
        assert model.run_dir.parent.resolve() == tmp_path / "runs"


class TestMistakes:
    @pytest.mark.parametrize(
        ("settings", "problem"),
        [
            ({"learning_rat": 1}, "PPO: unknown setting 'learning_rat'; did you mean 'learning_rate'?"),
            ({"n_steps": 8}, "PPO: unknown setting 'n_steps'; here it is called 'num_steps'"),
            ({"lr": 1}, "PPO: unknown setting 'lr'; here it is called 'learning_rate'"),
            ({"num_envs": "many"}, "PPO: num_envs is 'many'; use a whole number such as 5000"),
            ({"gamma": 2}, "PPO: gamma is 2.0; use a number from 0 to 1"),
        ],
    )
    def test_a_wrong_keyword(self, settings, problem):
        with pytest.raises(ConfigError) as raised:
            PPO("CartPole-v1", **settings)
        assert str(raised.value) == problem

    def test_all_problems_at_once(self):
        with pytest.raises(ConfigError) as raised:
            PPO("CartPole-v1", lr=1, num_envs=0, gamma="high", vf_coef="low", seed=-1)
        assert raised.value.problems == [
            "unknown setting 'lr'; here it is called 'learning_rate'",
            "gamma is 'high'; use a number",
            "vf_coef is 'low'; use a number",
            "seed is -1; use 0 or more",
            "num_envs is 0; use a number from 1 to 65536",
        ]

    def test_a_config_of_another_algorithm(self, tiny):
        with pytest.raises(ConfigError, match="algo is 'ppo', but SAC takes algo 'sac'"):
            SAC(tiny("ppo"))

    def test_no_environment_or_two(self):
        with pytest.raises(UserError, match=r'PPO needs an environment: PPO\("CartPole-v1"\)'):
            PPO(seed=1)
        with pytest.raises(UserError, match="got two environments"):
            PPO("CartPole-v1", env="Acrobot-v1")
        with pytest.raises(UserError, match="got two environments"):
            PPO("CartPole-v1", env_id="Acrobot-v1")

    def test_an_environment_instead_of_a_function(self):
        env = gymnasium.make("CartPole-v1")
        with pytest.raises(UserError, match=r"builds a new one each time .*: lambda: CartPoleEnv\(\.\.\.\)"):
            PPO(env)

    def test_a_function_that_returns_the_same_environment(self):
        env = Clockwork()
        with pytest.raises(UserError, match="returned the same environment twice; let it build a new one"):
            PPO(lambda: env, **TINY).learn()

    def test_something_else(self):
        with pytest.raises(UserError, match="env is 3; pass an id, or a function"):
            PPO(3)


class TestPresets:
    def test_a_preset_with_settings_on_top(self):
        model = PPO.from_preset("ppo/cartpole", seed=3, num_envs=16)
        assert (model.env_id, model.config.seed, model.config.num_envs) == ("CartPole-v1", 3, 16)
        assert PPO.from_preset("zoo/classic/ppo_cartpole").env_id == "CartPole-v1"

    def test_an_unknown_one(self):
        with pytest.raises(UserError, match=r"no preset 'ppo/cartpol'; did you mean 'ppo/cartpole'\?"):
            PPO.from_preset("ppo/cartpol")

    def test_one_of_another_algorithm(self):
        with pytest.raises(UserError) as raised:
            PPO.from_preset("dqn/cartpole")
        assert str(raised.value) == (
            "preset 'dqn/cartpole' is for dqn, not for ppo; use DQN.from_preset('dqn/cartpole'), or "
            "PPO.from_preset('ppo/cartpole')"
        )


class TestLookingAtAModel:
    def test_before_and_after_training(self):
        model = PPO("tiny_envs:Clockwork-v0", seed=1, **TINY)
        assert repr(model) == "PPO(env_id='tiny_envs:Clockwork-v0', seed=1, timesteps=0)"
        assert model.run_dir is None
        obs = np.zeros(model.policy.spec.observation_space.shape, np.float32)
        assert model.predict(obs)[0].shape == ()
        model.learn()
        best = rl_training.load_runs(model.run_dir)[0].best
        told = f"PPO(env_id='tiny_envs:Clockwork-v0', seed=1, timesteps=64, best={best:.1f})"
        assert repr(model) == repr(rl_training.load(model.run_dir)) == repr(copy.deepcopy(model)) == told

    def test_a_model_whose_run_is_gone_still_has_a_name(self):
        import shutil

        model = PPO("tiny_envs:Clockwork-v0", **TINY).learn()
        shutil.rmtree(model.run_dir)
        assert repr(model) == "PPO(env_id='tiny_envs:Clockwork-v0', seed=0, timesteps=64)"

    def test_the_learning_curve(self, tmp_path):
        from matplotlib.figure import Figure

        model = PPO("tiny_envs:Clockwork-v0", **TINY)
        with pytest.raises(UserError, match=r"no run to plot yet; call learn\(\) first"):
            model.plot()
        model.learn()
        figure = model.plot(path=tmp_path / "curve.png")
        assert isinstance(figure, Figure)
        assert figure.axes[0].get_title() == "ppo on tiny_envs:Clockwork-v0"
        assert figure._repr_png_() == (tmp_path / "curve.png").read_bytes()
        assert isinstance(rl_training.load(model.run_dir / "checkpoints").plot(), Figure)
        with pytest.raises(UserError, match="cannot write"):
            model.plot(path=tmp_path / "nowhere" / "curve.png")
        with pytest.raises(UserError, match="cannot write"):
            model.plot(path=tmp_path / "curve.xyz")


class TestTypes:
    def test_the_keywords_are_those_of_the_settings(self):
        sys.path.insert(0, str(ROOT / "scripts"))
        try:
            from write_keywords import FILE, keywords_source
        finally:
            sys.path.pop(0)
        assert FILE.read_text(encoding="utf-8") == keywords_source(), "run python scripts/write_keywords.py"

    def test_a_type_checker_knows_the_keywords(self, tmp_path):
        script = tmp_path / "example.py"
        script.write_text(
            "import gymnasium\n"
            "from rl_training import DQN, PPO\n"
            'PPO("CartPole-v1", seed=1, num_envs=8, learning_rate=1e-3, hidden_sizes=[64]).learn(50_000)\n'
            'PPO(lambda: gymnasium.make("CartPole-v1"), learning_rate_schedule="linear")\n'
            'PPO.from_preset("ppo/cartpole", clip_coef=0.1).plot()\n'
            'PPO("CartPole-v1", buffer_size=3)\n'
            'DQN("CartPole-v1", batch_size="large")\n',
            encoding="utf-8",
        )
        words = [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--cache-dir",
            str(ROOT / ".mypy_cache"),
            str(script),
        ]
        options = ["--config-file", str(ROOT / "pyproject.toml")]
        done = subprocess.run([*words, *options], capture_output=True, text=True, cwd=ROOT)
        errors = [line for line in done.stdout.splitlines() if ": error: " in line]
        assert len(errors) == 2, done.stdout + done.stderr
        assert ":6: error:" in errors[0]
        assert '"buffer_size" for "PPO"' in errors[0]
        assert ":7: error:" in errors[1]
        assert '"batch_size"' in errors[1]
