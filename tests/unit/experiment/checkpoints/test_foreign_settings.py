"""Settings of somebody else's checkpoint that would take memory or time, or open files, need trust."""

import os
from pathlib import Path
from typing import Any

import pytest

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.experiment.checkpoints.trust import Permission

STACK, LIMIT = "gymnasium.wrappers:FrameStackObservation", "gymnasium.wrappers:TimeLimit"
HARMFUL: dict[str, dict[str, Any]] = {
    "a stack without end": {"env_wrappers": [{STACK: {"stack_size": 10**8}}]},
    "stacks of stacks": {"env_wrappers": [{STACK: {"stack_size": 500}}] * 3},
    "actions repeated without end": {
        "env_wrappers": [{"gymnasium.wrappers:RepeatAction": {"num_repeats": 1e9}}]
    },
    "many wrappers": {"env_wrappers": [LIMIT] * 17},
    "a path": {"env_kwargs": {"xml_file": "/tmp/pipe"}},
    "a path from here": {"env_kwargs": {"xml_file": "./pipe"}},
    "a path from home": {"env_kwargs": {"nested": [{"xml_file": "~root"}]}},
    "an existing file": {"env_kwargs": {"xml_file": "pipe"}},
    "a module": {"env_kwargs": {"game": "evil:Env-v0"}},
    "a long text": {"env_kwargs": {"text": "x" * 101}},
    "a large number": {"env_kwargs": {"frame_skip": 10**5}},
    "a number that is none": {"env_kwargs": {"gravity": float("nan")}},
    "many values": {"env_kwargs": {"map": [1] * 2_000}},
    "a key that is a path": {"env_kwargs": {"/etc/passwd": 1}},
    "many environments": {"num_envs": 257},
    "many episodes": {"num_eval_episodes": 1_001},
    "many threads": {"num_threads": 65},
}
HARMLESS: dict[str, dict[str, Any]] = {
    "numbers and names": {
        "env_kwargs": {"gravity": -9.8, "is_slippery": False, "map_name": "8x8", "none": None}
    },
    "a game": {"env_kwargs": {"game": "MiniGrid-DoorKey-5x5-v0", "max_episode_steps": 10**6}},
    "a model": {"env_kwargs": {"xml_file": "half_cheetah.xml", "frame_skip": 5}},
    "a map": {"env_kwargs": {"desc": ["SFFF", "FHFH"]}},
    "usual wrappers": {"env_wrappers": [{STACK: {"stack_size": 4}}, {LIMIT: {"max_episode_steps": 10**6}}]},
    "an image": {"env_wrappers": [{"gymnasium.wrappers:ResizeObservation": {"shape": [84, 84]}}]},
    "usual counts": {"num_envs": 256, "num_eval_episodes": 1_000},
}


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", HARMFUL)
def test_what_needs_trust(in_folder: None, name: str) -> None:
    config = TrainConfig(algo="dqn", env_id="CartPole-v1", **HARMFUL[name])
    with pytest.raises(UserError, match=r"not signed by you.*--trust-modules"):
        Permission("RUN", granted=False).refuse_all(config)
    Permission("RUN", granted=True).refuse_all(config)
    Permission("RUN", granted=False, given=frozenset(HARMFUL[name])).refuse_all(config)


@pytest.mark.parametrize("name", HARMLESS)
def test_what_needs_none(in_folder: None, name: str) -> None:
    Permission("RUN", granted=False).refuse_all(
        TrainConfig(algo="dqn", env_id="CartPole-v1", **HARMLESS[name])
    )
