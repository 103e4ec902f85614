"""The module that a run names is imported if the run is ours, or if we say so; not because a file says so."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import rl_training
from rl_training.core.errors import UserError
from rl_training.experiment.checkpoints.format import manifest_hash, read_checkpoint
from rl_training.experiment.resume import resume
from rl_training.experiment.start import evaluate_checkpoint, train

ENV_ID = "somebodys_envs:Somebodys-v0"
MODULE = """
import gymnasium
gymnasium.register("Somebodys-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=20)
"""


def forget_module() -> None:
    import gymnasium

    sys.modules.pop("somebodys_envs", None)
    gymnasium.registry.pop("Somebodys-v0", None)


@pytest.fixture
def run(tmp_path, tiny, monkeypatch) -> Path:
    """A finished run of this user, in a process that has not imported its module."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "somebodys_envs.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    run_dir = train(tiny(env_id=ENV_ID)).run_dir
    forget_module()
    yield run_dir
    forget_module()


@pytest.fixture
def foreign(run, tmp_path, monkeypatch) -> Path:
    """The same run, seen by another user."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    return run


def imported() -> bool:
    return "somebodys_envs" in sys.modules


def manifest_of(run_dir: Path) -> Path:
    (folder,) = (run_dir / "checkpoints").glob("step_64")
    return folder / "manifest.json"


def test_a_run_of_this_user_needs_no_word(run):
    assert evaluate_checkpoint(run, 1)["num_episodes"] == 1
    assert imported()


DOORS = {
    "load and evaluate": lambda run_dir: rl_training.load(run_dir).evaluate(1),
    "load and learn": lambda run_dir: rl_training.load(run_dir).learn(32),
    "evaluate_checkpoint": lambda run_dir: evaluate_checkpoint(run_dir),
    "resume": lambda run_dir: resume(run_dir, total_timesteps=96),
    "record": lambda run_dir: rl_training.record(run_dir, run_dir.parent / "dataset", num_episodes=1),
}


@pytest.mark.parametrize("door", DOORS)
def test_the_module_of_a_foreign_run_is_not_imported(foreign, door):
    with pytest.raises(UserError, match=r"somebodys_envs.*--env-id.*--trust-modules"):
        DOORS[door](foreign)
    assert not imported()


def test_a_tampered_manifest_is_foreign(run):
    path = manifest_of(run)
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["config"]["seed"] += 1
    path.write_text(json.dumps(manifest | {"sha256": manifest_hash(manifest)}), encoding="utf-8")
    with pytest.raises(UserError, match="somebodys_envs"):
        rl_training.load(run).evaluate(1)
    assert not imported()


def test_a_manifest_without_a_signature_is_whole_but_foreign(run):
    path = manifest_of(run)
    manifest = json.loads(path.read_text(encoding="utf-8"))
    del manifest["signature"]
    assert manifest["sha256"] == manifest_hash(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(UserError, match="somebodys_envs"):
        rl_training.load(run).evaluate(1)


def test_a_foreign_agent_predicts_without_a_word_and_without_its_module(foreign, monkeypatch):
    monkeypatch.setattr("gymnasium.make", lambda *_, **__: pytest.fail("an environment was built"))
    action, state = rl_training.load(foreign).predict(np.zeros(4, np.float32))
    assert action in (0, 1)
    assert state is None
    assert not imported()


def test_a_foreign_run_whose_module_is_there_already(foreign):
    import somebodys_envs  # noqa: F401

    assert evaluate_checkpoint(foreign, 1)["num_episodes"] == 1


ALLOWED = [["--env-id", ENV_ID], ["--trust-modules"]]


@pytest.mark.parametrize("flags", ALLOWED)
@pytest.mark.parametrize("command", ["eval", "resume"])
def test_the_command_line_allows_it(foreign, cli, command, flags):
    more = ["--num-episodes", 1] if command == "eval" else ["--total-timesteps", 96, "--quiet"]
    refused = cli(command, foreign, *more)
    assert refused.code == 2
    assert "somebodys_envs" in refused.sentence
    assert not imported()
    outcome = cli(command, foreign, *more, *flags)
    assert outcome.code == 0, outcome.err
    assert imported()


def test_python_allows_it_by_name_by_word_or_by_a_function(foreign):
    from gymnasium.envs.classic_control import CartPoleEnv

    rl_training.load(foreign, env=lambda: CartPoleEnv())
    assert not imported()
    assert rl_training.load(foreign, env="CartPole-v1").evaluate(1)["num_episodes"] == 1
    assert not imported()
    rl_training.load(foreign, env=ENV_ID)
    assert imported()
    forget_module()
    model = rl_training.load(foreign, trust_modules=True)
    assert not imported()
    assert model.evaluate(1)["num_episodes"] == 1
    assert imported()


def test_a_run_does_not_go_on_in_another_environment(run):
    with pytest.raises(UserError, match="CartPole-v1"):
        resume(run, total_timesteps=96, env_id="CartPole-v1")
    assert not imported()


def test_what_was_only_passed_on_is_not_signed(foreign, tmp_path):
    """Saved from an environment of ours, a stranger's agent still names the stranger's module."""
    from gymnasium.envs.classic_control import CartPoleEnv

    rl_training.load(foreign, env=lambda: CartPoleEnv()).save(tmp_path / "saved")
    assert not read_checkpoint(tmp_path / "saved").signed
    with pytest.raises(UserError, match="somebodys_envs"):
        rl_training.load(tmp_path / "saved").evaluate(1)
    trusted = rl_training.load(foreign, trust_modules=True)
    trusted.save(tmp_path / "unseen")
    assert not read_checkpoint(tmp_path / "unseen").signed
    trusted.evaluate(1)
    trusted.save(tmp_path / "trusted")
    assert read_checkpoint(tmp_path / "trusted").signed
