"""Signatures: this user's, of exactly this text, with a key that nobody else has or chooses."""

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rl_training.algorithms.ppo import PPOConfig
from rl_training.config import TrainConfig
from rl_training.config.schedules import Schedule
from rl_training.core.errors import UserError
from rl_training.envs import tasks
from rl_training.experiment.checkpoints.trust import (
    Permission,
    foreign_wrappers,
    imports_nothing,
    is_signed,
    module_is_imported,
    own_modules,
    sign_text,
)


@pytest.fixture
def state(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_a_text_is_signed_by_one_key_and_not_by_another(state, tmp_path, monkeypatch):
    signature = sign_text("text")
    assert is_signed("text", signature)
    assert not is_signed("Text", signature)
    for nonsense in (None, "", "0" * 64, 5, ["a"], "é", {"a": signature}):
        assert not is_signed("text", nonsense)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    assert not is_signed("text", signature)
    assert not (tmp_path / "other").exists(), "reading makes no key"
    assert sign_text("text") != signature


def test_the_key_is_made_once_and_is_private(state):
    first = sign_text("text")
    assert sign_text("text") == first
    assert [path.name for path in (state / "rl_training").iterdir()] == ["key"]
    assert (state / "rl_training" / "key").stat().st_mode & 0o777 == 0o600


def test_the_key_is_in_the_home_without_a_state_folder(state, tmp_path, monkeypatch):
    for setting in ("", "relative/folder"):
        monkeypatch.setenv("XDG_STATE_HOME", setting)
        monkeypatch.setenv("HOME", str(tmp_path / f"home{len(setting)}"))
        monkeypatch.chdir(tmp_path)
        assert is_signed("text", sign_text("text"))
        assert (tmp_path / f"home{len(setting)}" / ".local" / "state" / "rl_training" / "key").is_file()
    assert not (tmp_path / "relative").exists()


@pytest.mark.parametrize("harm", ["empty", "short", "readable by others", "a link", "a folder", "a pipe"])
def test_a_key_that_others_may_know_signs_nothing(state, harm):
    signature = sign_text("text")
    key = state / "rl_training" / "key"
    content = key.read_bytes()
    if harm in ("empty", "short"):
        key.write_bytes(content[: {"empty": 0, "short": 31}[harm]])
    elif harm == "readable by others":
        key.chmod(0o644)
    else:
        key.rename(state / "aside")
        {
            "a link": lambda: key.symlink_to(state / "aside"),
            "a folder": key.mkdir,
            "a pipe": lambda: os.mkfifo(key),
        }[harm]()
    assert sign_text("text") is None
    assert not is_signed("text", signature)


def test_nothing_is_signed_where_no_key_can_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert sign_text("text") is None


def test_the_refusal_says_what_would_be_imported_and_how_to_allow_it():
    with pytest.raises(UserError) as refusal:
        Permission("RUN", granted=False).refuse_env("un.known:Id-v0")
    for part in ("RUN", "'un.known'", "--env-id un.known:Id-v0", "--trust-modules", "trust_modules=True"):
        assert part in str(refusal.value)
    Permission("RUN", granted=True).refuse_env("un.known:Id-v0")
    Permission("RUN", granted=False, given=frozenset({"env_id"})).refuse_env("un.known:Id-v0")
    Permission("RUN", granted=False).refuse_env("os.path:Id-v0")
    Permission("RUN", granted=False).refuse_env("CartPole-v1")


def test_a_game_of_an_unknown_package_is_refused_even_if_it_is_imported() -> None:
    """Its function would be called with arguments of the checkpoint."""
    permission = Permission("RUN", granted=False)
    permission.refuse_env("pettingzoo://classic/connect_four_v3")
    with pytest.raises(UserError, match=r"would import the module 'os'.*--env-id pettingzoo://os/path"):
        permission.refuse_env("pettingzoo://os/path")
    Permission("RUN", granted=False, given=frozenset({"env_id"})).refuse_env("pettingzoo://os/path")


@pytest.mark.parametrize(
    ("name", "harmless"),
    [
        ("CartPole-v1", True),
        ("rl_training.envs.tasks:rl_training/Catch-v0", True),
        ("rl_training.envs.tasks:rl_training/MinAtar-v0", True),
        ("rl_training.envs.tasks.memory:rl_training/MemoryCorridor-v0", True),
        ("rl_training.envs.tasks.probes:Probe-v0", True),
        ("rl_training.envs.tasks_of_others:Env-v0", False),
        ("rl_training.envs.tasks..evil:Env-v0", False),
        ("rl_training.envs.tasks.no_such_task:Env-v0", False),
        ("rl_training.cli.__main__:Env-v0", False),
        ("rl_training.nowhere:Env-v0", False),
        ("no_such_module:Env-v0", False),
        ("pettingzoo://classic/connect_four_v3", True),
        ("pettingzoo://mpe2/simple_spread_v3", True),
        ("pettingzoo://strangers/simple_spread_v3", False),
        ("pettingzoo://classic.theirs/simple_spread_v3", False),
    ],
)
def test_which_modules_may_be_imported_for_anybody(name: str, harmless: bool, monkeypatch) -> None:
    for module in [module for module in sys.modules if module.startswith("rl_training.envs.tasks")]:
        monkeypatch.delitem(sys.modules, module)  # another test may have imported it
    assert module_is_imported(name) is harmless


def test_every_task_of_this_package_is_our_own():
    folder = Path(tasks.__file__).parent
    assert set(own_modules()) == {tasks.__name__} | {
        f"{tasks.__name__}.{file.stem}" for file in folder.glob("*.py") if file.stem != "__init__"
    }


@pytest.mark.parametrize(
    ("name", "foreign"),
    [
        ("gymnasium.wrappers:TimeLimit", False),
        ("evil:TimeLimit", True),
        ("gymnasium.wrappers.evil:TimeLimit", True),
        ("evil.gymnasium.wrappers:TimeLimit", True),
        ("gymnasium.wrappers:RecordVideo", True),
    ],
)
def test_only_gymnasiums_own_wrappers_are_harmless(name: str, foreign: bool) -> None:
    for entry in (name, {name: {"max_episode_steps": 5}}):
        config = TrainConfig(algo="ppo", env_id="CartPole-v1", env_wrappers=[entry])
        assert foreign_wrappers(config) == ([("env_wrappers", name)] if foreign else [])
        stranger = Permission("RUN", granted=False)
        if foreign:
            with pytest.raises(UserError, match="env_wrappers"):
                stranger.refuse_all(config)
        else:
            stranger.refuse_all(config)


@dataclass(frozen=True, kw_only=True)
class OwnSettings(PPOConfig):
    beta: Schedule = "constant"


def test_a_schedule_is_known_by_its_type_and_not_by_its_name() -> None:
    own = OwnSettings(beta="evil:f")
    config = replace(TrainConfig(algo="ppo", env_id="CartPole-v1"), algo="mine:Own", algorithm=own)
    with pytest.raises(UserError, match=r"'evil' for its beta 'evil:f'"):
        Permission("RUN", granted=False).refuse_schedules(config)


@pytest.mark.parametrize(
    "settings",
    [
        {"env_id": "no_such_module:Env-v0"},
        {"encoder": "no_such_module:Encoder"},
        {"env_wrappers": ["no_such_module:TimeLimit"]},
        {"learning_rate_schedule": "no_such_module:schedule"},
    ],
)
def test_each_setting_that_names_a_module_can_import_something(settings: dict[str, Any]) -> None:
    usual = TrainConfig(algo="ppo", env_id="CartPole-v1")
    assert imports_nothing(usual)
    assert not imports_nothing(usual.with_overrides(**settings))
