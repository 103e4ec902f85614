"""Schedules of the user's own in runs: applied, saved, resumed to the same bytes, and a stranger's not called."""

import json
import sys
from pathlib import Path

import pytest

import rl_training
from rl_training.cli import load_config
from rl_training.core.errors import RunFault, UserError
from rl_training.experiment.checkpoints.format import read_checkpoint
from rl_training.experiment.resume import resume
from rl_training.experiment.start import evaluate_checkpoint, train
from rl_training.runtime.callbacks import Callback, PauseTraining

FUNCTION = "somebodys_schedules:stairs"
MODULE = """
def stairs(fraction):
    return 1.0 if fraction < 0.5 else 0.25

def broken_late(fraction):
    return -1.0 if 0.6 < fraction < 0.7 else 1.0
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "somebodys_schedules.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    yield
    sys.modules.pop("somebodys_schedules", None)


def rates(rows, run_dir: Path) -> list[float]:
    return [row["train/learning_rate"] for row in rows(run_dir / "metrics.jsonl")]


class PauseAt(Callback):
    def __init__(self, timesteps: int) -> None:
        self.timesteps = timesteps

    def on_collect(self, progress) -> None:
        if progress.timesteps == self.timesteps:
            raise PauseTraining("for the test")


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear:0.5", [0.75e-3, 0.5e-3]),
        ([[0, 1], [0.5, 0.5], [1, 2]], [0.5e-3, 2e-3]),
        (FUNCTION, [0.25e-3, 0.25e-3]),
    ],
)
@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_the_rate_follows_the_schedule(tiny, rows, schedule, expected, algo):
    settings = {"train_freq": 32} if algo == "dqn" else {}
    config = tiny(algo, learning_rate=1e-3, learning_rate_schedule=schedule, **settings)
    run_dir = train(config).run_dir
    assert rates(rows, run_dir) == pytest.approx(expected)
    assert load_config(run_dir / "config.yaml").algorithm == config.algorithm


@pytest.mark.parametrize("schedule", ["cosine:0.2", [[0, 1], [0.4, 0.1], [1, 0.01]], FUNCTION])
def test_a_resumed_run_has_the_same_bytes(tiny, schedule):
    config = tiny(learning_rate_schedule=schedule, clip_coef_schedule=schedule, total_timesteps=128)
    whole = train(config)
    paused = train(config, callbacks=[PauseAt(64)])
    assert paused.paused
    again = resume(paused.run_dir)
    first, second = ((result.checkpoint_path / "model.safetensors").read_bytes() for result in (whole, again))
    assert first == second


@pytest.mark.parametrize(
    ("flag", "saved"),
    [
        ("linear:0.1", "linear:0.1"),
        ("[[0, 1], [0.5, 0.1]]", ((0.0, 1.0), (0.5, 0.1))),
        (FUNCTION, FUNCTION),
    ],
)
def test_flags_and_files_take_every_form(cli, tiny, tmp_path, flag, saved):
    path = tmp_path / "config.yaml"
    path.write_text(tiny(learning_rate_schedule=flag).to_yaml(), encoding="utf-8")
    outcome = cli("train", "--config", path, "--quiet", "--clip-coef-schedule", flag)
    assert outcome.code == 0, outcome.err
    settings = load_config(Path(outcome.out.strip()) / "config.yaml").algorithm
    assert settings.learning_rate_schedule == saved
    assert settings.clip_coef_schedule == saved


def test_a_bad_one_leaves_no_folder(cli, tiny, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(tiny().to_yaml(), encoding="utf-8")
    for value, words in (("lin", "linear"), ("somebodys_schedules:stair", "stairs")):
        outcome = cli("train", "--config", path, "--learning-rate-schedule", value)
        assert outcome.code == 2
        assert "learning_rate_schedule" in outcome.sentence.replace("-", "_")
        assert words in outcome.sentence
    assert not (tmp_path / "runs").exists()


def test_a_function_that_breaks_in_the_middle_names_itself_and_the_last_checkpoint(tiny):
    config = tiny(learning_rate_schedule="somebodys_schedules:broken_late", total_timesteps=96)
    with pytest.raises(RunFault, match=r"broken_late' returned -1.0 at fraction 0.66.*last good checkpoint"):
        train(config)


@pytest.fixture
def foreign(tiny, tmp_path, monkeypatch) -> Path:
    """A run with a function for a schedule, seen by another user."""
    run_dir = train(tiny(env_id="CartPole-v1", learning_rate_schedule=FUNCTION)).run_dir
    sys.modules.pop("somebodys_schedules", None)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    return run_dir


def imported() -> bool:
    return "somebodys_schedules" in sys.modules


REFUSAL = r"not signed by you.*somebodys_schedules.*learning_rate_schedule.*--trust-modules"


def test_the_function_of_a_foreign_run_is_not_called(foreign, cli):
    for learn in (
        lambda: resume(foreign, total_timesteps=96),
        lambda: rl_training.load(foreign).learn(32),
        lambda: rl_training.load(foreign, env="CartPole-v1").learn(32),
    ):
        with pytest.raises(UserError, match=REFUSAL):
            learn()
    outcome = cli("resume", foreign, "--total-timesteps", 96)
    assert outcome.code == 2
    assert "somebodys_schedules" in outcome.sentence
    assert not imported()


def test_a_foreign_agent_plays_without_its_schedule(foreign):
    assert evaluate_checkpoint(foreign, 1)["num_episodes"] == 1
    assert not imported()


def test_trust_allows_it_and_so_does_a_schedule_of_ones_own(foreign, cli):
    rl_training.load(foreign, learning_rate_schedule="linear").learn(32)
    assert not imported()
    outcome = cli("resume", foreign, "--total-timesteps", 96, "--quiet", "--trust-modules")
    assert outcome.code == 0, outcome.err
    assert imported()


def test_what_was_only_passed_on_is_not_signed_though_the_module_is_there(foreign, tmp_path):
    """`os` is always imported: saving a stranger's agent must not make its schedule this user's."""
    import somebodys_schedules  # noqa: F401

    rl_training.load(foreign).save(tmp_path / "saved")
    assert not read_checkpoint(tmp_path / "saved").signed
    rl_training.load(foreign, trust_modules=True).save(tmp_path / "trusted")
    assert read_checkpoint(tmp_path / "trusted").signed
    manifest = json.loads((tmp_path / "saved" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["config"]["algorithm"]["learning_rate_schedule"] == FUNCTION
