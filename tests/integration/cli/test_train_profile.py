"""`rl-training train --profile`: told, kept in the run folder, and nothing is learned otherwise for it."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rl_training.experiment.logs.profile import RunProfile
from rl_training.experiment.records.remove import foreign_files
from rl_training.experiment.start import train

CARTPOLE = ("--env-id", "CartPole-v1", "--seed", "3", "--total-timesteps", "256", "--num-eval-episodes", "1")
DQN = ("--learning-starts", "32", "--batch-size", "8", "--num-envs", "2", "--train-freq", "4")
PPO = ("--num-envs", "2", "--num-steps", "32", "--batch-size", "32", "--update-epochs", "2")


def find_run_dir(folder: Path) -> Path:
    [run] = folder.iterdir()
    return run


@pytest.mark.parametrize(("algo", "flags"), [("ppo", PPO), ("dqn", DQN)])
def test_the_profile_is_told_and_kept_and_learns_the_same(
    cli: Callable[..., Any], tmp_path: Path, algo: str, flags: tuple[str, ...]
):
    plain = cli("train", algo, *CARTPOLE, *flags, "--output-dir", tmp_path / "plain")
    profiled = cli("train", algo, *CARTPOLE, *flags, "--output-dir", tmp_path / "profiled", "--profile")
    assert (plain.code, profiled.code) == (0, 0)
    assert "Where the time went" not in plain.out
    assert "Where the time went" in profiled.out
    for name in ("profile.json", "timeline.png"):
        assert not (find_run_dir(tmp_path / "plain") / name).exists()
    picture = find_run_dir(tmp_path / "profiled") / "timeline.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    told = json.loads((find_run_dir(tmp_path / "profiled") / "profile.json").read_text())
    assert told["timesteps"] == 256
    sections = told["sections"]
    assert {"env", "act", "store", "sample", "update", "log", "evaluate", "checkpoint", "other"} <= set(
        sections
    )
    assert sections["env"]["calls"] == 128
    assert all(found["seconds"] > 0 for found in sections.values())
    parts = sum(found["seconds"] for name, found in sections.items() if "/" not in name)
    assert parts == pytest.approx(told["seconds"])
    weights = [
        (find_run_dir(tmp_path / name) / "checkpoints" / "step_256" / "model.safetensors").read_bytes()
        for name in ("plain", "profiled")
    ]
    assert weights[0] == weights[1]


def test_quiet_prints_the_folder_alone_and_keeps_the_profile(cli: Callable[..., Any], tmp_path: Path):
    done = cli("train", "ppo", *CARTPOLE, *PPO, "--output-dir", tmp_path, "--profile", "--quiet")
    assert done.out.strip() == str(find_run_dir(tmp_path))
    assert (find_run_dir(tmp_path) / "profile.json").exists()


@pytest.mark.parametrize("lag", [0, 1])
def test_the_timeline_has_the_rollouts_of_all_samplers(tmp_path: Path, tiny: Callable[..., Any], lag: int):
    """The profile says how long each side waited."""
    profile = RunProfile()
    config = tiny("ppo", num_envs=4, engine="process", env_groups=2, num_samplers=2, lag=lag)
    run_dir = train(config, callbacks=[profile]).run_dir
    timeline = profile.timeline
    iterations = -(-config.total_timesteps // (4 * config.algorithm.num_steps))
    assert timeline.iterations == iterations
    assert [list(groups) for groups in timeline.hosts] == [[0], [1]]
    for host in (0, 1):
        spans = timeline.rollouts_of(host)
        assert len(spans) == iterations
        assert all(start < end <= later for (_, start, end), (_, later, _) in pairwise(spans))
        assert 0 < timeline.waits(host) < 1
    if lag == 0:  # nobody collects during an update
        updates = [span for span in timeline.shown() if span.what == "update"]
        for _, start, end in [*timeline.rollouts_of(0), *timeline.rollouts_of(1)]:
            assert not any(start < update.end and update.start < end for update in updates)
    told = json.loads((run_dir / "profile.json").read_text(encoding="utf-8"))["timeline"]
    assert told == timeline.report()
    assert (run_dir / "timeline.png").exists()
    assert foreign_files(run_dir) == []
