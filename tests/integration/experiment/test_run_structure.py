"""How a run is executed: few functions on the way to the update, parts built once, what is on disk read once."""

import traceback
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv

import rl_training
from rl_training.algorithms import ALGORITHMS, PPO
from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.optimizers import FlatOptimizer
from rl_training.config import TrainConfig
from rl_training.core.types import Progress
from rl_training.experiment.checkpoints import format as checkpoint_format
from rl_training.experiment.checkpoints import tensor_files
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import Callback, PauseTraining

SOURCE = Path(rl_training.__file__).parent


class PauseAt(Callback):
    def __init__(self, timesteps: int) -> None:
        self.timesteps = timesteps

    def on_collect(self, progress: Progress) -> None:
        if progress.timesteps >= self.timesteps:
            raise PauseTraining("enough")


def off_policy(tmp_path: Path, **overrides: Any) -> TrainConfig:
    return TrainConfig(
        algo="dqn",
        env_id="CartPole-v1",
        output_dir=str(tmp_path),
        total_timesteps=600,
        num_envs=1,
        num_eval_episodes=1,
        eval_every_timesteps=0,
        checkpoint_every_timesteps=200,
    ).with_overrides(buffer_size=1000, learning_starts=50, hidden_sizes=(8,), batch_size=8, **overrides)


def test_four_functions_lead_from_learn_to_the_update(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ways: set[tuple[str, ...]] = set()
    real = FlatOptimizer.descend

    def watched(*arguments: Any) -> Any:
        frames = [frame for frame in traceback.extract_stack() if Path(frame.filename).is_relative_to(SOURCE)]
        ways.add(tuple(frame.name for frame in frames))
        return real(*arguments)

    monkeypatch.setattr(FlatOptimizer, "descend", watched)
    PPO(tiny()).learn()
    assert ways, "no step was taken"
    for way in ways:
        assert way[:5] == ("learn", "train", "execute", "fit", "update")


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the algorithms whose parts were built, one entry each time."""
    found: list[str] = []
    for name, algorithm in ALGORITHMS.items():

        def build(*arguments: Any, name: str = name, real: Any = algorithm.build) -> Any:
            found.append(name)
            return real(*arguments)

        monkeypatch.setattr(algorithm, "build", staticmethod(build))
    return found


def test_parts_are_built_once(tmp_path: Path, built: list[str]) -> None:
    result = train(off_policy(tmp_path), callbacks=[PauseAt(300)])
    assert built == ["dqn"]
    resume(result.run_dir)
    assert built == ["dqn", "dqn"]


def test_resuming_opens_each_segment_once_and_loads_the_model_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = train(off_policy(tmp_path, prioritized=True, n_step=3), callbacks=[PauseAt(450)]).run_dir
    segments = {path.name for path in (run_dir / "checkpoints" / "replay").iterdir()}
    assert len(segments) > 1
    opened, loaded = Counter[str](), Counter[str]()
    real_open, real_load = tensor_files.open_regular, torch.nn.Module.load_state_dict

    def counting_open(path: Path) -> Any:
        opened[path.name] += 1
        return real_open(path)

    def counting_load(self: torch.nn.Module, *arguments: Any, **options: Any) -> Any:
        loaded[type(self).__name__] += 1
        return real_load(self, *arguments, **options)

    class Begun(Callback):
        def on_start(self, context: Any) -> None:
            assert {name: count for name, count in opened.items() if name in segments} == dict.fromkeys(
                segments, 1
            )
            assert loaded["QPolicy"] == 1
            assert opened["model.safetensors"] == 1

    for module in (tensor_files, checkpoint_format):
        monkeypatch.setattr(module, "open_regular", counting_open)
    monkeypatch.setattr(torch.nn.Module, "load_state_dict", counting_load)
    assert resume(run_dir, callbacks=[Begun()]).metrics["global_step"] == 600


def test_a_class_of_the_users_own_is_built_once_too(tiny: Any, built: list[str]) -> None:
    class Mine(PPO):
        pass

    assert issubclass(Mine, Algorithm)
    Mine(tiny()).learn()
    assert built == ["ppo"], "the agent of the last checkpoint needs an actor alone"


def test_what_failed_is_gone_before_its_successor_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay buffer may take half of the memory."""
    sources: list[weakref.ref[Any]] = []
    alive: list[int] = []
    real = ALGORITHMS["dqn"].build

    def build(*arguments: Any) -> Any:
        alive.append(sum(source() is not None for source in sources))
        parts = real(*arguments)
        sources.append(weakref.ref(parts.source))
        return parts

    monkeypatch.setattr(ALGORITHMS["dqn"], "build", staticmethod(build))
    failures = iter([True])

    class FailsOnce(CartPoleEnv):
        steps = 0

        def step(self, action: Any) -> Any:
            FailsOnce.steps += 1
            if FailsOnce.steps > 300 and next(failures, False):
                raise OSError("the motor is stuck")
            return super().step(action)

    config = off_policy(tmp_path, max_restarts=1, rebuild_envs="off")
    with pytest.warns(UserWarning, match="restart 1 of 1"):
        train(config, factory=FailsOnce)
    assert alive == [0, 0]
