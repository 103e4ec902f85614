"""Logs and pictures are never worth a run: what is damaged is named and left out, and the run goes on to its end."""

import csv
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rl_training.core.errors import RunFault, UserError
from rl_training.experiment.faults import forget_traceback, write_traceback
from rl_training.experiment.logs import curves
from rl_training.experiment.logs.rows import read_rows
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import Callback
from support.callbacks import StopAtCollect

pytestmark = pytest.mark.fault


@pytest.fixture
def paused(tiny) -> Path:
    """A run with rows and evaluations at 32 and 64 steps."""
    config = tiny(total_timesteps=128, eval_every_timesteps=32, num_eval_episodes=1)
    return train(config, callbacks=[StopAtCollect(96)]).run_dir


def damage(path: Path, number: int, line: bytes) -> None:
    """Replace a line by another of the same length, as a bad block would."""
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(line) < len(lines[number - 1])
    lines[number - 1] = line.ljust(len(lines[number - 1]) - 1) + b"\n"
    path.write_bytes(b"".join(lines))


DAMAGE = {
    "a bad byte": b'{"time/total_timesteps": 32, "a\xff": 1}',
    "no JSON": b'{"time/total_timesteps": 32',
    "an empty map": b"{}",
    "a list": b"[1, 2]",
    "text for a number": b'{"time/total_timesteps": 32, "rollout/ep_rew_mean": "high"}',
    "half a character": b'{"time/total_timesteps": 32, "\\ud800": 1}',
    "another separator": b'{"time/total_timesteps": 32\x0c\x1c\x85',
}


@pytest.mark.usefixtures("real_curves")
@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_row_of_metrics_costs_this_row_only(paused, case):
    damage(paused / "metrics.jsonl", 2, DAMAGE[case])
    with pytest.warns(UserWarning, match=r"metrics\.jsonl: skipping damaged row 2"):
        resume(paused)
    with (paused / "metrics.csv").open(encoding="utf-8", newline="") as file:
        steps = [float(row["time/total_timesteps"]) for row in csv.DictReader(file)]
    assert steps == [32, 96, 128]
    assert json.loads((paused / "metadata.json").read_text(encoding="utf-8"))["status"] == "finished"
    assert (paused / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("real_curves")
@pytest.mark.parametrize(
    "line",
    [b"{}", b'{"timesteps": 64, "mean_reward": 1, "returns": [null]}', b'{"timesteps": "64"}', b"\xff"],
)
def test_a_damaged_evaluation_costs_a_dot_of_the_picture_only(paused, line):
    damage(paused / "evaluations.jsonl", 2, line)
    with pytest.warns(UserWarning, match=r"evaluations\.jsonl: skipping damaged row 2"):
        resume(paused)
    assert json.loads((paused / "metadata.json").read_text(encoding="utf-8"))["status"] == "finished"
    assert (paused / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_torn_last_line_is_no_damage(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n{"a": 3}')
    assert read_rows(path) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("error", [KeyError("x"), OSError(28, "No space left on device"), MemoryError()])
def test_a_picture_that_cannot_be_drawn_does_not_fail_the_run(tiny, monkeypatch, error):
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(curves, "_draw", fail)
    with pytest.warns(UserWarning, match=r"learning_curve\.png was not drawn"):
        run_dir = train(tiny()).run_dir
    assert json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))["status"] == "finished"


@pytest.mark.usefixtures("real_curves")
def test_a_style_in_the_working_folder_is_not_obeyed(tiny, tmp_path, monkeypatch):
    """`text.usetex` would start another program with what the file says."""
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "text.usetex", True)
    monkeypatch.setenv("PATH", "")
    run_dir = train(tiny()).run_dir
    assert (run_dir / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert matplotlib.rcParams["text.usetex"] is True, "the caller's style is the caller's"


class FailingTracker:
    """wandb, as far as we use it."""

    def __init__(self, fails_in: str) -> None:
        self.fails_in, self.rows = fails_in, 0

    def module(self) -> SimpleNamespace:
        return SimpleNamespace(init=self.init, login=self.login, __spec__=object())

    def login(self, **settings: Any) -> None:
        if self.fails_in == "login":
            raise RuntimeError("No API key configured")

    def init(self, **settings: Any) -> "FailingTracker":
        if self.fails_in == "init":
            raise RuntimeError("no account")
        return self

    def log(self, metrics: Any, step: int) -> None:
        self.rows += 1
        if self.fails_in == "log":
            raise RuntimeError("no network")

    def finish(self) -> None:
        if self.fails_in == "finish":
            raise RuntimeError("no network")


@pytest.mark.parametrize(("part", "rows"), [("log", 1), ("finish", 2)])
def test_a_failing_tracker_does_not_fail_the_run(tiny, monkeypatch, part, rows):
    tracker = FailingTracker(part)
    monkeypatch.setitem(sys.modules, "wandb", tracker.module())
    with pytest.warns(UserWarning, match="wandb .*: no network"):
        run_dir = train(tiny(track="wandb")).run_dir
    assert tracker.rows == rows
    assert json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))["status"] == "finished"


