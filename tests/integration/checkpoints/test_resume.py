"""Resume: goes on where the checkpoint is, bit for bit where the environment allows it, and repeats no row."""

import csv
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors.numpy import load_file
from tiny_envs import AnySpaces, Lottery

import rl_training
from rl_training.core.errors import UserError
from rl_training.envs.stepper import VectorStepper
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import Callback
from support.callbacks import StopAtUpdate
from support.compared_runs import (
    assert_same_run,
    crashed,
    manifest,
    read_csv,
    tensors,
)
from support.spaces import ACTIONS, OBSERVATIONS

VARIANTS = {
    "plain": {},
    "schedules": {"learning_rate_schedule": "linear", "clip_coef_schedule": "cosine"},
    "normalised": {"normalize_obs": True, "normalize_reward": True},
    "terminated": {"env_kwargs": {"ending": "terminated"}},
    "sampled evaluations": {"eval_deterministic": False},
    "five environments": {"num_envs": 5},
    "workers": {"env_backend": "async", "num_envs": 3},
    "cartpole": {"env_id": "CartPole-v1", "num_envs": 3},
    "actions in a box": {"env_id": "Pendulum-v1", "normalize_obs": True},
}


def staggered(tiny, **changes):
    """Rollouts of 11 steps that end in the middle of episodes, and jobs that fall on different rollouts."""
    settings = {"env_id": "tiny_envs:Lottery-v0", "num_envs": 2} | changes
    per_rollout = 11 * settings["num_envs"]
    settings |= {
        "num_steps": 11, "batch_size": 11, "learning_rate": 1e-2, "total_timesteps": 10 * per_rollout,
        "checkpoint_every_timesteps": 2 * per_rollout, "eval_every_timesteps": 4 * per_rollout,
        "log_every_timesteps": 3 * per_rollout, "keep_checkpoints": 99,
    }  # fmt: skip
    return tiny(**settings), per_rollout


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("how", ["paused", "crashed"])
def test_resumed_equals_uninterrupted_bit_for_bit(tiny, rows, variant, how):
    """In the middle of episodes and between two rows of the log.

    That needs weights, moments, random states, statistics, counters, and the environments where they were.
    """
    config, per_rollout = staggered(tiny, **VARIANTS[variant])
    whole = train(config).run_dir
    if how == "paused":
        run_dir = train(config, callbacks=[StopAtUpdate(5 * per_rollout)]).run_dir
        resumed_at = 5 * per_rollout
    else:
        run_dir, resumed_at = crashed(config, 6 * per_rollout), 4 * per_rollout
    lengths = manifest(run_dir / "checkpoints" / f"step_{resumed_at}")["state"]["sampler"]["envs"]["lengths"]
    assert max(lengths) > 0, "no episode was unfinished: the test would say nothing"
    result = resume(run_dir)
    assert result.run_dir == run_dir
    assert result.metrics["global_step"] == 10 * per_rollout
    assert_same_run(run_dir, whole, rows)
    data = json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))
    assert [entry["timesteps"] for entry in data["resumes"]] == [resumed_at]


def test_a_run_that_is_paused_after_every_rollout_is_the_same_run(tiny, rows):
    """One process per rollout: no part of the state lives in memory alone."""
    config, per_rollout = staggered(tiny, normalize_obs=True, normalize_reward=True)
    whole = train(config).run_dir
    result = train(config, callbacks=[StopAtUpdate(0)])
    for rollout in range(1, 10):
        assert result.paused
        assert result.metrics["global_step"] == rollout * per_rollout
        result = resume(result.run_dir, callbacks=[StopAtUpdate(0)] if rollout < 9 else ())
    assert not result.paused
    assert_same_run(result.run_dir, whole, rows)


def test_a_crash_in_the_first_rollout_goes_back_to_the_start(tiny, rows):
    config, per_rollout = staggered(tiny)
    run_dir = crashed(config, per_rollout)
    assert (run_dir / "checkpoints" / "last").read_text(encoding="utf-8") == "step_0\n"
    resume(run_dir)
    assert_same_run(run_dir, train(config).run_dir, rows)


