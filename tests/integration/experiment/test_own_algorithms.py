"""An algorithm of one's own, `algo: module:Class`, works wherever a built-in one does."""

import copy
import pickle
import re
from pathlib import Path

import pytest
import torch
from tiny_algorithms import Renamed, ScaledConfig, ScaledPPO

import rl_training
from rl_training import DQN, PPO
from rl_training.algorithms.base import Algorithm
from rl_training.config import TrainConfig, load_config
from rl_training.core.errors import UserError
from rl_training.experiment.resume import resume
from rl_training.experiment.start import evaluate_checkpoint

ALGO = "tiny_algorithms:ScaledPPO"
SMALL = {"num_envs": 2, "num_steps": 16, "batch_size": 16, "hidden_sizes": [8], "num_eval_episodes": 1}


def only_run(folder: Path) -> Path:
    (run_dir,) = folder.glob("*__seed*")
    return run_dir


def weights(model: Algorithm) -> dict[str, torch.Tensor]:
    return model.agent.state["model"]


@pytest.fixture
def small(tmp_path):
    """Settings that train in a tenth of a second."""
    return SMALL | {"output_dir": str(tmp_path / "runs"), "total_timesteps": 64}


@pytest.fixture
def own(tmp_path) -> Path:
    """A config file of an own algorithm."""
    lines = ["algo: tiny_algorithms:ScaledPPO", "env_id: CartPole-v1", "total_timesteps: 64", "num_envs: 2"]
    lines += ["num_eval_episodes: 1", f"output_dir: {tmp_path / 'runs'}", "algorithm:"]
    lines += ["  num_steps: 16", "  batch_size: 16", "  hidden_sizes: [8]", "  scale: 0.5"]
    path = tmp_path / "own.yaml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


class TestInPython:
    def test_its_config_names_it(self, small):
        model = ScaledPPO("CartPole-v1", scale=0.5, **small)
        assert model.config.algo == ALGO
        assert model.config.algorithm.scale == 0.5
        assert type(model.config.algorithm) is ScaledConfig

    def test_train_save_load_resume(self, small, tmp_path):
        model = ScaledPPO("CartPole-v1", scale=0.5, **small).learn()
        ScaledPPO.scales.clear()
        model.save(tmp_path / "agent")
        for load in (ScaledPPO.load, PPO.load, Algorithm.load, rl_training.load):
            for place in (model.run_dir, tmp_path / "agent"):
                loaded = load(place)
                assert type(loaded) is ScaledPPO
                assert loaded.config.algorithm.scale == 0.5
        assert set(ScaledPPO.scales) == {0.5}
        assert resume(model.run_dir, total_timesteps=96).metrics["global_step"] == 96
        assert evaluate_checkpoint(model.run_dir, 1)["num_episodes"] == 1

    def test_a_class_of_the_same_name_is_not_its_parent(self, small):
        assert Renamed.name == PPO.name
        run_dir = Renamed("CartPole-v1", **small).learn().run_dir
        assert type(PPO.load(run_dir)) is Renamed
        assert load_config(run_dir / "config.yaml").algo == "tiny_algorithms:Renamed"
        with pytest.raises(UserError, match=r"a tiny_algorithms:Renamed agent; load it with Renamed\.load"):
            ScaledPPO.load(run_dir)
        with pytest.raises(UserError, match=r"a tiny_algorithms:Renamed agent; load it with Renamed\.load"):
            DQN.load(run_dir)

    def test_copies_and_pickles(self, small):
        model = ScaledPPO("CartPole-v1", scale=0.5, **small).learn()
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert type(other) is ScaledPPO
            assert other.config == model.config
            assert all(torch.equal(weights(other)[name], tensor) for name, tensor in weights(model).items())

    def test_start_from_a_run_of_its_own_and_of_its_parent(self, small):
        parent = PPO("CartPole-v1", **small).learn()
        child = ScaledPPO.start_from(parent.run_dir, scale=0.5)
        assert child.config.algo == ALGO
        assert all(torch.equal(weights(child)[name], tensor) for name, tensor in weights(parent).items())
        child.learn(64)
        again = ScaledPPO.start_from(child.run_dir).learn(64)
        assert again.config.algorithm.scale == 0.5
        with pytest.raises(UserError, match=r"a tiny_algorithms:ScaledPPO agent"):
            Renamed.start_from(child.run_dir)

    def test_a_run_does_not_go_on_with_another_class(self, small):
        run_dir = PPO("CartPole-v1", **small).learn().run_dir
        with pytest.raises(UserError, match=r"a run of ppo, not of tiny_algorithms:Renamed; .*start_from"):
            resume(run_dir, total_timesteps=96, algorithm=Renamed)

    def test_a_local_class_must_be_given(self, small):
        class Local(PPO):
            config_class = ScaledConfig

        model = Local("CartPole-v1", scale=2.0, **small).learn()
        assert type(Local.load(model.run_dir)) is Local
        assert Local.load(model.run_dir).config.algorithm.scale == 2.0
        with pytest.raises(UserError, match=r"Local' is a local class.*Local\.load"):
            PPO.load(model.run_dir)
        assert resume(model.run_dir, algorithm=Local, total_timesteps=96).metrics["global_step"] == 96

    def test_presets(self, own, small):
        model = ScaledPPO.from_preset("ppo/cartpole", scale=3.0)
        assert (model.config.algo, model.config.algorithm.scale) == (ALGO, 3.0)
        preset = load_config("ppo/cartpole")
        assert model.config.algorithm.learning_rate == preset.algorithm.learning_rate
        assert model.config.total_timesteps == preset.total_timesteps
        assert ScaledPPO.from_preset(str(own)).config.algorithm.scale == 0.5
        with pytest.raises(UserError, match=r"is for tiny_algorithms:ScaledPPO.*ScaledPPO\.from_preset"):
            PPO.from_preset(str(own))
        with pytest.raises(UserError, match=r"is for dqn"):
            ScaledPPO.from_preset("dqn/cartpole")

    def test_a_config_of_its_parent_becomes_its_own(self, tiny):
        model = ScaledPPO(tiny(learning_rate=0.125), scale=2.0)
        assert (model.config.algo, model.config.algorithm.learning_rate) == (ALGO, 0.125)
        assert model.config.algorithm.scale == 2.0

    def test_its_settings_are_checked(self, small):
        with pytest.raises(UserError, match=r"scale is -1.0; use a number above 0"):
            ScaledPPO("CartPole-v1", scale=-1, **small)
        with pytest.raises(UserError, match="unknown setting 'scal'; did you mean 'scale'"):
            ScaledPPO("CartPole-v1", scal=1, **small)
        with pytest.raises(UserError, match=r"algorithm is a PPOConfig, but .*takes a ScaledConfig"):
            TrainConfig(algo=ALGO, env_id="CartPole-v1", algorithm=PPO.config_class())


