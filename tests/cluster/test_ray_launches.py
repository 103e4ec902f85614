"""Launches on Ray clusters: the runs of a local launch, to the byte, and no process is left behind."""

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from rl_training.experiment.checkpoints.locking import is_held
from support.clusters import marked, wait_until
from support.configs import tiny_config

pytestmark = [pytest.mark.cluster, pytest.mark.fault]


def manifest(folder: Path, *, timesteps: int) -> Path:
    """Write a benchmark of two presets and three seeds."""
    budget = {"total_timesteps": timesteps, "eval_every_timesteps": 2_000, "checkpoint_every_timesteps": 500}
    for algo in ("ppo", "a2c"):
        config = tiny_config(algo, "unused", env_id="CartPole-v1", **budget)
        (folder / f"{algo}.yaml").write_text(config.to_yaml())
    file = folder / "mine.yaml"
    file.write_text(f"seeds: 3\npresets:\n  - {folder / 'ppo.yaml'}\n  - {folder / 'a2c.yaml'}\n")
    return file


def slow(folder: Path) -> Path:
    """Write a preset that trains for minutes."""
    budget = {
        "total_timesteps": 2_000_000,
        "checkpoint_every_timesteps": 2_000,
        "eval_every_timesteps": 1_000_000,
    }
    file = folder / "slow.yaml"
    file.write_text(tiny_config("ppo", "unused", env_id="CartPole-v1", **budget).to_yaml())
    return file


def final_bytes(folder: Path) -> dict[str, bytes]:
    """Return the tensors of the last checkpoint of every run."""
    found = {}
    for last in folder.glob("runs/*/*/checkpoints/last"):
        checkpoint = last.parent / last.read_text().strip()
        job = last.parents[2].name
        found |= {f"{job}/{file.name}": file.read_bytes() for file in checkpoint.glob("*.safetensors")}
    return found


def scores(folder: Path) -> dict[str, Any]:
    records = [json.loads(file.read_text()) for file in folder.glob("jobs/*.json")]
    return {f"{record['algo']} {record['seed']}": (record["status"], record["score"]) for record in records}


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def trainers_on(raylet: int, folder: Path) -> list[Path]:
    """Return the runs with a checkpoint that train on the node of a raylet: raylet, worker, command."""
    found = []
    for last in folder.glob("runs/*/*/checkpoints/last"):
        run = last.parents[1]
        with contextlib.suppress(OSError, ValueError):
            if is_held(run) and parent_of(parent_of(int((run / ".lock").read_text()))) == raylet:
                found.append(run)
    return found


def switch_off(raylet: int) -> None:
    """Kill all processes of a node at once."""
    node, size = {raylet}, 0
    while len(node) > size:
        size = len(node)
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                node |= {int(folder.name)} if parent_of(int(folder.name)) in node else set()
    for pid in node:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_the_runs_of_a_lost_node_continue_on_another(tmp_path, two_nodes, launcher):
    """A benchmark of six runs loses a node in the middle, and ends with the bytes of one that was left alone."""
    file, there, here = manifest(tmp_path, timesteps=20_000), tmp_path / "there", tmp_path / "here"
    fleet = launcher(
        "benchmark", file, "--output-dir", there, "--engine", "ray", "--ray-address", two_nodes.address
    )
    (run, *_) = wait_until(lambda: trainers_on(two_nodes.raylet, there))
    switch_off(two_nodes.raylet)
    code, out, err = fleet.end(400)
    assert (code, err) == (0, ""), out + err
    assert "its worker was lost" in out, out
    assert "6 of 6 runs are finished" in out
    assert json.loads((run / "metadata.json").read_text())["resumes"], "it was trained again from the start"
    assert len(list(there.glob("runs/*/[!.]*/config.yaml"))) == 6, "a job was begun twice"
    code, _, err = launcher("benchmark", file, "--output-dir", here, "--jobs", 2).end()
    assert (code, err) == (0, "")
    assert scores(there) == scores(here)
    assert {status for status, _ in scores(here).values()} == {"finished"}
    assert len(final_bytes(here)) >= 6 * 4
    assert final_bytes(there) == final_bytes(here)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_pauses_the_runs(tmp_path, launcher, number):
    folder = tmp_path / "D"
    words = ("zoo", "run", slow(tmp_path), "--seeds", 2, "--output-dir", folder, "--engine", "ray")
    fleet = launcher(*words)
    wait_until(lambda: len(list(folder.glob("runs/*/*/checkpoints/last"))) == 2)
    os.kill(fleet.process.pid, number)
    code, out, err = fleet.end(120)
    assert code == 128 + number
    assert f"{number.name}: saving a checkpoint of every run" in err
    assert f"Stopped by {number.name}. Resume every run" in out
    assert out.count("paused") == 2
    for run in folder.glob("runs/*/*/metadata.json"):
        assert json.loads(run.read_text())["status"] == "paused"
    assert not list((folder / "jobs").iterdir())


