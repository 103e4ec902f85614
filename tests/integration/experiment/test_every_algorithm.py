"""What every algorithm promises alike: one life cycle, the same bytes from the same seed, exact resume, any space."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tiny_envs import AnySpaces

import rl_training
from rl_training.algorithms import ALGORITHMS
from rl_training.experiment.logs.sinks import WALL_CLOCK
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from support.callbacks import StopAtUpdate
from support.configs import CONTINUOUS, ONLINE

OBSERVATIONS = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
NESTED = spaces.Dict(
    {"a": spaces.Dict({"b": spaces.Discrete(3)}), "c": spaces.Box(-1, 1, (2, 2)), "d": spaces.MultiBinary(2)}
)


@pytest.fixture
def config(tiny):
    """Random starts, statistics of both kinds and an evaluation on the way, so that nothing agrees by accident."""

    def build(algo: str, **changes: Any) -> Any:
        env_id = "Pendulum-v1" if algo in CONTINUOUS else "tiny_envs:Lottery-v0"
        shared = {"normalize_obs": True, "normalize_reward": True, "eval_every_timesteps": 64}
        return tiny(algo, **{"env_id": env_id, "total_timesteps": 128} | shared | changes)

    return build


def saved(checkpoint: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in checkpoint.glob("*.safetensors")}


def told(run_dir: Path, rows: Any) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if name not in WALL_CLOCK}
        for row in rows(run_dir / "metrics.jsonl")
    ]


@pytest.mark.parametrize("algo", ONLINE)
def test_learn_predict_evaluate_save_load_and_learn_on(algo, config, tmp_path):
    model = ALGORITHMS[algo](config(algo)).learn()
    assert model.agent.timesteps == 128
    actions, state = model.predict(OBSERVATIONS)
    assert len(actions) == 8
    assert (state is None) == (algo != "recurrent_ppo")
    # one row or many: a matrix product may add in another order
    np.testing.assert_allclose(model.predict(OBSERVATIONS[3])[0], actions[3], rtol=1e-5)
    summary = model.evaluate(3)
    assert summary["num_episodes"] == 3
    model.save(tmp_path / "agent")
    again = rl_training.load(tmp_path / "agent")
    assert type(again) is ALGORITHMS[algo]
    np.testing.assert_array_equal(again.predict(OBSERVATIONS)[0], actions)
    assert again.evaluate(3) == summary
    assert again.learn(64).agent.timesteps == 192


@pytest.mark.parametrize("algo", ONLINE)
@pytest.mark.parametrize("backend", ["sync", "async"])
def test_the_same_seed_gives_the_same_bytes(algo, backend, config, rows):
    one, same, other = (
        train(config(algo, env_backend=backend, seed=seed)).checkpoint_path for seed in (1, 1, 2)
    )
    assert saved(one) == saved(same)
    assert saved(one)["model.safetensors"] != saved(other)["model.safetensors"]
    assert told(one.parents[1], rows) == told(same.parents[1], rows)


@pytest.mark.parametrize("algo", ONLINE)
def test_an_interrupted_run_leaves_what_an_uninterrupted_one_does(algo, config, rows):
    whole = train(config(algo)).checkpoint_path
    for steps in (32, 80):
        paused = train(config(algo), callbacks=[StopAtUpdate(steps)])
        assert paused.paused
        done = resume(paused.run_dir).checkpoint_path
        assert saved(done) == saved(whole), steps
        assert told(done.parents[1], rows) == told(whole.parents[1], rows)
        evaluations = [path.parents[1] / "evaluations.jsonl" for path in (done, whole)]
        assert evaluations[0].read_bytes() == evaluations[1].read_bytes()


@pytest.mark.parametrize("algo", ONLINE)
def test_nested_observations_train_and_travel(algo, tiny, tmp_path):
    action = spaces.Box(-1, 1, (2,), np.float32) if algo in CONTINUOUS else spaces.Discrete(2)

    def build(**_: Any) -> Any:
        return AnySpaces(NESTED, action)

    model = ALGORITHMS[algo](tiny(algo, normalize_obs=True), env=build).learn()
    model.save(tmp_path / "agent")
    NESTED.seed(3)
    observation = NESTED.sample()
    again = rl_training.load(tmp_path / "agent")
    np.testing.assert_array_equal(again.predict(observation)[0], model.predict(observation)[0])