class TestOnTheCommandLine:
    def test_train_resume_eval(self, cli, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        flags = ["--env-id", "CartPole-v1", "--scale", "0.5", "--total-timesteps", 64, "--num-envs", 2]
        flags += ["--num-steps", 16, "--batch-size", 16, "--hidden-sizes", 8, "--num-eval-episodes", 1]
        outcome = cli("train", ALGO, *flags)
        assert outcome.code == 0, outcome.err
        run_dir = only_run(tmp_path / "runs")
        assert re.fullmatch(r"tiny_algorithms-ScaledPPO__CartPole-v1__seed0__[0-9-]+", run_dir.name)
        assert "algo: tiny_algorithms:ScaledPPO" in (run_dir / "config.yaml").read_text(encoding="utf-8")
        assert cli("resume", run_dir, "--total-timesteps", 96).code == 0
        assert f"{ALGO} on CartPole-v1 after 96 steps" in cli("eval", run_dir, "--num-episodes", 1).out
        assert cli("train", "--algo", ALGO, *flags, "--quiet").code == 0
        assert cli("train", "--start-from", run_dir, "--scale", "2.0", "--quiet").code == 0

    def test_a_config_file(self, cli, own, tmp_path):
        assert cli("train", "--config", own, "--scale", "0.25", "--quiet").code == 0
        config = load_config(only_run(tmp_path / "runs") / "config.yaml")
        assert (config.algo, config.algorithm.scale) == (ALGO, 0.25)

    def test_a_preset_of_its_parent(self, cli, tmp_path):
        more = [
            "--total-timesteps",
            64,
            "--num-steps",
            16,
            "--num-eval-episodes",
            1,
            "--output-dir",
            tmp_path,
        ]
        more += ["--num-envs", 2, "--batch-size", 16]
        outcome = cli("train", ALGO, "--config", "ppo/cartpole", *more, "--quiet")
        assert outcome.code == 0, outcome.err
        config = load_config(only_run(tmp_path) / "config.yaml")
        assert config.algo == ALGO
        assert config.algorithm.learning_rate == load_config("ppo/cartpole").algorithm.learning_rate

    def test_help_lists_its_settings(self, cli):
        outcome = cli("train", ALGO, "--help")
        assert outcome.code == 0
        assert "--scale" in outcome.out
        assert "Factor of the initial weights" in outcome.out
        assert "--unexplained" in outcome.out
        assert "ScaledPPO-settings" in outcome.out
