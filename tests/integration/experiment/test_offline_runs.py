"""A run without environments: learner and a fixed source, through the ordinary `Run` to a complete run folder."""

import json

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms.dqn import DQN
from rl_training.core.seeding import REPLAY, generator_state, numpy_generator, set_generator_state
from rl_training.core.types import EnvSpec
from rl_training.data.replay_buffer import Transitions
from rl_training.experiment.building import UserObjects
from rl_training.experiment.checkpoints.folders import read_newest
from rl_training.experiment.checkpoints.locking import RunLock
from rl_training.experiment.console import Console
from rl_training.experiment.logs.metadata import Metadata
from rl_training.experiment.run import NO_EVALUATION, Run
from rl_training.experiment.run_folder import make_run_dir
from rl_training.runtime.callbacks import Callback, PauseTraining, SaveEvery
from rl_training.runtime.engines.local import OfflineEngine
from support.compared_runs import tensors

SPEC = EnvSpec(spaces.Box(-5, 5, (4,), np.float32), spaces.Discrete(2), 1)
TOTAL, EVERY = 40, 8
CLOCKS = {"time/time_elapsed", "time/fps", "time/checkpoint_seconds", "time/checkpoint_bytes"}


class FixedSource:
    """Draws batches from transitions that never change; one batch per iteration."""

    steps_per_collect = 0
    nbytes = 0
    storages: dict = {}  # noqa: RUF012

    def __init__(self, seed: int) -> None:
        data = np.random.default_rng(0)
        self.obs = torch.from_numpy(data.normal(size=(65, 4)).astype(np.float32))
        self.actions = torch.from_numpy(data.integers(0, 2, 64))
        self.rewards = torch.from_numpy(data.normal(size=64).astype(np.float32))
        self.rng = numpy_generator(seed, REPLAY)

    def batches(self, progress):
        rows = torch.from_numpy(self.rng.integers(0, 64, 16))
        yield Transitions(
            obs=self.obs[rows],
            actions=self.actions[rows],
            rewards=self.rewards[rows],
            discounts=torch.full((16,), 0.9),
            next_obs=self.obs[rows + 1],
            indices=rows,
        )

    def feedback(self, batch, result):
        pass

    def forget(self, rows):
        raise AssertionError("there are no rows")

    def state_dict(self):
        return {"rng": generator_state(self.rng)}

    def load_state_dict(self, state):
        set_generator_state(self.rng, state["rng"])


class OfflineDQN(DQN):
    @staticmethod
    def build_source(settings, context, actor):
        return FixedSource(context.seed)


class PauseAt(Callback):
    def __init__(self, clock):
        self.clock = clock

    def on_update(self, progress, result):
        if progress.clock == self.clock:
            raise PauseTraining("for a test")


class Listening(Console):
    def __init__(self):
        self.notices = []

    def notice(self, text):
        self.notices.append(text)


@pytest.fixture
def execute(tiny):
    def execute(run_dir=None, callbacks=(), env_id="Recorded", console=None, **settings):
        config = tiny(
            "dqn", env_id=env_id, num_envs=1, batch_size=16, checkpoint_every_timesteps=EVERY,
            eval_every_timesteps=16, log_every_timesteps=10, keep_checkpoints=99,
        )  # fmt: skip
        run = Run(config, UserObjects(algorithm=OfflineDQN), callbacks, console or Console(), **settings)
        checkpoint = None if run_dir is None else read_newest(run_dir)
        checkpoint = run.build_parts(SPEC, checkpoint, resumed=checkpoint is not None)
        run_dir = run_dir or make_run_dir(config)
        with RunLock(run_dir):
            metadata = Metadata(run_dir, config, [], None)
            return run.execute(run_dir, metadata, OfflineEngine(SPEC, TOTAL), checkpoint)

    return execute


def metric_rows(run_dir):
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in CLOCKS} for line in lines]


def test_it_leaves_a_complete_run_folder_counted_in_updates(execute):
    console = Listening()
    result = execute(evaluates=False, console=console, callbacks=[SaveEvery(15)])
    assert console.notices == [NO_EVALUATION]
    assert result.metrics == {"global_step": TOTAL, "updates": TOTAL}
    checkpoints = result.run_dir / "checkpoints"
    names = {path.name for path in checkpoints.glob("step_*")}
    assert names == {f"step_{clock}" for clock in range(0, TOTAL + 1, EVERY)}
    assert (checkpoints / "last").read_text(encoding="utf-8").strip() == f"step_{TOTAL}"
    assert not (checkpoints / "best").exists()
    assert [row["time/iterations"] for row in metric_rows(result.run_dir)] == [10, 20, 30, 40]
    assert (result.run_dir / "evaluations.jsonl").read_text(encoding="utf-8") == ""
    assert {path.name for path in (result.run_dir / "agents").iterdir()} == {"step_15", "step_30"}
    manifest = json.loads((result.checkpoint_path / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["progress"] == {"timesteps": 0, "updates": TOTAL, "total_updates": TOTAL}
    assert "sampler" not in manifest["state"]
    metadata = json.loads((result.run_dir / "metadata.json").read_text(encoding="utf-8"))
    assert metadata["status"] == "finished"


@pytest.mark.parametrize("at", [EVERY, 21])
def test_paused_and_resumed_it_ends_with_the_same_bytes(execute, at):
    whole = execute(evaluates=False)
    paused = execute(evaluates=False, callbacks=[PauseAt(at)])
    assert (paused.paused, paused.metrics["global_step"], paused.checkpoint_path.name) == (
        True,
        at,
        f"step_{at}",
    )
    resumed = execute(paused.run_dir, evaluates=False)
    assert (resumed.paused, resumed.metrics["global_step"]) == (False, TOTAL)
    assert tensors(resumed.checkpoint_path) == tensors(whole.checkpoint_path)
    assert metric_rows(resumed.run_dir) == metric_rows(whole.run_dir)


def test_it_is_evaluated_where_there_is_an_environment(execute):
    result = execute(env_id="CartPole-v1")
    lines = (result.run_dir / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["updates"] for line in lines] == [16, 32, 40]
    assert (result.run_dir / "checkpoints" / "best").exists()
    assert "eval/mean_reward" in result.metrics
