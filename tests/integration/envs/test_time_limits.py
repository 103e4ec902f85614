"""`max_episode_steps`: truncation, never termination, in training and evaluation, on every backend."""

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from tiny_envs import Endless

import rl_training
from rl_training.algorithms import DQN
from rl_training.cli import load_config
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, UserError
from rl_training.envs.factory import make_env
from rl_training.envs.stepper_factory import evaluation_stepper, training_stepper
from rl_training.experiment.resume import resume
from rl_training.experiment.start import evaluate_checkpoint, train
from support.callbacks import StopAtCollect


def config(**settings) -> TrainConfig:
    usual = {"algo": "ppo", "env_id": "tiny_envs:Pole-v0", "num_envs": 2, "num_eval_episodes": 2}
    return TrainConfig(**usual | settings)


def first_end(stepper) -> tuple[int, bool, bool]:
    """Step until an episode ends; return when, and how."""
    stepper.reset()
    for step in range(1, 100):
        stepper.step(np.array([step % 2] * stepper.spec.num_envs))
        if stepper.out.any_ended:
            return step, bool(stepper.out.terminated[0]), bool(stepper.out.truncated[0])
    raise AssertionError("no end")


BACKENDS = ["sync", "async", "native"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "make", [lambda c: training_stepper(c, None), lambda c: evaluation_stepper(c, 2, None)]
)
def test_episodes_are_truncated_and_not_terminated(backend, make):
    stepper = make(config(env_backend=backend, max_episode_steps=7))
    try:
        assert first_end(stepper) == (7, False, True)
        assert np.abs(stepper.out.final_obs[0]).sum() > 0  # what is bootstrapped from
    finally:
        stepper.close()


def test_it_takes_the_place_of_a_shorter_limit():
    env = make_env(config(env_id="Pendulum-v1", max_episode_steps=250), 0)()
    env.reset()
    ends = [env.step(np.zeros(1, np.float32))[2:4] for _ in range(250)]
    assert ends.index((False, True)) == 249
    assert env.spec.max_episode_steps == 250


@pytest.mark.parametrize("inner", [None, 3, 50])
@pytest.mark.parametrize("outside", [False, True])
def test_a_function_s_environment_is_limited_whatever_limit_it_has(inner, outside):
    def build():
        env = Endless() if inner is None else TimeLimit(Endless(), inner)
        return gymnasium.wrappers.RecordEpisodeStatistics(env) if outside else env

    env = make_env(config(max_episode_steps=9), 0, factory=build)()
    env.reset()
    assert [env.step(0)[3] for _ in range(9)] == [False] * 8 + [True]


def test_a_vector_that_knows_no_limit_is_refused():
    gymnasium.register("Limitless-v0", vector_entry_point="support.strict_vector:StrictVector")
    try:
        with pytest.raises(UserError, match=r"Limitless-v0.*takes no max_episode_steps.*'sync' or 'async'"):
            training_stepper(config(env_id="Limitless-v0", env_backend="native", max_episode_steps=7), None)
    finally:
        gymnasium.registry.pop("Limitless-v0")


def test_two_limits_and_no_limit_are_refused():
    with pytest.raises(ConfigError, match="max_episode_steps is 0; use a number above 0"):
        config(max_episode_steps=0)
    with pytest.raises(ConfigError, match="max_episode_steps is 7, and env_kwargs has one, too; leave one"):
        config(max_episode_steps=7, env_kwargs={"max_episode_steps": 8})


def test_a_run_an_evaluation_and_a_loaded_model_have_it(tiny, rows):
    settings = {"env_id": "tiny_envs:Endless-v0", "max_episode_steps": 8}
    result = train(tiny(**settings))
    assert {row["rollout/ep_len_mean"] for row in rows(result.run_dir / "metrics.jsonl")} == {8.0}
    assert rows(result.run_dir / "evaluations.jsonl")[-1]["lengths"] == [8, 8]
    assert evaluate_checkpoint(result.run_dir, 3)["lengths"] == [8] * 3
    assert rl_training.load(result.run_dir, max_episode_steps=5).evaluate(1)["lengths"] == [5]


def test_a_resumed_run_has_the_same_bytes(tiny):
    settings = tiny("dqn", env_id="tiny_envs:Lottery-v0", max_episode_steps=3, total_timesteps=100)
    whole, paused = train(settings), train(settings, callbacks=[StopAtCollect(50)])
    assert paused.paused
    again = resume(paused.run_dir)
    assert (whole.checkpoint_path / "model.safetensors").read_bytes() == (
        again.checkpoint_path / "model.safetensors"
    ).read_bytes()


def test_python_takes_it_for_a_function_s_environment(tiny):
    model = DQN(tiny("dqn", max_episode_steps=6), env=Endless).learn()
    assert model.evaluate(2)["lengths"] == [6, 6]


def test_flags_take_it(cli, tmp_path):
    outcome = cli(
        "train", "a2c", "--env-id", "tiny_envs:Endless-v0", "--max-episode-steps", 5, "--total-timesteps", 40,
        "--num-envs", 2, "--output-dir", tmp_path, "--quiet",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    run_dir = Path(outcome.out.strip())
    assert load_config(run_dir / "config.yaml").max_episode_steps == 5
    assert json.loads(cli("eval", run_dir, "--num-episodes", 1, "--json").out)["lengths"] == [5]


def test_check_env_takes_it_and_names_it(cli):
    assert (
        "no time limit; set one with --max-episode-steps 1000" in cli("check-env", "tiny_envs:Endless-v0").out
    )
    outcome = cli("check-env", "tiny_envs:Endless-v0", "--max-episode-steps", 20)
    assert "20 steps" in outcome.out
    assert "no time limit" not in outcome.out
    assert "20 to 20 steps" in str(rl_training.check_env(Endless, max_episode_steps=20))
