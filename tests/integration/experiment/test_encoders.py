"""Encoders of the user's own, from a class or a name to a trained, saved, loaded and resumed agent."""

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import tiny_encoders
import torch
from gymnasium import spaces
from tiny_envs import AnySpaces

import rl_training
from rl_training.algorithms import ALGORITHMS, PPO
from rl_training.core.errors import ConfigError, UserError
from rl_training.core.spaces.as_data import space_to_data
from rl_training.experiment.checkpoints.format import manifest_hash
from rl_training.experiment.resume import resume
from rl_training.experiment.start import evaluate_checkpoint, train
from support.callbacks import StopAtUpdate
from support.configs import OFFLINE, ONLINE

MODULE = "from tiny_encoders import Plain\n\n\nclass Own(Plain):\n    pass\n"


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_class_is_trained_saved_by_name_and_loaded(tiny, algo, tmp_path):
    config = tiny(algo, features_dim=5, encoder_kwargs={"scale": 0.5})
    model = ALGORITHMS[algo](config, encoder=tiny_encoders.Plain).learn()
    saved = json.loads((model.agent.path / "manifest.json").read_text(encoding="utf-8"))["config"][
        "algorithm"
    ]
    assert (saved["encoder"], saved["features_dim"]) == ("tiny_encoders:Plain", 5)
    assert saved["encoder_kwargs"] == {"scale": 0.5}
    encoder = model.agent.policy.network.encoder
    assert (type(encoder), encoder.scale, encoder.training) == (tiny_encoders.Plain, 0.5, False)
    again = rl_training.load(model.agent.path, encoder=tiny_encoders.Plain)
    obs = batch_of(model.agent.spec.observation_space)
    np.testing.assert_array_equal(model.predict(obs)[0], again.predict(obs)[0])
    assert again.evaluate(2) == model.evaluate(2)
    again.learn(total_updates=8) if algo in OFFLINE else again.learn(32)
    assert again.agent.timesteps == (24 if algo in OFFLINE else 96)


def batch_of(space):
    """Return six observations of a Box, or of a Dict of them."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: batch_of(part) for name, part in space.spaces.items()}
    return np.random.default_rng(0).normal(size=(6, *space.shape)).astype(np.float32)


@pytest.mark.parametrize("algo", ONLINE)
def test_a_run_with_dropout_goes_on_to_the_same_bytes(tiny, algo):
    config = tiny(algo, encoder="tiny_encoders:Dropping", features_dim=6, total_timesteps=128)
    whole = train(config).checkpoint_path
    paused = train(config, callbacks=[StopAtUpdate(64)])
    assert paused.paused
    done = resume(paused.run_dir).checkpoint_path
    files = {path.name: path.read_bytes() for path in whole.glob("*.safetensors")}
    assert {path.name: path.read_bytes() for path in done.glob("*.safetensors")} == files
    assert files


def test_dict_observations_come_as_a_dict(tiny):
    space = spaces.Dict({"far": spaces.Box(-1, 1, (3, 2), np.float32), "kind": spaces.Discrete(4)})
    seen: list[Any] = []

    class Noting(tiny_encoders.Plain):
        def forward(self, inputs):
            seen.append({key: tuple(part.shape[1:]) for key, part in inputs.items()})
            return super().forward(inputs)

    def build(**_: Any) -> Any:
        return AnySpaces(space, spaces.Discrete(2))

    PPO(tiny(features_dim=5), env=build, encoder=Noting).learn()
    assert seen
    assert all(shapes == {"far": (3, 2), "kind": (4,)} for shapes in seen)


@pytest.fixture
def run(tmp_path, tiny, monkeypatch) -> Any:
    """A run of this user, whose encoder's module this process has not imported."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "somebodys_encoders.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    run_dir = train(tiny(encoder="somebodys_encoders:Own", env_id="CartPole-v1")).run_dir
    sys.modules.pop("somebodys_encoders", None)
    yield run_dir
    sys.modules.pop("somebodys_encoders", None)


def test_a_run_of_this_user_needs_no_word(run):
    assert rl_training.load(run).predict(np.zeros(4, np.float32))[0] in (0, 1)
    assert resume(run, total_timesteps=96).metrics["global_step"] == 96


