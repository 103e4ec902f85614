"""The table of algorithms, spaces and features in docs/algorithms.md is true: every cell is tried."""

import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from loading import ROOT
from rl_training.algorithms import ALGORITHMS
from rl_training.core.errors import UserError
from rl_training.envs.tasks import probes
from rl_training.envs.tasks.locks import Locks
from rl_training.experiment import start
from rl_training.experiment.resume import resume
from support.configs import CONTINUOUS, ONLINE, tiny_config

PAGE = ROOT / "docs" / "algorithms.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ")
]
FACES = {ALGORITHMS[name].__name__: name for name in ONLINE}
HEADER = next(row for row in ROWS if row[1:] == list(FACES))
NAMES = [FACES[name] for name in HEADER[1:]]
TABLE = {row[0]: dict(zip(NAMES, row[1:], strict=True)) for row in ROWS if len(row) == len(HEADER)}
VECTOR = spaces.Box(-1.0, 1.0, (2,), np.float32)
NESTED = spaces.Dict(
    {"a": spaces.Dict({"b": spaces.Discrete(3)}), "c": spaces.Tuple((VECTOR, spaces.MultiBinary(2)))}
)
ACTIONS = {
    "Discrete actions": [spaces.Discrete(3)],
    "MultiDiscrete, MultiBinary actions": [spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)],
    "Box actions": [spaces.Box(-2.0, 3.0, (2,), np.float32)],
}
OBSERVATIONS = {
    "Box, Discrete, MultiDiscrete, MultiBinary observations": [
        VECTOR,
        spaces.Discrete(4),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
    ],
    "images, alone or in a Dict": [
        spaces.Box(0, 255, (8, 8, 3), np.uint8),
        spaces.Dict({"seen": spaces.Box(0, 1, (2, 9, 9), bool), "felt": VECTOR}),
    ],
    "Dict, Tuple, nested observations": [spaces.Dict({"a": VECTOR}), spaces.Tuple((VECTOR, VECTOR)), NESTED],
}


def random_env(observation_space: Any, action_space: Any) -> Any:
    class Random(gymnasium.Env[Any, Any]):
        def __init__(self) -> None:
            self.observation_space, self.action_space = observation_space, action_space

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.observation_space.seed(seed)
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            assert self.action_space.contains(action)
            return self.observation_space.sample(), 1.0, bool(self.np_random.random() < 0.2), False, {}

    return Random


def train(algo: str, env: Any, folder: Path, **overrides: Any) -> Any:
    config = tiny_config(algo, folder, **{"env_id": "Random-v0", "num_eval_episodes": 1} | overrides)
    return start.train(config, factory=env)


def bounded_action(algo: str) -> Any:
    return spaces.Box(-1.0, 1.0, (1,), np.float32) if algo in CONTINUOUS else spaces.Discrete(2)


def test_every_algorithm_has_a_column() -> None:
    assert sorted(NAMES) == sorted(ONLINE)
    features = {"several environments, any backend", "normalised observations and rewards", "n-step returns"}
    features |= {"prioritised replay", "exact resume", "custom encoders", "Atari games", MASKS, SDE}
    assert set(TABLE) - {""} == set(ACTIONS) | set(OBSERVATIONS) | features
    answers = {cell for name, row in TABLE.items() if name for cell in row.values()}
    assert answers == {"yes", "no", "bounded"}


MASKS, SDE = "action masks", "state-dependent exploration (gSDE)"


def declared(row: str) -> str:
    """Return a row of the table as the algorithms declare it."""

    def answer(algo: str) -> str:
        face = ALGORITHMS[algo]
        if row == MASKS:
            return "yes" if face.takes_action_masks else "no"
        if not all(isinstance(space, face.action_spaces) for space in ACTIONS[row]):
            return "no"
        return "bounded" if face.bounded_actions else "yes"

    return f"| {row} | {' | '.join(answer(algo) for algo in NAMES)} |"


@pytest.mark.parametrize("row", [*ACTIONS, MASKS])
def test_the_table_says_what_the_algorithms_declare(row: str) -> None:
    """`UPDATE_DOCS=1` writes the row anew."""
    if os.environ.get("UPDATE_DOCS"):
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(re.sub(rf"\| {row} \|.*", declared(row), page), encoding="utf-8")
    assert declared(row) in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("algo", NAMES)
@pytest.mark.parametrize("row", ACTIONS)
def test_action_spaces(algo: str, row: str, tmp_path: Path) -> None:
    for space in ACTIONS[row]:
        env = random_env(VECTOR, space)
        if TABLE[row][algo] == "no":
            with pytest.raises(UserError, match=f"{algo} needs .* actions"):
                train(algo, env, tmp_path)
        else:
            assert train(algo, env, tmp_path).metrics["updates"] > 0
    if TABLE[row][algo] == "bounded":
        with pytest.raises(UserError, match="finite bounds"):
            train(algo, random_env(VECTOR, spaces.Box(-np.inf, np.inf, (1,), np.float32)), tmp_path)