def test_returns_in_progress_go_on(tiny, rows):
    """In the middle of an episode the scale of rewards depends on the return so far, which must not start anew."""
    config = tiny(env_id="tiny_envs:Still-v0", total_timesteps=960, normalize_reward=True, learning_rate=1e-2)
    whole = train(config).run_dir
    run_dir = train(config, callbacks=[StopAtUpdate(128)]).run_dir
    unfinished = manifest(run_dir / "checkpoints" / "step_128")["state"]["sampler"]["episodes"]
    assert unfinished["lengths"] == [64, 64]
    resume(run_dir)
    assert_same_run(run_dir, whole, rows)
    assert rows(run_dir / "metrics.jsonl")[-1]["rollout/ep_len_mean"] == 300


class Dice(Lottery):
    """Uses the global generators, as careless environments do, and pays with them."""

    def step(self, action):
        obs, _, terminated, truncated, info = super().step(action)
        reward = random.random() + np.random.random() + float(torch.rand(()))
        return obs, reward, terminated, truncated, info


def test_the_global_generators_go_on_where_they_were(tiny):
    """Observations come from the seed here, so replaying restores them; what is paid next is luck, but the same."""
    config, per_rollout = staggered(tiny, env_id="Dice")
    whole = train(config, factory=Dice).run_dir
    run_dir = train(config, factory=Dice, callbacks=[StopAtUpdate(5 * per_rollout)]).run_dir
    random.seed(77)
    np.random.seed(77)
    torch.manual_seed(77)
    with pytest.warns(
        UserWarning, match=r"environments \[(0, )?1\] returned the same observations but other rewards"
    ):
        resume(run_dir, factory=Dice)
    name = f"step_{10 * per_rollout}"
    assert tensors(run_dir / "checkpoints" / name) == tensors(whole / "checkpoints" / name)


class Whim(Lottery):
    """Not a function of its seed: no two episodes are the same, whatever one does."""

    def reset(self, **kwargs):
        _, info = super().reset(**kwargs)
        self.shift = np.random.default_rng().normal(size=3).astype(np.float32)
        return self._obs(), info


def test_environments_that_cannot_be_replayed_are_named_and_go_on_afresh(tiny, rows):
    config, per_rollout = staggered(tiny, env_id="Whim")
    run_dir = train(config, factory=Whim, callbacks=[StopAtUpdate(5 * per_rollout)]).run_dir
    with pytest.warns(UserWarning, match=r"environments \[0, 1\] are not deterministic"):
        result = resume(run_dir, factory=Whim)
    assert result.metrics["global_step"] == 10 * per_rollout
    lengths = manifest(result.checkpoint_path)["state"]["trainer"]["episodes"]["recent"]
    assert all(1 <= length <= 8 for _, length, _ in lengths), "two halves were counted as one episode"


@pytest.mark.parametrize("space", ["dict", "nested", "discrete", "multibinary"])
def test_every_kind_of_observation_comes_back(tiny, space):
    config, per_rollout = staggered(tiny, env_id="AnySpaces")

    def make():
        return AnySpaces(OBSERVATIONS[space], ACTIONS["box"], length=7)

    whole = train(config, factory=make)
    run_dir = train(config, factory=make, callbacks=[StopAtUpdate(5 * per_rollout)]).run_dir
    assert tensors(resume(run_dir, factory=make).checkpoint_path) == tensors(whole.checkpoint_path)


