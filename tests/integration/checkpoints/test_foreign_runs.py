"""Runs of somebody else: their size, their tracker and their arguments are bounded before anything is read or built."""

import hashlib
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rl_training
from rl_training import PPO
from rl_training.core.errors import UserError
from rl_training.experiment.checkpoints import format as checkpoint_format
from rl_training.experiment.checkpoints import tensor_files
from rl_training.experiment.checkpoints.folders import open_checkpoint
from rl_training.experiment.checkpoints.format import manifest_hash
from rl_training.experiment.checkpoints.trust import Trust
from rl_training.experiment.checkpoints.warm_start import inherited_config
from rl_training.experiment.console import Console
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train


@pytest.fixture
def foreign(tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    run_dir = train(tiny()).run_dir
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    return run_dir


def step_of(run_dir: Path) -> Path:
    return sorted((run_dir / "checkpoints").glob("step_*"), key=lambda path: int(path.name[5:]))[-1]


def forge(run_dir: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = step_of(run_dir) / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    change(manifest)
    manifest.pop("signature", None)
    path.write_text(json.dumps(manifest | {"sha256": manifest_hash(manifest)}), encoding="utf-8")


def grow(run_dir: Path, size: int) -> None:
    """Let the weights be one sparse tensor of `size` bytes, and the manifest say so."""
    header = json.dumps({"x": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    blob = struct.pack("<Q", len(header)) + header
    path = step_of(run_dir) / "model.safetensors"
    path.write_bytes(blob)
    os.truncate(path, len(blob) + size)
    entry = {"size": len(blob) + size, "sha256": "0" * 64}
    forge(run_dir, lambda manifest: manifest["files"].update({"model.safetensors": entry}))


def test_weights_of_gigabytes_are_refused_unread(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(foreign, 6 << 30)
    monkeypatch.setattr(checkpoint_format, "read_tensors", lambda *_, **__: pytest.fail("they were read"))
    with pytest.raises(UserError, match=r"not signed by you.*more than 256 MiB.*--trust-modules"):
        rl_training.load(step_of(foreign))
    with pytest.raises(UserError, match="more than 256 MiB"):
        resume(step_of(foreign), total_timesteps=128)


def test_weights_of_another_size_than_their_header_says_are_refused_unread(
    foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(foreign, 1 << 20)
    path = step_of(foreign) / "model.safetensors"
    os.truncate(path, path.stat().st_size + 7)
    size = path.stat().st_size
    monkeypatch.setattr(tensor_files, "hashlib", None)
    with pytest.raises(UserError, match="its header describes 1048576 bytes, and there are 1048583"):
        tensor_files.read_tensors(path, size, hashlib.sha256(b"").hexdigest())


def test_a_run_with_many_tensors_reads_its_own_checkpoint_but_not_a_strangers(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_files, "MAX_HEADER_BYTES", 64)
    monkeypatch.setattr(checkpoint_format, "MAX_JSON_BYTES", 1024)
    path = step_of(train(tiny()).run_dir)
    assert checkpoint_format.read_checkpoint(path).signed
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    with pytest.raises(UserError, match="larger than 1 KiB"):
        checkpoint_format.read_checkpoint(path)
    checkpoint_format.read_checkpoint(path, Trust(modules=True))
    monkeypatch.setattr(checkpoint_format, "MAX_JSON_BYTES", 1 << 20)
    with pytest.raises(UserError, match="header is too large"):
        checkpoint_format.read_checkpoint(path)


HUGE = 10**40


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["progress"].update(timesteps=HUGE),
        lambda m: m["progress"].update(updates=HUGE),
        lambda m: m["files"]["model.safetensors"].update(size=HUGE),
        lambda m: m["facts"]["log_positions"].update({"metrics.jsonl": HUGE}),
    ],
)
def test_counts_of_forty_digits_are_refused(foreign: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    forge(foreign, change)
    with pytest.raises(UserError, match="a count is not from 0 to"):
        resume(step_of(foreign), total_timesteps=128)


def test_a_foreign_tracker_is_not_followed_and_the_user_is_told(
    foreign: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sinks = "rl_training.experiment.logs.sinks.WandbTracker"
    monkeypatch.setattr(sinks, lambda *_: pytest.fail("data would be sent"))
    forge(foreign, lambda manifest: manifest["config"].update(track="wandb"))
    told: list[str] = []
    console = Console()
    monkeypatch.setattr(console, "notice", told.append)
    resume(foreign, total_timesteps=128, console=console)
    assert [text for text in told if "nothing is sent to wandb" in text]
    assert json.loads((step_of(foreign) / "manifest.json").read_text())["config"]["track"] == "none"


def test_a_trusted_tracker_is_followed(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Told(Exception):
        pass

    def follow(*_: object) -> None:
        raise Told

    monkeypatch.setattr("rl_training.experiment.logs.sinks.WandbTracker", follow)
    forge(foreign, lambda manifest: manifest["config"].update(track="wandb"))
    with pytest.raises(Told):
        resume(foreign, total_timesteps=128, trust_modules=True)


@pytest.mark.parametrize("door", ["load", "resume"])
def test_a_pipe_among_the_arguments_is_not_opened(foreign: Path, tmp_path: Path, door: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    forge(foreign, lambda m: m["config"].update(env_kwargs={"xml_file": str(tmp_path / "pipe")}))
    with pytest.raises(UserError, match=r"env_kwargs contain the text .* may be a path.*--trust-modules"):
        rl_training.load(foreign).evaluate(1) if door == "load" else resume(foreign, total_timesteps=128)


@pytest.mark.parametrize("door", [PPO.load, PPO.start_from])
def test_a_loaded_stranger_has_the_bounds_of_the_command_line(foreign: Path, door: Any) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["config"].update(num_eval_episodes=65_536, track="wandb", output_dir="/elsewhere")

    forge(foreign, change)
    model = door(step_of(foreign))
    assert (model.config.track, model.config.output_dir) == ("none", "runs")
    with pytest.raises(UserError, match=r"num_eval_episodes is 65,536, more than 1,000"):
        model.learn(32)
    given = door(step_of(foreign), output_dir="here", track="wandb").config
    assert (given.track, given.output_dir) == ("wandb", "here")
    assert door(step_of(foreign), trust_modules=True).config.track == "wandb"


@pytest.mark.parametrize("door", [PPO.load, PPO.start_from])
def test_a_loaded_stranger_chooses_no_ray_cluster(foreign: Path, door: Any) -> None:
    """Its actors would receive our code, and what they answer is unpickled."""
    cluster = {"engine": "ray", "ray_address": "10.0.0.1:6379", "ray_resources": {"CPU": 2}}
    forge(foreign, lambda manifest: manifest["config"].update(cluster))
    found = door(step_of(foreign)).config
    assert (found.engine, found.ray_address, found.ray_resources) == ("process", None, {})
    own = door(step_of(foreign), engine="ray").config
    assert (own.engine, own.ray_address, own.ray_resources) == ("ray", None, {})
    given = door(step_of(foreign), ray_address="auto").config
    assert (given.engine, given.ray_address, given.ray_resources) == ("ray", "auto", {})
    assert door(step_of(foreign), trust_modules=True).config.ray_address == "10.0.0.1:6379"


def test_a_strangers_config_chooses_no_ray_cluster_for_fine_tuning(foreign: Path) -> None:
    forge(foreign, lambda manifest: manifest["config"].update(engine="ray", ray_address="10.0.0.1:6379"))
    learned = open_checkpoint(step_of(foreign))
    assert inherited_config(learned.config, learned, ()).engine == "process"
    assert inherited_config(learned.config, learned, ("ray_address",)).ray_address == "10.0.0.1:6379"


def test_replay_data_of_gigabytes_is_refused_unread(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = train(tiny("dqn")).run_dir
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))

    def change(manifest: dict[str, Any]) -> None:
        manifest["facts"]["replay"]["transitions"]["segments"][0]["size"] = 6 << 30

    forge(foreign, change)
    monkeypatch.setattr("rl_training.experiment.run.load_replay", lambda *_: pytest.fail("it was read"))
    with pytest.raises(UserError, match=r"the replay data of .* more than 256 MiB"):
        rl_training.load(step_of(foreign)).learn(32)


def test_arguments_that_were_refused_are_not_signed(foreign: Path, tmp_path: Path) -> None:
    forge(foreign, lambda manifest: manifest["config"].update(env_kwargs={"xml_file": "/dev/stdin"}))
    rl_training.load(step_of(foreign)).save(tmp_path / "mine")
    assert not checkpoint_format.read_checkpoint(tmp_path / "mine").signed


def test_trust_is_kept_for_all_reads_of_a_checkpoint(
    foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = PPO.load(step_of(foreign), trust_modules=True, output_dir=str(tmp_path / "new"))
    monkeypatch.setattr(checkpoint_format, "MAX_UNSIGNED_BYTES", 16)
    model.learn(32)
    with pytest.raises(UserError, match="not signed"):
        PPO.load(step_of(foreign))
