"""A run that names an algorithm of somebody's own runs none of its code, unless it is ours or we say so."""

import json
import sys
from pathlib import Path

import pytest
import yaml

import rl_training
from rl_training import PPO
from rl_training.algorithms.base import Algorithm
from rl_training.core.errors import UserError
from rl_training.experiment.checkpoints.folders import find_checkpoint
from rl_training.experiment.checkpoints.format import manifest_hash, read_checkpoint
from rl_training.experiment.resume import resume
from rl_training.experiment.start import evaluate_checkpoint

MODULE = """
from dataclasses import dataclass
from rl_training import PPO
from rl_training.algorithms.ppo import PPOConfig

@dataclass(frozen=True, kw_only=True)
class TheirConfig(PPOConfig):
    bonus: float = 1.0

class TheirPPO(PPO):
    config_class = TheirConfig
"""
ALGO = "their_algorithms:TheirPPO"


def forget_module() -> None:
    sys.modules.pop("their_algorithms", None)


def imported() -> bool:
    return "their_algorithms" in sys.modules


def trained(tmp_path: Path) -> Path:
    import their_algorithms

    settings = {"num_envs": 2, "num_steps": 16, "batch_size": 16, "hidden_sizes": [8], "num_eval_episodes": 1}
    model = their_algorithms.TheirPPO(
        "CartPole-v1", bonus=2.0, total_timesteps=64, output_dir=str(tmp_path / "runs"), **settings
    ).learn()
    return model.run_dir


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    """A finished run of this user, in a process that has not imported its module."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "their_algorithms.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    run_dir = trained(tmp_path)
    forget_module()
    yield run_dir
    forget_module()


@pytest.fixture
def foreign(run, tmp_path, monkeypatch) -> Path:
    """The same run, seen by another user."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    return run


def forge(run_dir: Path, change) -> None:
    """Change the manifests of a run as a stranger could, with hashes that fit."""
    for path in run_dir.glob("checkpoints/step_*/manifest.json"):
        manifest = json.loads(path.read_text(encoding="utf-8"))
        change(manifest)
        path.write_text(json.dumps(manifest | {"sha256": manifest_hash(manifest)}), encoding="utf-8")


def test_a_run_of_this_user_needs_no_word(run):
    assert evaluate_checkpoint(run, 1)["num_episodes"] == 1
    assert imported()


DOORS = {
    "load": rl_training.load,
    "Algorithm.load": Algorithm.load,
    "PPO.load": PPO.load,
    "start_from": PPO.start_from,
    "evaluate_checkpoint": evaluate_checkpoint,
    "resume": lambda path: resume(path, total_timesteps=96),
    "resume a checkpoint": lambda path: resume(path / "checkpoints" / "last", total_timesteps=96),
    "read_checkpoint": lambda path: read_checkpoint(path / "checkpoints" / "step_64"),
}


@pytest.mark.parametrize("door", DOORS)
def test_the_module_of_a_foreign_run_is_not_imported(foreign, door):
    with pytest.raises(
        UserError, match=r"not signed.*'their_algorithms' for its algorithm.*--trust-modules.*TheirPPO"
    ):
        DOORS[door](foreign)
    assert not imported()


def test_nor_if_it_lies_in_the_working_folder(foreign, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "modules")
    with pytest.raises(UserError, match="not signed"):
        rl_training.load(foreign)
    assert not imported()


@pytest.mark.parametrize("where", ["config", "facts"])
def test_a_forged_algorithm_is_not_imported(tiny, run, where, recwarn):
    """In the config, and in the entry by which earlier versions named a class."""
    run_dir = PPO(tiny()).learn().run_dir
    key = "algo" if where == "config" else "algorithm"
    forge(run_dir, lambda manifest: manifest[where].update({key: ALGO}))
    for door in DOORS.values():
        with pytest.raises(UserError, match="not signed"):
            door(run_dir)
    assert not imported()
    assert not recwarn.list, "no older checkpoint is tried instead"


@pytest.mark.parametrize("where", ["read_checkpoint", "load"])
def test_a_built_in_algorithm_as_a_fact_does_not_lift_the_bound_on_the_network(tiny, where, monkeypatch):
    run_dir = PPO(tiny()).learn().run_dir

    def grow(manifest):
        manifest["facts"]["algorithm"] = "ppo"
        manifest["config"]["algorithm"]["hidden_sizes"] = [16384] * 64

    forge(run_dir, grow)
    monkeypatch.setattr("rl_training.experiment.loading.build_actor", lambda *_: pytest.fail("it was built"))
    with pytest.raises(UserError, match=r"algorithm.*'ppo', not module:Class"):
        (rl_training.load if where == "load" else read_checkpoint)(find_checkpoint(run_dir))


