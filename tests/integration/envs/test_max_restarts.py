"""`max_restarts`: an environment that fails now and then costs at most one interval, and changes no result."""

import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest
from tiny_envs import Lottery

from rl_training.core.errors import EnvironmentFault, RunFault
from rl_training.experiment.logs.sinks import WALL_CLOCK
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import Callback


class Flaky(Lottery):
    """A function of its seed, but for `times` failures in all, counted in a file that every process sees."""

    def __init__(self, ledger: str, times: int = 1, mode: str = "raise", fail_after: int = 40) -> None:
        super().__init__()
        self.ledger, self.times, self.mode, self.fail_after = Path(ledger), times, mode, fail_after
        self.life = 0

    def reset(self, **kwargs):
        if self.mode == "first_reset":
            self._fail()
        return super().reset(**kwargs)

    def step(self, action):
        self.life += 1
        if self.life > self.fail_after and self.mode != "first_reset":
            self._fail()
        return super().step(action)

    def _fail(self) -> None:
        failures = len(self.ledger.read_bytes()) if self.ledger.exists() else 0
        if failures >= self.times:
            return
        with self.ledger.open("ab") as file:
            file.write(b"x")
        if self.mode == "die":
            os._exit(9)
        if self.mode == "hang":
            time.sleep(3600)
        raise ZeroDivisionError("the motor is stuck")


def metadata(run_dir: Path) -> dict:
    return json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))


def only_run(config) -> Path:
    (run_dir,) = Path(config.output_dir).iterdir()
    return run_dir


@pytest.fixture
def flaky(tiny, tmp_path):
    """Rollouts of 11 steps, so that a restart finds the environments in the middle of their episodes."""

    def build(times: int = 1, mode: str = "raise", **changes):
        settings = {
            "env_id": "Flaky", "num_steps": 11, "batch_size": 11, "total_timesteps": 220, "learning_rate": 1e-2,
            "checkpoint_every_timesteps": 44, "eval_every_timesteps": 66, "log_every_timesteps": 22,
            "env_kwargs": {"ledger": str(tmp_path / "ledger"), "times": times, "mode": mode},
        }  # fmt: skip
        return tiny(**settings | changes)

    return build


def assert_same_results(run_dir: Path, other: Path, rows) -> None:
    name = "checkpoints/step_220/model.safetensors"
    assert (run_dir / name).read_bytes() == (other / name).read_bytes()
    tables = [rows(folder / "metrics.jsonl") for folder in (run_dir, other)]
    for table in tables:
        for row in table:
            for column in WALL_CLOCK:
                row.pop(column, None)
    assert tables[0] == tables[1]
    assert (run_dir / "evaluations.jsonl").read_bytes() == (other / "evaluations.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("backend", "mode", "fault"),
    [
        ("sync", "raise", "the motor is stuck"),
        ("async", "raise", "the motor is stuck"),
        ("async", "die", r"the worker of environment \d died \(exit code 9\)"),
        pytest.param(
            "async", "hang", "did not answer for 1 s" ,
        ),
    ],
)  # fmt: skip
def test_a_failure_is_survived_and_leaves_no_trace_in_the_results(
    flaky, tmp_path, rows, backend, mode, fault
):
    config = flaky(mode=mode, env_backend=backend, max_restarts=1, env_timeout=1.0)
    with pytest.warns(UserWarning, match=f"{fault}.*; restart 1 of 1"):
        result = train(config, factory=Flaky)
    assert result.metrics["global_step"] == 220
    data = metadata(result.run_dir)
    assert data["status"] == "finished"
    assert "error" not in data
    (restart,) = data["restarts"]
    assert "environment" in restart["fault"]
    assert data["resumes"] == [], "it was never interrupted"
    assert multiprocessing.active_children() == []
    healthy = train(config, factory=Flaky)  # the ledger is full: nothing fails any more
    assert "restarts" not in metadata(healthy.run_dir)
    assert_same_results(result.run_dir, healthy.run_dir, rows)


