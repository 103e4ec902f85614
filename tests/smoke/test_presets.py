"""Every preset loads, and builds its environments and its networks where their packages are installed."""

from pathlib import Path

import gymnasium
import pytest

from rl_training.cli import load_config
from rl_training.envs import make_vector_env
from rl_training.envs.stepper import VectorStepper
from rl_training.experiment.building import build_parts

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
PRESETS = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.yaml"))


def test_the_promised_presets_are_there():
    assert {"ppo/cartpole.yaml", "ppo/pendulum.yaml"} <= set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_it_loads_from_any_folder_and_lies_under_its_algorithm(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    config = load_config(f"configs/{name}")
    assert config.algo == name.split("/")[0]
    assert load_config(name.removesuffix(".yaml")) == config
    assert config.total_timesteps >= config.eval_every_timesteps


@pytest.mark.parametrize("name", PRESETS)
def test_it_builds(name):
    config = load_config(CONFIGS / name)
    try:
        gymnasium.make(config.env_id, **config.env_kwargs).close()
    except (gymnasium.error.DependencyNotInstalled, gymnasium.error.NamespaceNotFound) as missing:
        pytest.skip(f"{config.env_id}: {missing}")
    env = make_vector_env(config, num_envs=2)
    stepper = VectorStepper(env, seed=config.seed if config.env_backend == "native" else None)
    try:
        stepper.reset()
        parts = build_parts(config, stepper.spec)
        actions = parts.learner.policy.act(stepper.out.obs, (), deterministic=True, rng=None)[0]
        stepper.step(actions)
    finally:
        stepper.close()
    assert len(actions) == 2
    assert stepper.vector_steps == 1


@pytest.mark.parametrize("algo", ["ppo", "sac", "td3"])
def test_presets_of_environments_that_keep_their_world_build_them_anew(algo):
    assert load_config(f"{algo}/bipedal_walker").rebuild_envs == "on"
