"""What every run leaves behind: the files, what stands in them, and that all of them say the same."""

import csv
import hashlib
import json
import math
import struct
import subprocess
import time
from pathlib import Path

import pytest
import torch
from gymnasium import spaces
from safetensors.torch import load_file

from rl_training.algorithms import PPO
from rl_training.config import TrainConfig, load_config
from rl_training.core.errors import UserError
from rl_training.core.spaces.as_data import space_from_data
from rl_training.core.state import split_state
from rl_training.experiment.logs.sinks import WALL_CLOCK
from rl_training.experiment.start import train
from rl_training.runs import make_run_dir
from rl_training.version import __version__

METRICS = (
    "rollout/ep_rew_mean", "rollout/ep_len_mean", "time/fps", "time/total_timesteps", "eval/mean_reward",
    "eval/mean_ep_length", "train/learning_rate", "train/loss", "train/policy_gradient_loss", "train/value_loss",
    "train/entropy_loss", "train/approx_kl", "train/clip_fraction", "train/explained_variance",
)  # fmt: skip


@pytest.fixture
def config(tiny) -> TrainConfig:
    return tiny(
        total_timesteps=160, eval_every_timesteps=64, checkpoint_every_timesteps=64, keep_checkpoints=9
    )


@pytest.fixture
def run_dir(config) -> Path:
    return train(config, arguments=["rl-training", "train", "--seed", "1"]).run_dir


@pytest.mark.usefixtures("real_curves")
def test_every_promised_file_is_there(run_dir, read_pointer):
    for name in (
        "config.yaml", "metadata.json", "metrics.csv", "metrics.jsonl", "evaluations.jsonl", "learning_curve.png",
    ):  # fmt: skip
        assert (run_dir / name).stat().st_size > 0, name
    assert (run_dir / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert list((run_dir / "tensorboard").glob("events.out.tfevents.*"))
    for pointer in ("last", "best"):
        folder = read_pointer(run_dir, pointer)
        assert {"model.safetensors", "manifest.json"} <= {path.name for path in folder.iterdir()}
    hidden = {path.name for path in run_dir.rglob(".*")}
    assert hidden == {".lock", ".origin.json"}, "a temporary file was left behind"


def test_the_config_is_resolved_and_reads_back(run_dir, config):
    assert load_config(run_dir / "config.yaml") == config.with_overrides(rebuild_envs="off")


def test_metadata_is_enough_to_do_the_run_again(run_dir):
    data = json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))
    assert data["status"] == "finished"
    assert (data["algo"], data["env_id"], data["seed"]) == ("ppo", "tiny_envs:Clockwork-v0", 1)
    assert data["arguments"] == ["rl-training", "train", "--seed", "1"]
    assert data["started"] <= data["finished"]
    assert data["versions"]["rl_training"] == __version__
    assert {"python", "torch", "numpy", "gymnasium", "safetensors"} <= set(data["versions"])
    assert {"platform", "processor", "cpu_count"} <= set(data["machine"])
    assert data["config_fingerprint"] == load_config(run_dir / "config.yaml").fingerprint()
    assert data["metrics"]["global_step"] == 160