def test_a_class_that_is_imported_already_is_not_used_either(foreign):
    import their_algorithms  # noqa: F401

    with pytest.raises(UserError, match="not signed"):
        rl_training.load(foreign)


def test_the_class_itself_and_trust_allow_it(foreign, tmp_path):
    assert rl_training.load(foreign, trust_modules=True).config.algorithm.bonus == 2.0
    forget_module()
    import their_algorithms

    model = their_algorithms.TheirPPO.load(foreign)
    assert model.config.algorithm.bonus == 2.0
    assert (
        resume(foreign, algorithm=their_algorithms.TheirPPO, total_timesteps=96).metrics["global_step"] == 96
    )
    assert evaluate_checkpoint(foreign, 1, trust_modules=True)["num_episodes"] == 1


COMMANDS = [
    ["eval", "RUN"],
    ["resume", "RUN"],
    ["resume", "RUN/checkpoints/last"],
    ["train", "--start-from", "RUN"],
    ["train", "ppo", "--start-from", "RUN"],
    ["train", "--start-from", "RUN", "--help"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_that_would_import_it_is_refused(foreign, cli, command):
    words = [word.replace("RUN", str(foreign)) for word in command]
    outcome = cli(*words)
    assert outcome.code == 2
    assert "their_algorithms" in outcome.sentence
    assert not imported()
    if "--help" not in words and "ppo" not in words:
        more = (
            ["--total-timesteps", "96"]
            if command[0] == "resume"
            else ["--quiet"]
            if command[0] == "train"
            else []
        )
        assert cli(*words, *more, "--trust-modules").code == 0
        assert imported()


READERS = [
    ["runs", "list", "FOLDER"],
    ["runs", "list", "FOLDER", "--algo", ALGO],
    ["runs", "show", "RUN"],
    ["runs", "show", "RUN", "--json"],
    ["runs", "diff", "RUN", "RUN"],
    ["export-results", "FOLDER", "--csv", "-"],
    ["runs", "rm", "RUN", "--yes"],
]


@pytest.mark.parametrize("mine", [True, False])
@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_readers_never_import_it(run, cli, command, mine, tmp_path, monkeypatch):
    if not mine:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    outcome = cli(*(word.replace("RUN", str(run)).replace("FOLDER", str(run.parent)) for word in command))
    assert outcome.code == 0, outcome.err
    assert not imported()
    if command[:2] == ["runs", "list"] or command[0] == "export-results":
        assert ALGO in outcome.out


def test_show_knows_the_settings_of_the_run(run, cli):
    shown = cli("runs", "show", run).out
    assert "bonus = 2.0" in shown
    assert "num_envs = 2" in shown
    assert "eval_deterministic" not in shown, "it is at its default"


def test_a_run_that_was_killed_before_its_first_checkpoint(run, cli, tmp_path, monkeypatch):
    """Only `config.yaml` and `.origin.json` are there."""
    import shutil

    for name in ("checkpoints", "metrics.jsonl", "evaluations.jsonl"):
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    state = tmp_path / "other user"
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(state))
        outcome = cli("resume", run)
        assert outcome.code == 2
        assert "their_algorithms" in outcome.sentence
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    assert config["algo"] == ALGO
    assert not imported()
    assert cli("resume", run).code == 0
    assert imported()


def test_a_config_that_somebody_changed_is_not_ours(run, cli):
    import shutil

    for name in ("checkpoints", "metrics.jsonl", "evaluations.jsonl"):
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    text = (run / "config.yaml").read_text(encoding="utf-8")
    (run / "config.yaml").write_text(text.replace(ALGO, "evil_algorithms:Evil"), encoding="utf-8")
    outcome = cli("resume", run)
    assert outcome.code == 2
    assert "not signed" in outcome.sentence


def test_what_was_only_passed_on_is_not_signed(foreign, tmp_path):
    """Loading with trust and saving makes it ours; reading a checkpoint does not."""
    rl_training.load(foreign, trust_modules=True).save(tmp_path / "mine")
    forget_module()
    assert rl_training.load(tmp_path / "mine").config.algo == ALGO
    assert imported()