@pytest.mark.parametrize("action", ACTIONS)
def test_every_kind_of_action_is_replayed(tiny, action):
    """An environment that shows the sum of all its actions so far would not come back with other ones."""

    class Sum(AnySpaces):
        def reset(self, **kwargs):
            _, info = super().reset(**kwargs)
            self.total = np.zeros(1, np.float32)
            return self.total, info

        def step(self, action):
            _, reward, terminated, truncated, info = super().step(action)
            self.total = (0.5 * self.total + reward).astype(np.float32)
            return self.total, reward, terminated, truncated, info

    def make():
        return Sum(spaces.Box(-np.inf, np.inf, (1,)), ACTIONS[action], length=7)

    config, per_rollout = staggered(tiny, env_id="Sum", num_envs=3)
    whole = train(config, factory=make)
    run_dir = train(config, factory=make, callbacks=[StopAtUpdate(5 * per_rollout)]).run_dir
    assert (
        max(
            manifest(run_dir / "checkpoints" / f"step_{5 * per_rollout}")["state"]["sampler"]["envs"][
                "lengths"
            ]
        )
        > 0
    )
    assert tensors(resume(run_dir, factory=make).checkpoint_path) == tensors(whole.checkpoint_path)


def test_every_part_of_the_state_matters(tiny):
    """What the comparison above compares is not the same at any two steps."""
    config = tiny(
        env_id="tiny_envs:Lottery-v0", total_timesteps=128, checkpoint_every_timesteps=32, keep_checkpoints=9,
        normalize_reward=True,
    )  # fmt: skip
    folders = sorted((train(config).run_dir / "checkpoints").glob("step_*"))
    assert len(folders) == 5
    for name in ("model.safetensors", "optimizer.safetensors", "sampler.safetensors"):
        assert len({(folder / name).read_bytes() for folder in folders}) == 5, name
    for group in ("learner", "trainer", "sampler"):
        assert len({json.dumps(manifest(folder)["state"][group]) for folder in folders}) == 5, group


def test_the_learning_rate_goes_on_where_it_was(tiny, rows):
    config = tiny(
        total_timesteps=256, learning_rate=1.0e-2, learning_rate_schedule="linear", log_every_timesteps=1
    )
    run_dir = train(config, callbacks=[StopAtUpdate(128)]).run_dir
    resume(run_dir)
    table = rows(run_dir / "metrics.jsonl")
    assert [row["time/total_timesteps"] for row in table] == list(range(32, 257, 32))
    for row in table:
        left = 1 - row["time/total_timesteps"] / 256
        assert row["train/learning_rate"] == pytest.approx(1e-2 * left, rel=1e-5, abs=1e-9)


def test_extending_a_run_stretches_its_schedule(tiny, rows):
    config = tiny(
        total_timesteps=128, learning_rate=1e-2, learning_rate_schedule="linear", log_every_timesteps=1
    )
    run_dir = train(config).run_dir
    result = resume(run_dir, total_timesteps=256)
    assert result.metrics["global_step"] == 256
    first_after = rows(run_dir / "metrics.jsonl")[4]
    assert first_after["time/total_timesteps"] == 160
    assert first_after["train/learning_rate"] == pytest.approx(1e-2 * (1 - 160 / 256), rel=1e-5)


def test_a_finished_run_is_refused_and_left_as_it_was(tiny):
    run_dir = train(tiny()).run_dir
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"is finished \(64 of 64 steps\); extend it with --total-timesteps"):
        resume(run_dir)
    with pytest.raises(UserError, match="is finished"):
        resume(run_dir, total_timesteps=32)
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before


def test_the_command_extends_and_records_itself(tiny, cli):
    run_dir = train(tiny()).run_dir
    refused = cli("resume", run_dir)
    assert refused.code == 2
    assert "--total-timesteps" in refused.sentence
    outcome = cli("resume", run_dir, "--total-timesteps", 128, "--quiet")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.strip() == str(run_dir)
    data = json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))
    assert data["status"] == "finished"
    assert [entry["timesteps"] for entry in data["resumes"]] == [64]
    assert rl_training.load(run_dir).config.total_timesteps == 128
    assert "total_timesteps: 128" in (run_dir / "config.yaml").read_text(encoding="utf-8")


