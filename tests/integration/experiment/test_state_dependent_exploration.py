"""Runs with state-dependent exploration, and SAC's with added noise: one life cycle, exact resume, any observation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from safetensors.numpy import load_file
from tiny_envs import AnySpaces

import rl_training
from rl_training.algorithms import ALGORITHMS
from rl_training.experiment.logs.sinks import WALL_CLOCK
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from support.callbacks import StopAtUpdate

SDE: dict[str, Any] = {"use_sde": True, "log_std_init": -1.0}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", SDE),
    "ppo, every 3 steps": ("ppo", SDE | {"sde_sample_freq": 3}),
    "a2c": ("a2c", SDE | {"sde_sample_freq": 5}),
    "recurrent_ppo": ("recurrent_ppo", SDE | {"sequence_length": 4}),
    "recurrent_ppo, every 3 steps": (
        "recurrent_ppo",
        SDE | {"sequence_length": 8, "sde_sample_freq": 3, "core": "gru", "share_core": True},
    ),
    "sac": ("sac", SDE),
    "sac, phases of 16 steps": ("sac", SDE | {"train_freq": 32, "gradient_steps": 4, "sde_sample_freq": 5}),
    "sac, from the first step on": (
        "sac",
        SDE | {"use_sde_at_warmup": True, "learning_starts": 160, "train_freq": 32, "sde_sample_freq": 5},
    ),
    "sac, correlated noise": ("sac", {"action_noise": "ornstein_uhlenbeck", "action_noise_sigma": 0.5}),
    "sac, both": ("sac", SDE | {"action_noise": "gaussian"}),
}
MOTORS = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 0.5], np.float32))


class Crash(Exception):
    pass


@pytest.fixture
def config(tiny):
    def build(variant: str, **changes: Any) -> Any:
        algo, settings = VARIANTS[variant]
        shared = {"env_id": "Pendulum-v1", "normalize_obs": True, "total_timesteps": 256}
        cadence = {"checkpoint_every_timesteps": 64, "eval_every_timesteps": 128, "keep_checkpoints": 99}
        return tiny(algo, **shared | cadence | settings | changes)

    return build


def saved(checkpoint: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in checkpoint.glob("*.safetensors")}


def told(run_dir: Path, rows: Any) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if name not in WALL_CLOCK}
        for row in rows(run_dir / "metrics.jsonl")
    ]


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_interrupted_run_leaves_what_an_uninterrupted_one_does(variant, config, rows):
    whole = train(config(variant)).checkpoint_path
    paused = train(config(variant), callbacks=[StopAtUpdate(96)]).run_dir
    before = set(paused.parent.glob("*"))
    with pytest.raises(Crash):
        train(config(variant), callbacks=[StopAtUpdate(150, Crash)])
    (crashed,) = set(paused.parent.glob("*")) - before
    for run_dir in (paused, crashed):
        again = resume(run_dir).checkpoint_path
        assert saved(again) == saved(whole)
        assert told(run_dir, rows) == told(whole.parents[1], rows)
    if VARIANTS[variant][1].get("use_sde"):
        assert 0.3 < told(whole.parents[1], rows)[-1]["train/std"] < 0.5, "exp(-1), and a little learned"


@pytest.mark.parametrize("variant", VARIANTS)
def test_learn_predict_evaluate_save_load_and_learn_on(variant, config, tmp_path):
    algo, settings = VARIANTS[variant]
    model = ALGORITHMS[algo](config(variant)).learn()
    obs = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    actions, _ = model.predict(obs)
    np.testing.assert_array_equal(model.predict(obs)[0], actions)
    assert not np.array_equal(model.predict(obs, deterministic=False)[0], actions)
    weights, explorer = (load_file(model.agent.path / f"{name}.safetensors") for name in ("model", "sampler"))
    if settings.get("use_sde"):
        assert weights["head.log_std"].shape == (8, 1)
        assert (weights["head.log_std"] != -1.0).all(), "every deviation has learned"
        assert explorer["explorer/matrices/matrices"].shape == (2, 8, 1)
    else:
        assert (explorer["explorer/noise/value"] != 0).all()
    model.save(tmp_path / "agent")
    again = rl_training.load(tmp_path / "agent")
    np.testing.assert_array_equal(again.predict(obs)[0], actions)
    assert again.evaluate(2) == model.evaluate(2)
    assert again.learn(64).agent.timesteps == 320


OBSERVATIONS = {
    "image": spaces.Box(0, 255, (3, 16, 16), np.uint8),
    "dict": spaces.Dict({"speed": spaces.Box(-1.0, 1.0, (2,), np.float64), "gear": spaces.Discrete(3)}),
}
PATHS = {"ppo": "explicit", "a2c": "explicit", "recurrent_ppo": "explicit", "sac": "autograd"}


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("algo", PATHS)
def test_any_observation_makes_features(algo, observation, tiny):
    def make() -> AnySpaces:
        return AnySpaces(OBSERVATIONS[observation], MOTORS)

    changes: dict[str, Any] = {"encoder": "small", "features_dim": 6} if observation == "image" else {}
    model = ALGORITHMS[algo](tiny(algo, env_id="AnySpaces", **SDE, **changes), env=make).learn()
    metadata = (model.agent.path.parents[1] / "metadata.json").read_text(encoding="utf-8")
    path = PATHS[algo] if observation == "image" else "explicit"
    assert f'"update_path": "{path}"' in metadata
    weights = load_file(model.agent.path / "model.safetensors")
    assert all(np.isfinite(array).all() for array in weights.values())


@pytest.mark.parametrize("algo", PATHS)
def test_a_network_without_hidden_layers_has_its_inputs_for_features(algo, tiny):
    changes: dict[str, Any] = {"core_size": 5} if algo == "recurrent_ppo" else {}
    model = ALGORITHMS[algo](tiny(algo, env_id="Pendulum-v1", hidden_sizes=(), **SDE, **changes)).learn()
    read = 5 if algo == "recurrent_ppo" else 3  # what the memory gives
    assert load_file(model.agent.path / "model.safetensors")["head.log_std"].shape == (read, 1)


def test_a_run_begins_with_what_another_has_learned(config):
    algo, _ = VARIANTS["sac"]
    first = ALGORITHMS[algo](config("sac")).learn()
    second = ALGORITHMS[algo].start_from(first.agent.path.parents[1], learning_rate=1e-30)
    second.learn(64)
    deviations = [
        load_file(model.agent.path / "model.safetensors")["head.log_std"] for model in (first, second)
    ]
    np.testing.assert_allclose(*deviations, rtol=1e-6)