def test_metadata_names_the_commit_of_the_folder_one_works_in(tiny, tmp_path, monkeypatch):
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    for command in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "--message", "start"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run(
        [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    data = json.loads((train(tiny()).run_dir / "metadata.json").read_text(encoding="utf-8"))
    assert data["git_commit"] == head


def test_metric_names_are_those_that_dashboards_know(run_dir, rows):
    last = rows(run_dir / "metrics.jsonl")[-1]
    assert set(METRICS) <= set(last)
    for row in rows(run_dir / "metrics.jsonl"):
        assert {name.split("/")[0] for name in row} <= {"rollout", "time", "eval", "train"}


def test_csv_and_jsonl_hold_the_same_numbers(run_dir, rows):
    with (run_dir / "metrics.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    records = rows(run_dir / "metrics.jsonl")
    assert len(table) == len(records) == 5
    for line, record in zip(table, records, strict=True):
        present = {name: float(text) for name, text in line.items() if text != ""}
        expected = {name: math.nan if value is None else value for name, value in record.items()}
        assert present == pytest.approx(expected, abs=0, rel=1e-15, nan_ok=True)


def test_tensorboard_reads_its_file_with_the_same_values(run_dir, rows):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    (path,) = (run_dir / "tensorboard").iterdir()
    found = {}
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            found[event.step, value.tag] = value.tensor.float_val[0]
    expected = {
        (int(row["time/total_timesteps"]), name): math.nan if number is None else number
        for row in rows(run_dir / "metrics.jsonl")
        for name, number in row.items()
    }
    single = {key: struct.unpack("<f", struct.pack("<f", number))[0] for key, number in expected.items()}
    assert found == pytest.approx(single, abs=0, rel=0, nan_ok=True)


def test_evaluations_hold_every_episode(run_dir, rows):
    evaluations = rows(run_dir / "evaluations.jsonl")
    assert [row["timesteps"] for row in evaluations] == [64, 128, 160]
    for row in evaluations:
        assert row["num_episodes"] == len(row["returns"]) == len(row["lengths"]) == 2
        assert row["lengths"] == [8, 8]
        assert row["mean_reward"] == pytest.approx(sum(row["returns"]) / 2)
    logged = [r["eval/mean_reward"] for r in rows(run_dir / "metrics.jsonl") if "eval/mean_reward" in r]
    assert logged == [row["mean_reward"] for row in evaluations]


@pytest.mark.parametrize("deterministic", [True, False])
def test_greedy_evaluations_play_the_same_episode_and_sampled_ones_do_not(tiny, rows, deterministic):
    """Every episode of this environment begins alike, so that only the actions can make a difference."""
    settings = {"num_eval_episodes": 8, "learning_rate": 1e-9, "eval_every_timesteps": 32}
    run_dir = train(tiny(**settings, eval_deterministic=deterministic)).run_dir
    for evaluation in rows(run_dir / "evaluations.jsonl"):
        assert (len(set(evaluation["returns"])) == 1) == deterministic


def test_the_manifest_hashes_its_files_and_holds_what_the_run_was(run_dir, read_pointer, rows):
    folder = read_pointer(run_dir, "last")
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["progress"] == {"timesteps": 160, "updates": 5}
    assert manifest["config"] == load_config(run_dir / "config.yaml").to_dict()
    tensors = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    assert manifest["files"] == {
        name: {"size": len(blob), "sha256": hashlib.sha256(blob).hexdigest()}
        for name, blob in tensors.items()
    }
    assert {path.name for path in folder.iterdir()} == {*tensors, "manifest.json"}
    assert set(manifest["state"]) == {
        "model", "optimizer", "learner", "source", "trainer", "sampler", "generators",
    }  # fmt: skip
    assert {f"{group}.safetensors" for group in ("model", "optimizer", "sampler", "generators")} <= set(
        tensors
    )
    facts, last = manifest["facts"], rows(run_dir / "evaluations.jsonl")[-1]
    assert facts["evaluation"] == {key: value for key, value in last.items() if key != "timesteps"}
    assert facts["best_checkpoint"] == read_pointer(run_dir, "best").name
    assert set(facts["spaces"]) == {"observation_space", "action_space"}
    assert space_from_data(facts["spaces"]["action_space"]) == spaces.Discrete(2)
    assert {"python", "torch", "numpy", "gymnasium", "processor", "num_threads"} <= set(facts["surroundings"])
    # the last checkpoint is written after the last row
    assert facts["log_positions"] == {
        name: (run_dir / name).stat().st_size
        for name in ("metrics.jsonl", "evaluations.jsonl", "tensorboard/events.out.tfevents.scalars")
    }


def test_a_run_begins_with_a_checkpoint_of_its_first_instant(run_dir, tiny):
    folder = run_dir / "checkpoints" / "step_0"
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["progress"] == {"timesteps": 0, "updates": 0}
    assert manifest["facts"]["evaluation"] is None
    assert manifest["facts"]["best_checkpoint"] is None
    assert manifest["facts"]["log_positions"]["metrics.jsonl"] == 0
    assert manifest["state"]["sampler"]["envs"]["lengths"] == [0, 0]
    untrained = PPO(tiny()).agent.state["model"]
    saved = load_file(folder / "model.safetensors")
    assert set(saved) == set(split_state(untrained)[0])
    assert all(torch.equal(saved[name], tensor) for name, tensor in split_state(untrained)[0].items())


def test_the_cost_of_checkpoints_is_logged(run_dir, rows):
    """Seconds and bytes so far, as two columns that a comparison of runs leaves out."""
    costs = {"time/checkpoint_seconds", "time/checkpoint_bytes"}
    assert costs <= set(WALL_CLOCK)
    table = rows(run_dir / "metrics.jsonl")
    assert all(costs | {"time/fps", "time/time_elapsed"} <= set(row) for row in table)
    first = run_dir / "checkpoints" / "step_0"
    assert table[0]["time/checkpoint_bytes"] == sum(path.stat().st_size for path in first.iterdir())
    for name in ("time/checkpoint_seconds", "time/checkpoint_bytes"):
        values = [row[name] for row in table]
        assert values == sorted(values)
        assert 0 < values[0] < values[-1]


def test_last_is_the_newest_and_best_the_first_of_the_best(tiny, rows, read_pointer):
    config = tiny(total_timesteps=640, eval_every_timesteps=64, learning_rate=5e-2, keep_checkpoints=1)
    run_dir = train(config).run_dir
    evaluations = rows(run_dir / "evaluations.jsonl")
    best = max(evaluations, key=lambda row: row["mean_reward"])
    assert best["timesteps"] < 640, "choose other settings: here best and last must differ"
    assert read_pointer(run_dir, "best").name == f"step_{best['timesteps']}"
    assert read_pointer(run_dir, "last").name == "step_640"


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_the_newest_checkpoints_are_kept_besides_the_best(tiny, read_pointer, keep):
    config = tiny(
        total_timesteps=320, checkpoint_every_timesteps=32, eval_every_timesteps=32, keep_checkpoints=keep,
        learning_rate=1e-9,
    )  # fmt: skip
    run_dir = train(config).run_dir
    found = {path.name for path in (run_dir / "checkpoints").glob("step_*")}
    newest = {f"step_{320 - 32 * back}" for back in range(keep)}
    assert read_pointer(run_dir, "best").name == "step_32"  # nothing is learned, so nothing beats the first
    assert found == newest | {"step_32"}  # step_0 is none of them


def test_wandb_offline_writes_its_files(tiny, cli, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    path = tmp_path / "settings.yaml"
    path.write_text(tiny().to_yaml(), encoding="utf-8")
    outcome = cli("train", "--config", path, "--track", "wandb", "--quiet")
    assert outcome.code == 0, outcome.err
    run_dir = Path(outcome.out.strip())
    (record,) = run_dir.glob("wandb/offline-run-*/run-*.wandb")
    deadline = time.monotonic() + 20.0  # its own process writes the file, on a busy machine a little later
    while b"rollout/ep_rew_mean" not in record.read_bytes():
        assert time.monotonic() < deadline, "the tracked values never reached the disk"
        time.sleep(0.1)


class TestRunFolderNames:
    def config(self, folder, **changes):
        return TrainConfig(algo="ppo", env_id="CartPole-v1", output_dir=str(folder), **changes)

    def test_the_name_tells_algorithm_environment_seed_and_time(self, tmp_path):
        path = make_run_dir(self.config(tmp_path / "new" / "deep", seed=12))
        assert path.is_dir()
        assert path.parent == tmp_path / "new" / "deep"
        algo, env_id, seed, stamp = path.name.split("__")
        assert (algo, env_id, seed) == ("ppo", "CartPole-v1", "seed12")
        assert stamp[:8].isdigit()

    @pytest.mark.parametrize(
        "env_id", ["ALE/Pong-v5", "my.module:Env-v0", "../../etc/x", "a\\b:c*d?", "x y\nz"]
    )
    def test_ids_that_are_no_file_names(self, tmp_path, env_id):
        config = self.config(tmp_path).with_overrides(env_id=env_id)
        path = make_run_dir(config)
        assert path.parent == tmp_path
        assert path.resolve().parent == tmp_path.resolve()
        assert not set("/\\:*? \n") & set(path.name)

    def test_an_id_for_atari_stays_readable(self, tmp_path):
        path = make_run_dir(self.config(tmp_path).with_overrides(env_id="ALE/Pong-v5"))
        assert path.name.startswith("ppo__ALE-Pong-v5__seed0__")

    def test_many_runs_in_one_second_never_share_a_folder(self, tmp_path):
        paths = [make_run_dir(self.config(tmp_path)) for _ in range(30)]
        assert len(set(paths)) == 30

    @pytest.mark.parametrize("below", ["", "sub", "sub/sub"])
    def test_an_output_folder_at_or_below_a_file(self, tmp_path, below):
        (tmp_path / "file").write_text("x", encoding="utf-8")
        with pytest.raises(UserError, match="output_dir") as caught:
            make_run_dir(self.config(tmp_path / "file" / below))
        assert "choose a folder" in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            ["--learning-starts", "64"],
            "learning_starts is 64 and total_timesteps 64: the run ends before its first",
        ),
        (
            ["--train-freq", "65", "--learning-starts", "0"],
            "train_freq is 65 and total_timesteps 64: the run takes",
        ),
        (["--train-freq", "64", "--learning-starts", "63"], None),
    ],
)
def test_a_run_too_short_for_an_update_says_so(cli, tmp_path, flags, told):
    outcome = cli(
        "train", "dqn", "--env-id", "CartPole-v1", "--total-timesteps", 64, "--num-envs", 1, "--output-dir", tmp_path,
        "--buffer-size", 100, "--eval-every-timesteps", 0, "--num-eval-episodes", 1, *flags,
    )  # fmt: skip
    assert (outcome.code, outcome.err) == (0, "")
    notes = [line for line in outcome.out.splitlines() if line.startswith("note: ") and "memory" not in line]
    assert len(notes) == (told is not None)
    assert told is None or notes[0].startswith(f"note: {told}")


def test_the_cost_of_checkpoints_covers_replay_data(rows, tmp_path):
    config = TrainConfig(
        algo="dqn", env_id="CartPole-v1", num_envs=1, total_timesteps=300, output_dir=str(tmp_path),
        num_eval_episodes=1, eval_every_timesteps=0, checkpoint_every_timesteps=100, keep_checkpoints=100,
        log_every_timesteps=100,
    ).with_overrides(buffer_size=1000, learning_starts=300)  # fmt: skip
    run_dir = train(config).run_dir
    told = rows(run_dir / "metrics.jsonl")[1]["time/checkpoint_bytes"]
    checkpoints = run_dir / "checkpoints"
    files = [*(checkpoints / "step_0").iterdir(), *(checkpoints / "step_100").iterdir()]
    files += [
        checkpoints / "replay" / "segment_0_100.safetensors"
    ]  # a row without an evaluation comes before the checkpoint of its step
    assert told == sum(path.stat().st_size for path in files)