def test_the_command_records_the_arguments_it_was_given(tiny, cli):
    run_dir = train(tiny()).run_dir
    cli("resume", run_dir, "--total-timesteps", 128, "--quiet")
    data = json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))
    expected = ["rl-training", "resume", str(run_dir), "--total-timesteps", "128", "--quiet"]
    assert data["resumes"][0]["arguments"] == expected


@pytest.fixture
def torn_run(tiny):
    """Checkpoints at 64 and 128; rows and evaluations up to 192; killed while working on 224."""
    config = tiny(
        total_timesteps=320, checkpoint_every_timesteps=64, eval_every_timesteps=32, log_every_timesteps=32,
        learning_rate=1e-9,
    )  # fmt: skip
    run_dir = crashed(config, 192)
    with (run_dir / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"time/total_timesteps": 192.0, "time/it')  # the line a power cut tore
    return run_dir


def test_rows_beyond_the_checkpoint_are_cut_and_none_is_doubled(torn_run, rows):
    assert (torn_run / "checkpoints" / "last").read_text(encoding="utf-8") == "step_128\n"
    written = (torn_run / "metrics.jsonl").read_text(encoding="utf-8")
    assert '"time/total_timesteps": 160.0' in written, "nothing to cut: the test would say nothing"
    kept = written.splitlines()[
        :3
    ]  # the fourth came with an evaluation, before which the checkpoint was written
    result = resume(torn_run)
    assert result.metrics["global_step"] == 320
    steps = list(range(32, 321, 32))
    table = rows(torn_run / "metrics.jsonl")
    assert [row["time/total_timesteps"] for row in table] == steps
    assert (torn_run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[:3] == kept
    assert [row["timesteps"] for row in rows(torn_run / "evaluations.jsonl")] == steps
    with (torn_run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [float(line["time/total_timesteps"]) for line in lines] == steps
    assert [row["time/iterations"] for row in table] == list(range(1, 11))
    episodes = [row["time/episodes"] for row in table]
    assert episodes == [4 * (i + 1) for i in range(10)]


def test_a_row_torn_before_the_checkpoint_is_left_out_and_swallows_no_other(torn_run, rows):
    """The disk lost the end of the file: what is left of a row must not be glued to the next one."""
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        path = torn_run / name
        third = path.read_bytes().splitlines(keepends=True)[2]
        head = b"".join(path.read_bytes().splitlines(keepends=True)[:2])
        path.write_bytes(head + third[: len(third) // 2])
    with pytest.warns(UserWarning, match=r"\.jsonl is shorter than when the checkpoint was written"):
        resume(torn_run)
    steps = [
        32,
        64,
        *range(128, 321, 32),
    ]  # the checkpoint is at 128, before the row and the evaluation of that step
    assert [row["time/total_timesteps"] for row in rows(torn_run / "metrics.jsonl")] == steps
    assert [row["timesteps"] for row in rows(torn_run / "evaluations.jsonl")] == steps
    assert [float(line["time/total_timesteps"]) for line in read_csv(torn_run / "metrics.csv")] == steps


def test_tensorboard_shows_no_step_twice_after_a_resume(torn_run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    resume(torn_run)
    reader = EventAccumulator(str(torn_run / "tensorboard"))
    reader.Reload()
    steps = [event.step for event in reader.Scalars("train/loss")]
    assert steps == list(range(32, 321, 32))


def test_the_status_of_a_resumed_crash_is_finished_and_both_starts_are_recorded(torn_run):
    failed = json.loads((torn_run / "metadata.json").read_text(encoding="utf-8"))
    assert (failed["status"], failed["error"]) == ("failed", "stopped here")
    resume(torn_run)
    data = json.loads((torn_run / "metadata.json").read_text(encoding="utf-8"))
    assert data["status"] == "finished"
    assert data.get("error") is None
    assert data["started"] == failed["started"]
    assert data["arguments"] == failed["arguments"]
    assert [entry["timesteps"] for entry in data["resumes"]] == [128]


def test_jobs_that_ran_are_not_repeated_and_the_best_is_remembered(tiny, rows, read_pointer):
    config = tiny(
        total_timesteps=256, eval_every_timesteps=96, checkpoint_every_timesteps=96, log_every_timesteps=96,
        learning_rate=1e-9, keep_checkpoints=9,
    )  # fmt: skip
    run_dir = train(config, callbacks=[StopAtUpdate(128)]).run_dir
    assert [row["timesteps"] for row in rows(run_dir / "evaluations.jsonl")] == [96]
    resume(run_dir)
    # nothing at 128, where it was paused, nor at 160, which crossed no multiple of 96 since
    assert [row["timesteps"] for row in rows(run_dir / "evaluations.jsonl")] == [96, 192, 256]
    assert [row["time/total_timesteps"] for row in rows(run_dir / "metrics.jsonl")] == [96, 192, 256]
    written = {path.name for path in (run_dir / "checkpoints").glob("step_*")}
    assert written == {"step_0", "step_96", "step_128", "step_192", "step_256"}
    assert read_pointer(run_dir, "best").name == "step_96"  # equal later ones are no new best


def test_a_plateau_goes_on_counting(tiny, rows):
    config = tiny(
        total_timesteps=640, eval_every_timesteps=32, checkpoint_every_timesteps=32, stop_after_stale_evals=3,
        learning_rate=1e-9,
    )  # fmt: skip
    run_dir = crashed(config, 96)  # after two evaluations: the best and one stale
    assert [row["timesteps"] for row in rows(run_dir / "evaluations.jsonl")] == [32, 64]
    result = resume(run_dir)
    assert result.metrics["global_step"] == 128
    assert "without improvement" in result.stop_reason


@pytest.mark.parametrize("name", ["", "last", "checkpoints", "checkpoints/last", "checkpoints/step_32"])
def test_every_way_to_name_a_run(tiny, name):
    run_dir = train(tiny(), callbacks=[StopAtUpdate(32)]).run_dir
    assert resume(run_dir / name).metrics["global_step"] == 64


def test_a_run_goes_on_from_a_checkpoint_that_is_named(tiny, rows):
    """What came after it is made anew, and is the same."""
    config, per_rollout = staggered(tiny)
    whole = train(config).run_dir
    run_dir = train(config, callbacks=[StopAtUpdate(5 * per_rollout)]).run_dir
    resume(run_dir / "checkpoints" / f"step_{2 * per_rollout}")
    assert_same_run(run_dir, whole, rows)
    data = json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))
    assert [entry["timesteps"] for entry in data["resumes"]] == [2 * per_rollout]


@pytest.fixture
def late_best(tiny, rows, read_pointer) -> Path:
    """A run with an evaluation and a checkpoint at each of its five rollouts, of which the third is the best so far."""
    config = tiny(
        total_timesteps=320, checkpoint_every_timesteps=32, eval_every_timesteps=32, log_every_timesteps=32,
        keep_checkpoints=99, learning_rate=5e-2, num_eval_episodes=1, seed=3,
    )  # fmt: skip
    run_dir = train(config, callbacks=[StopAtUpdate(160)]).run_dir
    scores = [row["mean_reward"] for row in rows(run_dir / "evaluations.jsonl")]
    assert max(scores[0], scores[1]) < scores[2] == max(scores), (
        "choose other settings: the third must be best"
    )
    assert read_pointer(run_dir, "best").name == "step_96"
    return run_dir


@pytest.mark.parametrize(("start", "best"), [(0, None), (32, "step_32"), (64, "step_32")])
def test_going_back_behind_the_best_checkpoint_forgets_it(late_best, read_pointer, start, best):
    """`best` is at once what it was then, and names nothing that is gone."""
    seen = []

    class Look(Callback):
        def on_collect(self, progress):
            if not seen:
                names = {path.name for path in (late_best / "checkpoints").glob("step_*")}
                pointer = late_best / "checkpoints" / "best"
                seen.extend([names, read_pointer(late_best, "best").name if pointer.exists() else None])

    result = resume(late_best / "checkpoints" / f"step_{start}", callbacks=[Look()])
    assert seen == [{f"step_{step}" for step in range(0, start + 1, 32)}, best]
    assert result.metrics["global_step"] == 320
    assert read_pointer(late_best, "best").is_dir()


def test_a_best_checkpoint_that_is_gone_is_not_named(late_best, read_pointer):
    """Going back to where the best one had been another, which was deleted since."""
    shutil.rmtree(late_best / "checkpoints" / "step_32")
    result = resume(late_best / "checkpoints" / "step_64", callbacks=[StopAtUpdate(0)])
    assert result.metrics["global_step"] == 96
    pointer = late_best / "checkpoints" / "best"
    assert not pointer.exists() or read_pointer(late_best, "best").is_dir()


@pytest.mark.parametrize("name", ["", "checkpoints/last", "checkpoints/step_{newest}"])
def test_a_checkpoint_that_was_put_aside_for_its_successor_is_found(tiny, rows, name):
    """As a process leaves it that was killed between the two renames that replace a checkpoint."""
    config, per_rollout = staggered(tiny)
    whole = train(config).run_dir
    newest = 5 * per_rollout
    run_dir = train(config, callbacks=[StopAtUpdate(newest)]).run_dir
    checkpoints = run_dir / "checkpoints"
    (checkpoints / f"step_{newest}").rename(checkpoints / f".step_{newest}.old")
    assert rl_training.load(run_dir / "last").agent.timesteps == newest
    resume(run_dir / name.format(newest=newest))
    data = json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))
    assert [entry["timesteps"] for entry in data["resumes"]] == [newest]
    assert list(checkpoints.glob(".*")) == []
    assert_same_run(run_dir, whole, rows)


def test_a_new_run_can_start_from_any_checkpoint(tiny, rows):
    """In a folder of its own, which begins with a checkpoint of where it started."""
    config, per_rollout = staggered(tiny)
    old = train(config)
    new = train(config, start_from=old.run_dir / "checkpoints" / f"step_{4 * per_rollout}")
    assert new.run_dir != old.run_dir
    names = {int(path.name.removeprefix("step_")) for path in (new.run_dir / "checkpoints").glob("step_*")}
    assert min(names) == 4 * per_rollout
    first = new.run_dir / "checkpoints" / f"step_{4 * per_rollout}" / "model.safetensors"
    assert first.read_bytes() == (old.run_dir / "checkpoints" / first.parent.name / first.name).read_bytes()
    steps = [row["time/total_timesteps"] for row in rows(new.run_dir / "metrics.jsonl")]
    assert 4 * per_rollout < steps[0]
    assert steps[-1] == 10 * per_rollout
    # the same environments in the same place: the same model in the end
    assert (
        tensors(new.checkpoint_path)["model.safetensors"] == tensors(old.checkpoint_path)["model.safetensors"]
    )


def test_a_saved_agent_is_no_run(tiny, tmp_path):
    rl_training.load(train(tiny()).run_dir).save(tmp_path / "agent")
    with pytest.raises(UserError, match="is not part of a run; resume takes a run folder"):
        resume(tmp_path / "agent", total_timesteps=128)


def test_where_the_environments_live_may_change_between_two_sessions(tiny, rows):
    """Which episodes were played, and how, is part of the state, wherever they were."""
    config, per_rollout = staggered(tiny, num_envs=3)
    whole = train(config)
    for before, after in (("sync", "async"), ("async", "sync")):
        other = config.with_overrides(env_backend=before)
        run_dir = train(other, callbacks=[StopAtUpdate(5 * per_rollout)]).run_dir
        new = train(
            config.with_overrides(env_backend=after),
            start_from=run_dir / "checkpoints" / f"step_{5 * per_rollout}",
        )
        assert (
            tensors(new.checkpoint_path)["model.safetensors"]
            == (tensors(whole.checkpoint_path)["model.safetensors"])
        )


@pytest.fixture
def starts(monkeypatch) -> list[np.ndarray]:
    """What the environments of the training show right after a reset or a replay."""
    found = []
    original = VectorStepper.reset

    def reset(self):
        original(self)
        if type(self) is VectorStepper:  # evaluations are meant to repeat theirs
            found.append(self.out.obs.copy())

    monkeypatch.setattr(VectorStepper, "reset", reset)
    return found


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_a_resumed_run_goes_on_in_the_middle_of_its_episodes(tiny, starts, backend):
    config, per_rollout = staggered(tiny, env_backend=backend)
    run_dir = train(config, callbacks=[StopAtUpdate(5 * per_rollout)]).run_dir
    seen = last_observations(run_dir / "checkpoints" / f"step_{5 * per_rollout}")
    resume(run_dir)
    first, second = starts
    assert not np.isclose(first, second).all(axis=1).any()
    assert np.array_equal(second, seen)


def last_observations(checkpoint: Path) -> np.ndarray:
    return load_file(checkpoint / "sampler.safetensors")["envs/obs/0"]


def test_native_environments_go_on_with_episodes_they_have_not_played(tiny, starts, rows):
    """They cannot be brought back; but they must not play the same episodes again after every interruption."""
    config = tiny(env_id="CartPole-v1", env_backend="native", total_timesteps=192)
    run_dir = train(config, callbacks=[StopAtUpdate(64)]).run_dir
    result = resume(run_dir, callbacks=[StopAtUpdate(128)])
    result = resume(result.run_dir)
    assert result.metrics["global_step"] >= 192
    assert len(starts) == 3
    table = np.concatenate(starts)
    assert len(np.unique(table, axis=0)) == len(table)
    episodes = manifest(result.checkpoint_path)["state"]["trainer"]["episodes"]
    assert all(reward == length for reward, length, _, *_ in episodes["recent"]), (
        "two halves became one episode"
    )


def test_the_command_says_that_native_environments_do_not_come_back(tiny, cli, tmp_path):
    for backend, told in (("native", True), ("sync", False)):
        path = tmp_path / "settings.yaml"
        path.write_text(tiny(env_id="CartPole-v1", env_backend=backend).to_yaml(), encoding="utf-8")
        outcome = cli("train", "--config", path)
        assert (outcome.code, outcome.err) == (0, "")
        notes = [line for line in outcome.out.splitlines() if line.startswith("note: ")]
        assert len(notes) == told
        assert all("native" in note and "new episodes" in note for note in notes)


def test_a_run_that_is_in_use_is_refused(tiny):
    class Again(Callback):
        def on_collect(self, progress):
            (run_dir,) = Path(tiny().output_dir).iterdir()
            script = "import sys; from rl_training.cli import main; sys.exit(main(['resume', sys.argv[1]]))"
            self.done = subprocess.run(
                [sys.executable, "-c", script, str(run_dir)], capture_output=True, text=True, check=False
            )

    again = Again()
    train(tiny(total_timesteps=32), callbacks=[again])
    assert again.done.returncode == 2
    assert f"is in use by process {os.getpid()}" in again.done.stderr


def test_a_run_killed_after_its_last_checkpoint_is_brought_to_its_end(tiny, rows):
    """The steps are all done, the folder is not: the metadata say that it runs."""
    whole = train(tiny()).run_dir
    run_dir = train(tiny()).run_dir
    data = json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))
    (run_dir / "metadata.json").write_text(json.dumps(data | {"status": "running"}), encoding="utf-8")
    result = resume(run_dir)
    assert json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))["status"] == "finished"
    assert result.metrics["eval/mean_reward"] == rows(run_dir / "evaluations.jsonl")[-1]["mean_reward"]
    assert_same_run(run_dir, whole, rows)
    with pytest.raises(UserError, match="is finished"):
        resume(run_dir)