@pytest.mark.parametrize("algo", NAMES)
def test_action_masks(algo: str, tmp_path: Path) -> None:
    """An algorithm that heeds none refuses to; of the others, none gets an environment to raise."""
    if TABLE[MASKS][algo] == "no":
        with pytest.raises(UserError, match=f"algo '{algo}' does not support action masks"):
            train(algo, random_env(VECTOR, bounded_action(algo)), tmp_path, use_action_masks="on")
    else:
        assert train(algo, Locks, tmp_path, use_action_masks="on").metrics["updates"] > 0


@pytest.mark.parametrize("algo", NAMES)
def test_state_dependent_exploration(algo: str, tmp_path: Path) -> None:
    env = random_env(VECTOR, bounded_action(algo) if algo == "dqn" else ACTIONS["Box actions"][0])
    if TABLE[SDE][algo] == "no":
        with pytest.raises(UserError, match="use_sde"):
            train(algo, env, tmp_path, use_sde=True)
    else:
        assert train(algo, env, tmp_path, use_sde=True).metrics["updates"] > 0


@pytest.mark.parametrize("algo", NAMES)
@pytest.mark.parametrize("row", OBSERVATIONS)
def test_observation_spaces(algo: str, row: str, tmp_path: Path) -> None:
    assert TABLE[row][algo] == "yes"
    for space in OBSERVATIONS[row]:
        assert train(algo, random_env(space, bounded_action(algo)), tmp_path).metrics["updates"] > 0


@pytest.mark.filterwarnings("ignore:.* evaluation episodes did not end")
@pytest.mark.parametrize("algo", NAMES)
def test_atari_games(algo: str, tmp_path: Path) -> None:
    """They have buttons, so an algorithm plays them if it takes Discrete actions."""
    assert TABLE["Atari games"][algo] == TABLE["Discrete actions"][algo]
    pytest.importorskip("cv2")
    pytest.importorskip("ale_py")
    settings = {"env_id": "PongNoFrameskip-v4", "preprocessing": "atari", "image_size": 10, "num_envs": 1}
    settings |= {"total_timesteps": 32, "rebuild_envs": "off", "max_eval_episode_steps": 5}
    if TABLE["Atari games"][algo] == "no":
        with pytest.raises(UserError, match=f"{algo} needs .* actions"):
            train(algo, None, tmp_path, **settings)
    else:
        assert train(algo, None, tmp_path, **settings).metrics["updates"] > 0


@pytest.mark.parametrize("algo", NAMES)
def test_normalisation_and_backends(algo: str, tmp_path: Path) -> None:
    assert TABLE["normalised observations and rewards"][algo] == "yes"
    assert TABLE["several environments, any backend"][algo] == "yes"
    continuous = algo in CONTINUOUS
    env_id = "Pendulum-v1" if continuous else "CartPole-v1"
    for backend in ("sync", "async") if continuous else ("sync", "async", "native"):
        run = train(
            algo,
            None,
            tmp_path,
            env_id=env_id,
            env_backend=backend,
            normalize_obs=True,
            normalize_reward=True,
        )
        model = (run.checkpoint_path / "model.safetensors").read_bytes()
        assert b"normalizer.moments.mean" in model
        assert b"reward_normalizer.moments.var" in model


@pytest.mark.parametrize("algo", NAMES)
def test_switches(algo: str) -> None:
    """Encoders are trained with in test_encoders.py, by every algorithm."""
    settings = {item.name for item in fields(ALGORITHMS[algo].config_class)}
    assert ("encoder" in settings) == (TABLE["custom encoders"][algo] == "yes")
    assert ("n_step" in settings) == (TABLE["n-step returns"][algo] == "yes")
    assert ("prioritized" in settings) == (TABLE["prioritised replay"][algo] == "yes")


@pytest.mark.parametrize("algo", NAMES)
def test_exact_resume(algo: str, tmp_path: Path) -> None:
    assert TABLE["exact resume"][algo] == "yes"
    env = probes.ContinuousTarget if algo in CONTINUOUS else probes.ObservationDecides
    whole = train(algo, env, tmp_path / "whole", total_timesteps=128)
    half = train(algo, env, tmp_path / "half", total_timesteps=64)
    resumed = resume(half.run_dir, total_timesteps=128, factory=env)
    for name in ("model", "optimizer", "source"):
        files = [run.checkpoint_path / f"{name}.safetensors" for run in (whole, resumed)]
        assert files[0].read_bytes() == files[1].read_bytes(), name