def test_a_tracker_that_does_not_start_is_named(tiny, monkeypatch):
    tracker = FailingTracker("init")
    monkeypatch.setitem(sys.modules, "wandb", tracker.module())
    with pytest.raises(Exception, match="wandb cannot be started: no account"):
        train(tiny(track="wandb"))


def test_a_tracker_without_a_key_is_refused_before_anything_is_made(tiny, tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setitem(sys.modules, "wandb", FailingTracker("login").module())
    with pytest.raises(
        UserError, match=r"wandb has no API key .*WANDB_API_KEY.*WANDB_MODE=offline.*track 'none'"
    ):
        train(tiny(track="wandb"))
    assert not (tmp_path / "runs").exists()


class Fail(Callback):
    def on_collect(self, progress: Any) -> None:
        if progress.timesteps >= 64:
            try:
                raise ZeroDivisionError("the motor is stuck")
            except ZeroDivisionError as error:
                error.worker_traceback = "Traceback of the worker\n  step 5\x1b[31m\n"
                raise RunFault("environment 1 raised") from error


def test_the_whole_traceback_of_a_fault_is_kept_until_the_run_goes_on(tiny):
    config = tiny(checkpoint_every_timesteps=32)
    with pytest.raises(RunFault) as caught:
        train(config, callbacks=[Fail()])
    (run_dir,) = Path(config.output_dir).iterdir()
    text = (run_dir / "error.txt").read_text(encoding="utf-8")
    for part in ("ZeroDivisionError: the motor is stuck", "direct cause", "RunFault: environment 1 raised"):
        assert part in text
    assert 'raise ZeroDivisionError("the motor is stuck")' in text
    assert "Traceback of the worker\n  step 5?[31m\n" in text
    assert "last good checkpoint" in str(caught.value)
    resume(run_dir)
    assert not (run_dir / "error.txt").exists()


def test_a_full_disk_is_not_worth_the_fault_itself(tmp_path):
    (tmp_path / "error.txt").mkdir()
    write_traceback(tmp_path, ValueError("x"))
    forget_traceback(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["error.txt"]


def test_a_pause_leaves_no_traceback(paused):
    assert not (paused / "error.txt").exists()


@pytest.mark.parametrize(
    "arguments",
    [["\x1b[31mtrain"], ["eval", "\x1b]0;title\x07"], ["train", "\x1b[2J"], ["eval", "x", "--\x1b[1m"]],
)
def test_escape_sequences_are_not_echoed(cli, arguments):
    for debug in ([], ["--debug"]):
        outcome = cli(*arguments, *debug)
        assert outcome.code == 2
        assert "\x1b" not in outcome.err + outcome.out
        assert "\x07" not in outcome.err + outcome.out


def test_a_folder_whose_name_is_an_escape_sequence(cli, tmp_path):
    folder = tmp_path / "\x1b[31mred"
    outcome = cli(
        "train", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", 64, "--num-envs", 2, "--num-steps", 32,
        "--num-eval-episodes", 1, "--output-dir", folder,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert "\x1b" not in outcome.err + outcome.out
