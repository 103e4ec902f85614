"""Fitted Q evaluation: values that are known, the same for a seed, and clear errors."""

import json

import numpy as np
import pytest
from gymnasium import spaces

from rl_training import BC, SAC
from rl_training.algorithms.fitted_evaluation import FitSettings, FittedValues, returns_to_go
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.types import EnvSpec
from rl_training.datasets.dataset import Dataset
from rl_training.experiment.building import build_actor
from support.datasets import tiny_dataset

STATES, GAMMA, LIMIT = 5, 0.9, 12


def walk(num_episodes: int, seed: int = 0) -> Dataset:
    """Return random walks on 5 states: action 1 goes right, 0 left; 10 for the right end, -1 per step before it.

    Episodes end there, or are truncated after 12 steps, so bootstrapping matters.
    """
    rng = np.random.default_rng(seed)
    obs, actions, rewards, terminated, ends = [], [], [], [], []
    for _ in range(num_episodes):
        place = int(rng.integers(0, STATES - 1))
        obs.append(place)
        for _ in range(LIMIT):
            action = int(rng.integers(0, 2))
            place = max(place - 1, 0) if action == 0 else place + 1
            obs.append(place)
            actions.append(action)
            rewards.append(10.0 if place == STATES - 1 else -1.0)
            terminated.append(place == STATES - 1)
            if terminated[-1]:
                break
        ends.append(len(actions))
    seen = np.eye(STATES, dtype=np.float32)[obs]
    box = spaces.Box(0.0, 1.0, (STATES,), np.float32)
    return Dataset(
        "walk", box, spaces.Discrete(2), seen, np.array(actions), np.array(rewards, np.float32),
        np.array(terminated), np.array(ends),
    )  # fmt: skip


def known_values(right: float) -> np.ndarray:
    """Return the values of going right with a probability, for all states but the last."""
    matrix, rewards = np.eye(STATES - 1), np.zeros(STATES - 1)
    for place in range(STATES - 1):
        for action, chance in ((1, right), (0, 1 - right)):
            after = place + 1 if action else max(place - 1, 0)
            rewards[place] += chance * (10.0 if after == STATES - 1 else -1.0)
            if after < STATES - 1:
                matrix[place, after] -= chance * GAMMA
    return np.linalg.solve(matrix, rewards)


@pytest.mark.parametrize(("right", "deterministic"), [(1.0, True), (0.0, True), (0.7, False)])
def test_the_values_of_a_known_task(right, deterministic):
    data, rng = walk(300), np.random.default_rng(1)
    config = TrainConfig(algo="bc", dataset="walk")
    policy = build_actor(config, EnvSpec(data.observation_space, data.action_space, 1)).policy
    settings = FitSettings(num_updates=3_000, hidden_sizes=(32,), learning_rate=2e-3, tau=0.02)
    fitted = FittedValues(
        policy,
        lambda obs: (rng.random(len(obs)) < right).astype(np.int64),
        data,
        np.ones((2, data.num_episodes), np.float32),
        gamma=GAMMA,
        settings=settings,
        seed=0,
        deterministic=deterministic,
    )
    for loss in fitted.fit():
        last = loss
    assert np.isfinite(last)
    found = fitted.values(np.eye(STATES, dtype=np.float32)[: STATES - 1], 1 if deterministic else 2_000)
    assert found.shape == (2, STATES - 1)
    assert np.abs(found - known_values(right)).max() < 0.35, (found, known_values(right))


def test_returns_to_go_stop_at_ends():
    data = walk(20)
    found = returns_to_go(data, GAMMA)
    for first, end in zip(data.ends - data.lengths, data.ends, strict=True):
        for step in range(first, end):
            powers = GAMMA ** np.arange(end - step)
            assert np.isclose(found[step], (powers * data.rewards[step:end]).sum())


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("refits", [0, 3])
def test_the_same_for_a_seed_without_an_environment(env_id, refits, tmp_path, monkeypatch):
    data = tiny_dataset(env_id)
    model = BC(dataset=data, output_dir=str(tmp_path), hidden_sizes=(8,), eval_every_timesteps=0)
    model.learn(total_updates=20)
    monkeypatch.setattr("gymnasium.make", None)
    monkeypatch.setattr("gymnasium.make_vec", None)
    first, again = (model.evaluate_on(data, num_updates=30, refits=refits) for _ in range(2))
    assert first.to_dict() == again.to_dict()
    assert first.low <= first.estimate <= first.high
    assert first.behaviour_low <= first.behaviour <= first.behaviour_high
    assert first.num_episodes == 12
    assert first.interval_from == ("refits" if refits else "start states")
    assert ("agreement" in first.to_dict()) == (env_id == "CartPole-v1")
    assert model.evaluate_on(data, num_updates=30, refits=refits, seed=1).estimate != first.estimate


def test_the_command(tmp_path, cli):
    data = tiny_dataset("Pendulum-v1")
    model = SAC(dataset=data, output_dir=str(tmp_path), hidden_sizes=(8,)).learn(total_updates=5)
    run = model.run_dir
    done = cli("eval", run, "--on-dataset", data, "--num-updates", 20, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["num_updates"] == 20
    text = cli("eval", run, "--on-dataset", data, "--num-updates", 20, "--stochastic").out
    assert "estimated return of the agent" in text
    assert "start states only, not the fit" in text
    for flags, sentence in [
        (["--on-dataset", data, "--num-episodes", 3], "--on-dataset plays no episodes"),
        (["--refits", 3], "but not --on-dataset"),
        (["--on-dataset", data, "--refits", 1], "use 0, or 2 to 100"),
        (["--on-dataset", tiny_dataset("CartPole-v1")], "the agent has observation_space"),
        (["--on-dataset", data, "--gamma", 1.5], "gamma is 1.5"),
    ]:
        outcome = cli("eval", run, *flags)
        assert outcome.code == 2, flags
        assert sentence in outcome.sentence, flags


def test_other_spaces_are_an_error(tmp_path):
    model = BC(dataset=tiny_dataset("CartPole-v1"), output_dir=str(tmp_path))
    with pytest.raises(UserError, match="but dataset 'walk' has"):
        model.evaluate_on(walk(5))
