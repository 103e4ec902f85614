"""Every preset loads, and builds its environments and its networks where their packages are installed."""

from pathlib import Path

import gymnasium
import pytest
import yaml

from rl_training.cli import load_config
from rl_training.core.errors import UserError
from rl_training.envs import make_vector_env
from rl_training.envs.games.building import game_of
from rl_training.envs.games.stepper import GameStepper
from rl_training.envs.stepper import VectorStepper
from rl_training.experiment.building import build_parts
from rl_training.experiment.start import train

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
PRESETS = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.yaml"))


def test_the_promised_presets_are_there():
    assert {"ppo/cartpole.yaml", "ppo/pendulum.yaml"} <= set(PRESETS)


def problems(check):
    """Call `check` with every preset; return what went wrong, by name, and which packages are missing."""
    found, missing = {}, {}
    for name in PRESETS:
        try:
            check(name)
        except (gymnasium.error.DependencyNotInstalled, gymnasium.error.NamespaceNotFound) as error:
            missing[name] = str(error)
        except Exception as error:
            if isinstance(error.__cause__, ImportError):
                missing[name] = str(error)
            else:
                found[name] = repr(error)
    return found, missing


def test_each_loads_from_any_folder_and_lies_under_its_algorithm(tmp_path, monkeypatch):
    def check(name):
        config = load_config(f"configs/{name}")
        assert config.algo == name.split("/")[0]
        assert load_config(name.removesuffix(".yaml")) == config
        budget = config.total_updates if config.offline else config.total_timesteps
        assert budget >= config.eval_every_timesteps

    monkeypatch.chdir(tmp_path)
    assert problems(check) == ({}, {})


def test_each_builds_environments_and_networks_that_fit():
    """Presets whose package is not installed are left to the next test, and those of datasets to the one after."""
    found, _ = problems(lambda name: build_and_step(load_config(CONFIGS / name)))
    assert found == {}


def test_presets_of_datasets_say_so_where_the_dataset_is_missing(tmp_path, monkeypatch):
    """Nothing else about them is tested here: their data is made by `make datasets`."""
    monkeypatch.chdir(tmp_path)
    offline = [name for name in PRESETS if load_config(f"configs/{name}").offline]
    assert {"bc/cartpole_mixed.yaml", "iql/pendulum_mixed.yaml", "cql/cartpole_mixed.yaml"} <= set(offline)
    for name in offline:
        config = load_config(f"configs/{name}")
        assert "make datasets" in preset_facts(name)["needs"]
        with pytest.raises(UserError, match=f"dataset '{config.dataset}'.*on this machine"):
            train(config)
    assert list(tmp_path.iterdir()) == []


def preset_facts(name):
    return yaml.safe_load((CONFIGS / name).read_text(encoding="utf-8"))["about"]


@pytest.mark.extra
def test_presets_of_other_packages_build_environments_and_networks_that_fit():
    for package in ("minigrid", "minatar", "popgym"):
        pytest.importorskip(package, reason=f"{package} is not installed: run make test-extras")
    found, missing = problems(lambda name: build_and_step(load_config(CONFIGS / name)))
    assert (found, missing) == ({}, {})


def build_and_step(config):
    if config.offline:
        return
    env = make_vector_env(config, num_envs=2)
    inner = VectorStepper(env, seed=config.seed if config.env_backend == "native" else None)
    game = game_of(env.single_observation_space)
    stepper = inner if game is None else GameStepper(inner, game)
    try:
        stepper.reset()
        parts = build_parts(config, stepper.spec)
        policy = parts.actor.policy
        memory = policy.initial_state(len(stepper.rows))
        actions, _ = policy.act(stepper.out.obs, memory, deterministic=True, rng=None)
        stepper.step(actions)
    finally:
        stepper.close()
    by_team = actions if isinstance(actions, tuple) else (actions,)
    assert sum(map(len, by_team)) == len(stepper.rows)
    assert inner.vector_steps == 1


@pytest.mark.parametrize("algo", ["ppo", "sac", "td3"])
def test_presets_of_environments_that_keep_their_world_build_them_anew(algo):
    assert load_config(f"{algo}/bipedal_walker").rebuild_envs == "on"


@pytest.mark.parametrize("words", [("zoo", "run", "bc/cartpole_mixed"), ("benchmark", "offline")])
def test_launches_without_their_dataset_train_nothing(cli, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    outcome = cli(*words, "--seeds", 2)
    assert outcome.code == 2
    assert "bc/cartpole_mixed needs the dataset of `make datasets`: dataset " in outcome.sentence
    assert list(tmp_path.iterdir()) == []


def test_a_preset_of_a_dataset_evaluates_in_the_environment_that_the_dataset_names():
    assert load_config("bc/cartpole_mixed").env_id == ""