def test_the_encoder_of_a_foreign_run_is_imported_only_if_allowed(run, tmp_path, monkeypatch, cli):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    for door in (rl_training.load, resume):
        with pytest.raises(UserError, match="would import the module 'somebodys_encoders' for its encoder"):
            door(run)
    outcome = cli("eval", run, "--num-episodes", 1)
    assert outcome.code == 2
    assert "--trust-modules" in outcome.sentence
    assert "somebodys_encoders" not in sys.modules
    assert rl_training.load(run, encoder=tiny_encoders.Plain).predict(np.zeros(4, np.float32))[0] in (0, 1)
    assert "somebodys_encoders" not in sys.modules
    assert rl_training.load(run, trust_modules=True).predict(np.zeros(4, np.float32))[0] in (0, 1)
    assert "somebodys_encoders" in sys.modules


def test_an_imported_module_is_no_reason_to_call_what_a_stranger_names(run, tmp_path, monkeypatch):
    """A forged name of something that every process has imported, with arguments of the forger's choice."""
    trap = tmp_path / "trapped"
    for folder in (run / "checkpoints").glob("step_*"):
        path = folder / "manifest.json"
        manifest = json.loads(path.read_text(encoding="utf-8"))
        manifest["config"]["algorithm"]["encoder"] = "subprocess:Popen"
        manifest["config"]["algorithm"]["encoder_kwargs"] = {
            "executable": "/usr/bin/touch",
            "cwd": str(tmp_path),
        }
        keys = spaces.Dict({"a": spaces.Discrete(2), trap.name: spaces.Discrete(2)})
        manifest["facts"]["spaces"]["observation_space"] = space_to_data(keys)
        manifest["sha256"] = manifest_hash(manifest)
        path.write_text(json.dumps(manifest), encoding="utf-8")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    for door in (rl_training.load, resume):
        with pytest.raises(UserError):
            door(run)
    with pytest.raises(UserError, match=r"not a class of torch modules"):
        rl_training.load(run, trust_modules=True)
    assert not trap.exists()


def test_the_command_line_takes_a_name_and_arguments(tiny, cli, tmp_path):
    settings = tmp_path / "settings.yaml"
    settings.write_text(tiny().to_yaml(), encoding="utf-8")
    flags = (
        "--encoder",
        "tiny_encoders:Plain",
        "--encoder-kwargs",
        "{scale: 2.0}",
        "--features-dim",
        7,
        "--quiet",
    )
    outcome = cli("train", "--config", settings, *flags)
    assert outcome.code == 0, outcome.err
    agent = rl_training.load(outcome.out.strip()).agent
    assert (agent.policy.network.encoder.scale, agent.policy.network.encoder.features_dim) == (2.0, 7)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nowhere_at_all:Own", "encoder 'nowhere_at_all:Own' cannot be imported: ModuleNotFoundError"),
        ("tiny_encoders:Plian", "encoder 'tiny_encoders:Plian' does not exist; did you mean 'Plain'?"),
        ("tiny_encoders:NOT_A_CLASS", "encoder 'tiny_encoders:NOT_A_CLASS' is not a class of torch modules"),
    ],
)
def test_a_name_that_leads_nowhere_gets_one_sentence(tiny, cli, tmp_path, name, sentence):
    settings = tmp_path / "settings.yaml"
    settings.write_text(tiny(encoder=name).to_yaml(), encoding="utf-8")
    outcome = cli("train", "--config", settings)
    assert outcome.code == 2
    assert sentence in outcome.sentence
    assert not (tmp_path / "runs").exists(), "bad input leaves no folder"


def test_settings_that_contradict_each_other(tiny):
    for name in ("flatt", "module:", ":Name"):
        with pytest.raises(ConfigError, match=r"use one of auto, flat, .*or module:Name"):
            tiny(encoder=name)
    with pytest.raises(ConfigError, match="a shared network has one encoder"):
        tiny(shared_network=True, share_encoder=False)
    with pytest.raises(ConfigError, match="critic_hidden_sizes are given, but shared_network is true"):
        tiny(shared_network=True, critic_hidden_sizes=(3,))


def test_a_class_without_an_importable_name_is_given_again(tiny, tmp_path):
    class Local(tiny_encoders.Plain):
        pass

    path = PPO(tiny(features_dim=5), encoder=Local).learn().agent.path
    with pytest.raises(UserError, match=r"cannot be imported|does not exist.*encoder=Local"):
        rl_training.load(path)
    assert rl_training.load(path, encoder=Local).agent.timesteps == 64