def test_a_second_ctrl_c_does_not_wait_for_checkpoints(tmp_path, launcher):
    folder = tmp_path / "D"
    fleet = launcher("zoo", "run", slow(tmp_path), "--seeds", 1, "--output-dir", folder, "--engine", "ray")
    wait_until(lambda: list(folder.glob("runs/*/*/checkpoints/last")))
    os.kill(fleet.process.pid, signal.SIGINT)
    os.kill(fleet.process.pid, signal.SIGINT)
    assert fleet.end(120)[0] == 128 + signal.SIGINT


def test_nothing_is_left_of_a_launcher_that_is_killed(tmp_path, launcher):
    folder = tmp_path / "D"
    fleet = launcher("zoo", "run", slow(tmp_path), "--seeds", 2, "--output-dir", folder, "--engine", "ray")
    wait_until(lambda: len(list(folder.glob("runs/*/*/checkpoints/last"))) == 2)
    assert any("raylet" in command for command in marked(fleet.mark).values())
    os.kill(fleet.process.pid, signal.SIGKILL)
    fleet.end(120)
    runs = [last.parents[1] for last in folder.glob("runs/*/*/checkpoints/last")]
    # a process that ends gives up its environment, by which it is known, a moment before its lock
    wait_until(lambda: not any(is_held(run) for run in runs), 5)


def test_runs_of_a_killed_launcher_end_on_a_cluster_that_stays(tmp_path, two_nodes, launcher):
    """The next launch, here without Ray, goes on with them."""
    folder = tmp_path / "D"
    words = ("zoo", "run", slow(tmp_path), "--seeds", 2, "--output-dir", folder)
    fleet = launcher(*words, "--engine", "ray", "--ray-address", two_nodes.address)
    wait_until(lambda: len(list(folder.glob("runs/*/*/checkpoints/last"))) == 2)
    os.kill(fleet.process.pid, signal.SIGKILL)
    fleet.end(120)
    runs = [last.parents[1] for last in folder.glob("runs/*/*/checkpoints/last")]
    wait_until(lambda: not any(is_held(run) for run in runs), 60)
    again = launcher(*words)
    wait_until(lambda: all(json.loads((run / "metadata.json").read_text()).get("resumes") for run in runs))
    os.kill(again.process.pid, signal.SIGTERM)
    code, out, _ = again.end()
    assert code == 128 + signal.SIGTERM
    assert out.count("resumed after") == 2


def test_failures_are_reported_and_leave_nothing(tmp_path, launcher):
    (tmp_path / "bad.yaml").write_text(tiny_config("ppo", "unused", env_id="NoSuch-v0").to_yaml())
    fleet = launcher(
        "zoo", "run", tmp_path / "bad.yaml", "--seeds", 1, "--output-dir", tmp_path / "D", "--engine", "ray"
    )
    code, _, err = fleet.end(120)
    assert code == 2
    assert "no run could be started (1 failed)" in err
    assert "NoSuch" in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("address", ["127.0.0.1:1", "auto"])
def test_a_cluster_that_does_not_answer_is_an_error(tmp_path, launcher, address):
    words = ("--engine", "ray", "--ray-address", address, "--output-dir", tmp_path / "D")
    code, out, err = launcher("zoo", "run", "ppo/cartpole", *words).end(200)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: no connection to a Ray cluster at '{address}'"), err
    assert len(err.strip().splitlines()) == 1
