import sys
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from records import CountingEnv

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.envs import make_env, make_vector_env
from rl_training.envs.episodes import SeededEpisodes


def config(**settings: Any) -> TrainConfig:
    return TrainConfig(**{"algo": "ppo", "env_id": "CartPole-v1", "num_envs": 3} | settings)


def test_the_default_is_a_sync_vector_of_seeded_environments_that_reset_in_the_same_step() -> None:
    env = make_vector_env(config())
    assert type(env) is SyncVectorEnv
    assert env.num_envs == 3
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert [type(each) for each in env.envs] == [SeededEpisodes] * 3
    assert [each.env_index for each in env.envs] == [0, 1, 2]


def test_the_number_of_environments_can_be_overridden() -> None:
    assert make_vector_env(config(), num_envs=2).num_envs == 2


def test_make_env_builds_only_when_called_and_anew_each_time() -> None:
    built = []

    def factory(**kwargs: Any) -> CountingEnv:
        built.append(kwargs)
        return CountingEnv(**kwargs)

    build = make_env(config(env_kwargs={"lengths": (4,)}), 1, factory=factory)
    assert built == []
    first, second = build(), build()
    assert built == [{"lengths": (4,)}] * 2
    assert first is not second
    assert first.unwrapped.lengths == (4,)  # type: ignore[attr-defined]


def test_env_kwargs_reach_a_registered_environment() -> None:
    env = make_env(config(env_kwargs={"sutton_barto_reward": True}), 0)()
    assert env.unwrapped._sutton_barto_reward is True  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env_id": "CartPoll-v1"}, "env_id 'CartPoll-v1'"),
        ({"env_id": "no_such_module:Env-v0"}, "module 'no_such_module' is not installed"),
        ({"env_kwargs": {"gravitee": 1}}, r"env_kwargs \{'gravitee': 1\}"),
        ({"env_id": "MountainCar-v0", "env_backend": "native"}, "no vector implementation"),
    ],
)
def test_what_cannot_be_built_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_vector_env(config(**settings))


def test_native_environments_cannot_come_from_a_factory() -> None:
    with pytest.raises(UserError, match="native"):
        make_vector_env(config(env_backend="native"), factory=CountingEnv)


def test_the_native_backend_is_the_environments_own() -> None:
    env = make_vector_env(config(env_backend="native"))
    obs, _ = env.reset(seed=0)
    assert not isinstance(env.unwrapped, SyncVectorEnv)
    assert np.shape(obs) == (3, 4)


REGISTERS = """
import gymnasium
gymnasium.register("FoundHere-v0", "gymnasium.envs.classic_control:CartPoleEnv")
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with a module in it; what the import adds to the path is taken back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "found_here.py").write_text(REGISTERS, encoding="utf-8")
    yield tmp_path
    sys.modules.pop("found_here", None)


def test_a_module_in_the_working_folder_is_found_after_everything_installed(here) -> None:
    before = list(sys.path)
    make_env(config(env_id="found_here:FoundHere-v0"), 0)().close()
    assert sys.path == [*before, str(here)]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "wave:CartPole-v1"])
def test_the_working_folder_is_not_searched_without_need(here, env_id) -> None:
    (here / "wave.py").write_text("raise ZeroDivisionError", encoding="utf-8")
    before = list(sys.path)
    make_env(config(env_id=env_id), 0)().close()
    assert sys.path == before


def test_a_native_atari_game_without_preprocessing_is_refused() -> None:
    pytest.importorskip("ale_py")
    config = TrainConfig(algo="ppo", env_id="ALE/Breakout-v5", env_backend="native")
    with pytest.raises(UserError, match="set preprocessing to atari, or use env_backend 'sync' or 'async'"):
        make_vector_env(config, 1)


def test_a_game_of_minigrid_imports_no_module() -> None:
    config = TrainConfig(
        algo="ppo",
        env_id="rl_training.envs.tasks:rl_training/MiniGrid-v0",
        env_kwargs={"game": "this:Game-v0"},
    )
    with pytest.raises(UserError, match="game is 'this:Game-v0'; name one of MiniGrid's own ids"):
        make_vector_env(config, 1)
    assert "this" not in sys.modules


def test_a_constructor_that_fails_without_a_word_is_told_by_its_line() -> None:
    def factory() -> CountingEnv:
        raise AssertionError

    with pytest.raises(
        UserError, match=r"AssertionError: no message; raised by 'raise AssertionError' in .*test_factory"
    ):
        make_vector_env(config(), factory=factory)