def test_another_class_than_the_one_that_was_trained_does_not_fit(tiny):
    path = PPO(tiny(features_dim=5), encoder=tiny_encoders.Spare).learn().agent.path
    with pytest.raises(UserError, match="does not fit"):
        rl_training.load(path, encoder=tiny_encoders.Plain)
    with pytest.raises(UserError, match="does not fit"):
        rl_training.load(path, encoder=tiny_encoders.Spare, features_dim=6)


def test_saving_and_restarting_use_the_class(tiny, tmp_path):
    model = PPO(tiny(features_dim=5), encoder=tiny_encoders.Batched)
    model.save(tmp_path / "fresh")
    loaded = PPO.load(tmp_path / "fresh", encoder=tiny_encoders.Batched)
    assert loaded.learn(64).agent.timesteps == 64
    assert Path(loaded.agent.path).is_dir()


def test_an_agent_saved_by_hand_learns_on_alike_whatever_the_callers_generators_are(tiny, tmp_path):
    PPO(tiny(encoder="tiny_encoders:Dropping", features_dim=6)).learn().save(tmp_path / "saved")
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(rl_training.load(tmp_path / "saved").learn(64).agent.path)
    models = [(path / "model.safetensors").read_bytes() for path in found]
    assert models[0] == models[1]


def test_a_trained_encoder_is_loaded_once_and_the_agent_needs_its_file_no_more(tiny, tmp_path):
    weights = tmp_path / "weights.pt"
    source = tiny_encoders.Pretrained(spaces.Box(-1, 1, (4,)), 5)
    torch.save(source.state_dict(), weights)
    config = tiny(env_id="CartPole-v1", features_dim=5, encoder_kwargs={"weights": str(weights)})
    model = PPO(config, encoder=tiny_encoders.Pretrained).learn()
    for name, tensor in source.state_dict().items():
        assert torch.equal(model.agent.policy.network.encoder.state_dict()[name], tensor), name
    weights.unlink()
    with pytest.raises(UserError, match=r"cannot be built: FileNotFoundError"):
        rl_training.load(model.agent.path, encoder=tiny_encoders.Pretrained)
    again = rl_training.load(model.agent.path, encoder=tiny_encoders.Pretrained, encoder_kwargs={})
    obs = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(again.predict(obs)[0], model.predict(obs)[0])
    summary = evaluate_checkpoint(model.agent.path, 1, encoder=lambda space, width, weights: source)
    assert summary["num_episodes"] == 1


def test_arguments_that_no_file_can_hold_are_refused(tiny):
    for value in (torch.nn.ReLU, (1, 2), {3: 4}, np.float32(1.0)):
        with pytest.raises(ConfigError, match="encoder_kwargs cannot be saved as they are"):
            tiny(encoder_kwargs={"argument": value})


def test_a_restart_after_a_fault_uses_the_class(tiny):
    class FailsOnce(AnySpaces):
        steps = 0

        def step(self, action):
            FailsOnce.steps += 1
            if FailsOnce.steps == 40:
                raise OSError("the motor is stuck")
            return super().step(action)

    class Local(tiny_encoders.Plain):
        pass

    def build(**_: Any) -> Any:
        return FailsOnce(spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2))

    config = tiny(max_restarts=1, rebuild_envs="off", features_dim=5)
    with pytest.warns(UserWarning, match="restart 1 of 1"):
        assert PPO(config, env=build, encoder=Local).learn().agent.timesteps == 64


def test_arguments_of_a_stranger_do_not_reach_the_class_that_is_given(tiny, tmp_path, monkeypatch):
    path = (
        PPO(tiny(features_dim=5, encoder_kwargs={"scale": 3.0}), encoder=tiny_encoders.Plain)
        .learn()
        .agent.path
    )
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    for door in (rl_training.load, resume):
        with pytest.raises(UserError, match=r"call your encoder with its own arguments \(scale\)"):
            door(path, encoder=tiny_encoders.Plain)
    with pytest.raises(UserError, match="would import the module"):
        rl_training.load(path, encoder_kwargs={})
    again = rl_training.load(path, encoder=tiny_encoders.Plain, encoder_kwargs={"scale": 1.0})
    assert again.agent.policy.network.encoder.scale == 1.0
    trusted = rl_training.load(path, encoder=tiny_encoders.Plain, trust_modules=True)
    assert trusted.agent.policy.network.encoder.scale == 3.0