def test_a_failure_before_the_first_interval_goes_back_to_the_start(flaky, rows):
    config = flaky(max_restarts=1, checkpoint_every_timesteps=0, eval_every_timesteps=0)
    with pytest.warns(UserWarning, match=r"step_0\); restart 1 of 1"):
        result = train(config, factory=Flaky)
    assert_same_results(result.run_dir, train(config, factory=Flaky).run_dir, rows)


def test_more_failures_than_restarts_end_the_run(flaky):
    config = flaky(times=99, max_restarts=2)
    with (
        pytest.warns(UserWarning, match="the motor is stuck") as caught,
        pytest.raises(EnvironmentFault, match="the motor is stuck"),
    ):
        train(config, factory=Flaky)
    assert [str(warning.message).rpartition("; ")[2] for warning in caught] == [
        "restart 1 of 2",
        "restart 2 of 2",
    ]
    data = metadata(only_run(config))
    assert data["status"] == "failed"
    assert "the motor is stuck" in data["error"]
    assert len(data["restarts"]) == 2


def test_nothing_is_restarted_unless_asked_for(flaky):
    config = flaky()
    assert config.max_restarts == 0
    with pytest.raises(EnvironmentFault, match="the motor is stuck"):
        train(config, factory=Flaky)
    assert "restarts" not in metadata(only_run(config))


def test_only_environments_are_restarted(flaky):
    """Another fault would come again."""

    class Broken(Callback):
        def on_update(self, progress, result):
            raise RunFault("mine")

    config = flaky(times=0, max_restarts=3)
    with pytest.raises(RunFault, match="mine"):
        train(config, factory=Flaky, callbacks=[Broken()])
    assert "restarts" not in metadata(only_run(config))


def test_callbacks_go_back_with_the_run(flaky):
    class Count(Callback):
        def __init__(self):
            self.updates = 0

        def on_update(self, progress, result):
            self.updates += 1

        def state_dict(self):
            return {"updates": self.updates}

        def load_state_dict(self, state):
            self.updates = state["updates"]

    count = Count()
    with pytest.warns(UserWarning, match="restart 1 of 1"):
        result = train(flaky(max_restarts=1), factory=Flaky, callbacks=[count])
    assert count.updates == result.metrics["updates"] == 10


def test_every_worker_is_ended_though_restarts_are_left(flaky):
    try:
        with pytest.warns(UserWarning, match="restart 1 of 3"):
            train(flaky(max_restarts=3, env_backend="async"), factory=Flaky)
        assert multiprocessing.active_children() == []
    finally:
        for process in multiprocessing.active_children():
            process.kill()
            process.join()


def test_a_failure_in_the_very_first_reset_is_survived_too(flaky, rows):
    config = flaky(
        mode="first_reset", max_restarts=1, rebuild_envs="off", use_action_masks="off"
    )  # no check resets it before
    with pytest.warns(UserWarning, match="restart 1 of 1"):
        result = train(config, factory=Flaky)
    assert_same_results(result.run_dir, train(config, factory=Flaky).run_dir, rows)


@pytest.mark.filterwarnings("always::UserWarning")
def test_the_command_warns_and_goes_on(tiny, cli, tmp_path):
    """Through flags: the environment of the command line is one that breaks after 20 steps of its life."""
    outcome = cli(
        "train", "ppo", "--env-id", "tiny_envs:Faulty-v0", "--env-kwargs", "{fail_after: 20}",
        "--max-restarts", 1, "--num-envs", 2, "--num-steps", 8, "--batch-size", 8, "--total-timesteps", 64,
        "--checkpoint-every-timesteps", 16, "--num-eval-episodes", 1, "--output-dir", tmp_path, "--quiet",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    (warning,) = outcome.warnings
    assert "the motor is stuck" in warning
    assert warning.endswith("restart 1 of 1")
    assert len(metadata(Path(outcome.out.strip()))["restarts"]) == 1
