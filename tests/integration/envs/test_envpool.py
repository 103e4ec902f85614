"""Training in EnvPool's environments: seeds, threads, resuming, and what is refused."""

import sys
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.envs.envpool import refuse_other_spaces
from rl_training.envs.factory import make_vector_env
from rl_training.envs.stepper import NOT_RESUMABLE
from rl_training.envs.stepper_factory import training_stepper
from rl_training.experiment.console import Console
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import Callback, PauseTraining
from support.configs import tiny_config

GAME: dict[str, Any] = {"env_id": "ALE/Pong-v5", "preprocessing": "atari", "noop_max": 5}
CHEETAH: dict[str, Any] = {"env_id": "HalfCheetah-v5"}
needs_envpool = pytest.mark.extra


def config_of(**settings: Any) -> TrainConfig:
    given = {"algo": "ppo", "env_id": "CartPole-v1", "num_envs": 2, "env_backend": "envpool"}
    return TrainConfig(**given | settings)


@pytest.fixture
def envpool():
    return pytest.importorskip("envpool", reason="envpool is not installed: run make test-extras")


def trajectory(**settings: Any) -> list[Any]:
    stepper = training_stepper(config_of(**settings), None)
    space, found = make_vector_env(config_of(**settings)).single_action_space, []
    space.seed(0)
    stepper.reset()
    for _ in range(150):
        stepper.step(np.stack([space.sample() for _ in range(2)]))
        found += [np.array(stepper.out.obs), stepper.out.reward.copy(), stepper.out.ended.copy()]
    stepper.close()
    return found


def same(one: list[Any], other: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@needs_envpool
@pytest.mark.parametrize("settings", [{}, CHEETAH, GAME, {"env_id": "Pendulum-v1"}])
def test_a_trajectory_is_a_function_of_the_seed(envpool, settings):
    """However many threads there are."""
    first = trajectory(seed=3, **settings)
    assert same(first, trajectory(seed=3, **settings))
    assert same(first, trajectory(seed=3, env_kwargs={"num_threads": 1}, **settings))
    assert not same(first, trajectory(seed=4, **settings))


class Listening(Console):
    """Keeps what a run says at its start."""

    def __init__(self) -> None:
        super().__init__()
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)


@needs_envpool
@pytest.mark.parametrize(
    "settings", [CHEETAH, {"env_id": "HalfCheetah-v4"}, {"env_id": "CartPole-v1"}, GAME | {"num_steps": 64}]
)
@pytest.mark.filterwarnings("ignore:.*(is out of date|cut off)")
def test_ppo_trains_and_says_that_it_cannot_be_resumed(envpool, tmp_path, settings):
    config = tiny_config("ppo", tmp_path, env_backend="envpool", max_eval_episode_steps=20)
    config = config.with_overrides(total_timesteps=512, eval_every_timesteps=256, **settings)
    console = Listening()
    result = train(config, console=console)
    assert NOT_RESUMABLE in console.notices
    assert result.metrics["global_step"] == 512


@needs_envpool
def test_a_resumed_run_goes_on_with_other_episodes(envpool, tmp_path, monkeypatch):
    class StopAt64(Callback):
        def on_update(self, progress, result):
            if progress.timesteps == 64:
                raise PauseTraining("enough")

    config = tiny_config("ppo", tmp_path, env_id="CartPole-v1", env_backend="envpool", total_timesteps=128)
    seeds, make = [], envpool.make_gymnasium

    def noted(task: str, **options: Any) -> Any:
        seeds.append(tuple(options["seed"]))
        return make(task, **options)

    monkeypatch.setattr(envpool, "make_gymnasium", noted)
    run_dir = train(config, callbacks=[StopAt64()]).run_dir
    resume(run_dir)
    trained = [pair for pair in seeds if len(pair) == 2]  # others are probes with one environment
    assert len(trained) == len(set(trained)) == 2


@needs_envpool
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env_id": "Blackjack-v1", "env_kwargs": {"natural": True}}, "Blackjack"),
        ({"env_kwargs": {"num_threads": 0}}, "num_threads 0; use a whole number of 1 or more"),
        ({"env_kwargs": {"batch_size": 1}}, "'batch_size'"),
        (CHEETAH | {"env_kwargs": {"frame_stack": 2}}, "takes no argument 'frame_stack'"),
        (GAME | {"noop_max": 0}, "noop_max is 0, but EnvPool needs 1 or more"),
        (GAME | {"max_pool": False}, "max_pool is false"),
        (GAME | {"env_kwargs": {"mode": 1}}, "env_kwargs has 'mode'"),
        (GAME | {"preprocessing": "none", "noop_max": 30}, "set preprocessing to atari"),
        ({"preprocessing": "atari"}, "CartPole-v1' .*is not an Atari game"),
        ({"env_wrappers": ("gymnasium.wrappers:ClipAction",)}, "env_wrappers need single environments"),
        ({"env_id": "CartPole-v7"}, "env_id 'CartPole-v7'"),
    ],
)
def test_what_envpool_cannot_do_is_refused(envpool, settings, message):
    with pytest.raises(UserError, match=message):
        make_vector_env(config_of(**settings))


@needs_envpool
def test_an_environment_that_envpool_lacks_is_refused(envpool, monkeypatch):
    monkeypatch.setattr(envpool, "list_all_envs", list)
    with pytest.raises(UserError, match=r"EnvPool has no environment 'CartPole-v1'; use env_backend 'sync'"):
        make_vector_env(config_of())


@needs_envpool
def test_other_spaces_are_refused(envpool):
    small, large = spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (4,))
    refuse_other_spaces(config_of(), small, spaces.Box(-1, 1, (3,), np.float64), "actions")
    with pytest.raises(UserError, match=r"has observations Box.*\(4,\).*but Gymnasium's.*\(3,\)"):
        refuse_other_spaces(config_of(), small, large, "observations")


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(UserError, match=r"not installed: pip install 'rl-training\[envpool\]'"):
        make_vector_env(config_of())


def test_a_factory_is_refused():
    with pytest.raises(UserError, match="'envpool' needs a registered environment"):
        make_vector_env(config_of(), factory=lambda: None)
