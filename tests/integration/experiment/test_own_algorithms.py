"""An algorithm of one's own, `algo: module:Class`, works wherever a built-in one does."""

import copy
import pickle
import re
import sys
from pathlib import Path

import pytest
import tiny_algorithms
import torch
from tiny_algorithms import Renamed, ScaledConfig, ScaledPPO, WeightedPPO

import rl_training
from rl_training import DQN, PPO
from rl_training.algorithms.base import Algorithm
from rl_training.config import TrainConfig, config_from_dict, load_config
from rl_training.core.errors import UserError
from rl_training.experiment.files import algorithm_folder
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

    def test_its_loss_may_depend_on_its_settings(self, small):
        before = weights(WeightedPPO("CartPole-v1", seed=1, **small))
        before = {name: tensor.clone() for name, tensor in before.items()}
        for weight in (0.0, 1.0):
            model = WeightedPPO("CartPole-v1", seed=1, weight=weight, **small).learn()
            moved = [name for name, tensor in weights(model).items() if not torch.equal(tensor, before[name])]
            assert bool(moved) is bool(weight)
            assert resume(model.run_dir, total_timesteps=96).metrics["global_step"] == 96

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


WRONG = {
    "missing_algorithms:Mine": r"algo 'missing_algorithms:Mine' cannot be imported: ModuleNotFoundError.*install the",
    "tiny_algorithms:Scaled": r"algo 'tiny_algorithms:Scaled' does not exist; did you mean 'ScaledPPO'",
    "tiny_algorithms:NotAnAlgorithm": r"NotAnAlgorithm' is not an algorithm; use a subclass of .*Algorithm",
    "tiny_algorithms:ScaledConfig": r"ScaledConfig' is not an algorithm",
    "tiny_algorithms:NoBuilders": r"NoBuilders is abstract: it does not define build_actor, build_source, build_lea",
    "tiny_algorithms:AbstractPPO": r"AbstractPPO is abstract: it does not define bonus; use a subclass",
    "tiny_algorithms:ForgottenPPO": r"config_class Forgotten is not a dataclass itself; decorate it with @dataclass",
    "tiny_algorithms:ChangeablePPO": r"config_class Changeable is not a class of settings; use a frozen dataclass",
    "tiny_algorithms:WithoutDefaultPPO": r"cannot be built without arguments: .*'bonus'; give every setting a valid",
    "tiny_algorithms:ClashingPPO": r"a setting 'num_envs', which is a setting of the run; give it another name",
    "tiny_algorithms:UnsaveablePPO": r"a default of 'bonus' that cannot be saved; use numbers",
    "tiny_algorithms:": r"algo is 'tiny_algorithms:'; write an algorithm of your own as module:Class",
    ":ScaledPPO": r"algo is ':ScaledPPO'; write an algorithm of your own as module:Class",
    "../evil:ScaledPPO": r"write an algorithm of your own as module:Class",
    "rl_training.algorithms.base:Algorithm": r"Algorithm is abstract",
}


class TestMistakes:
    @pytest.mark.parametrize("algo", WRONG)
    def test_a_class_that_cannot_be_used_is_one_sentence(self, cli, tmp_path, monkeypatch, algo):
        monkeypatch.chdir(tmp_path)
        outcome = cli("train", algo, "--env-id", "CartPole-v1")
        assert outcome.code == 2
        assert re.search(WRONG[algo], outcome.sentence)
        (tmp_path / "wrong.yaml").write_text(f"algo: '{algo}'\nenv_id: CartPole-v1\n", encoding="utf-8")
        outcome = cli("train", "--config", "wrong.yaml")
        assert outcome.code == 2
        assert re.search(WRONG[algo], outcome.sentence)
        assert not (tmp_path / "runs").exists()

    @pytest.mark.parametrize("name", ["NoBuilders", "ForgottenPPO", "ChangeablePPO", "WithoutDefaultPPO"])
    def test_python_says_the_same(self, name):
        with pytest.raises(UserError, match=WRONG[f"tiny_algorithms:{name}"]):
            getattr(tiny_algorithms, name)("CartPole-v1")

    def test_an_unknown_name_is_answered_with_the_list(self, cli, tmp_path):
        listed = r"rebrac, recurrent_ppo, sac, td3, td3_bc, or module:Class for"
        assert re.search(listed, cli("train", "trpo", "--env-id", "CartPole-v1").sentence)
        with pytest.raises(UserError, match=listed):
            TrainConfig(algo="trpo", env_id="CartPole-v1")

    def test_two_algorithms(self, cli):
        outcome = cli("train", ALGO, "--algo", "ppo", "--env-id", "CartPole-v1")
        assert outcome.code == 2
        assert "both name an algorithm" in outcome.sentence

    def test_a_config_of_another_algorithm(self, cli):
        outcome = cli("train", ALGO, "--config", "dqn/cartpole")
        assert outcome.code == 2
        assert f"is for dqn, not for {ALGO}" in outcome.sentence

    def test_a_run_whose_module_is_gone(self, small, cli, monkeypatch):
        run_dir = ScaledPPO("CartPole-v1", **small).learn().run_dir
        monkeypatch.setitem(sys.modules, "tiny_algorithms", None)
        outcome = cli("eval", run_dir)
        assert outcome.code == 2
        assert re.search(
            r"tiny_algorithms:ScaledPPO' cannot be imported.*install the module", outcome.sentence
        )
        with pytest.raises(UserError, match="install the module"):
            resume(run_dir, total_timesteps=96)
        assert type(ScaledPPO.load(run_dir)) is ScaledPPO


class TestIdentity:
    def test_the_fingerprint_depends_on_the_path_and_on_its_settings(self, tiny):
        config = tiny()
        own, other = ScaledPPO(config).config, Renamed(config).config
        changed = own.with_overrides(scale=2.0)
        assert len({config.fingerprint(), own.fingerprint(), other.fingerprint(), changed.fingerprint()}) == 4
        assert own.fingerprint() == config_from_dict(own.to_dict()).fingerprint()

    @pytest.mark.parametrize(
        ("algo", "folder"),
        [
            ("tiny_algorithms:ScaledPPO", "tiny_algorithms-ScaledPPO"),
            ("a.b.c:D.E", "a.b.c-D.E"),
            ("modül:Größe", "mod-l-Gr-e"),
            ("m" * 300 + ":Mine", "m" * 55 + "-Mine"),
            (".." + "x" * 52 + ":.Hidden", None),
            ("日本:語", "algorithm"),
        ],
    )
    def test_folders_have_safe_names(self, algo, folder):
        name = algorithm_folder(algo)
        assert folder is None or name == folder
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,59}", name)

    def test_a_class_of_a_script_is_found_in_its_module(self, small, monkeypatch):
        """What a script saved as `__main__:Class` belongs to the class of the same name that is given."""
        main = sys.modules["__main__"]
        monkeypatch.setattr(main, "ScaledPPO", ScaledPPO, raising=False)
        monkeypatch.setattr(ScaledPPO, "__module__", "__main__")
        run_dir = ScaledPPO("CartPole-v1", scale=0.5, **small).learn().run_dir
        assert load_config(run_dir / "config.yaml").algo == "__main__:ScaledPPO"
        monkeypatch.undo()
        loaded = ScaledPPO.load(run_dir)
        assert (loaded.config.algo, loaded.config.algorithm.scale) == (ALGO, 0.5)
        with pytest.raises(UserError, match=r"'__main__:ScaledPPO' was defined in a script.*ScaledPPO\.load"):
            PPO.load(run_dir)
        assert resume(run_dir, algorithm=ScaledPPO, total_timesteps=96).metrics["global_step"] == 96
