"""A run of an algorithm of one's own that is killed and resumed leaves the same bytes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loading import ROOT

pytestmark = pytest.mark.fault

PLACES = [str(ROOT / "src"), str(ROOT / "tests" / "integration"), os.environ.get("PYTHONPATH", "")]
KNOWN = os.environ | {"PYTHONPATH": os.pathsep.join(PLACES)}
FLAGS = [
    "--env-id", "CartPole-v1", "--scale", "0.5", "--total-timesteps", "20000", "--num-envs", "2", "--num-steps", "64",
    "--checkpoint-every-timesteps", "512", "--eval-every-timesteps", "4096", "--num-eval-episodes", "1",
]  # fmt: skip


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "rl_training.cli", *words]


def final_bytes(folder: Path) -> dict[str, bytes]:
    (last,) = folder.glob("*__seed*/checkpoints/step_20096")
    return {path.name: path.read_bytes() for path in sorted(last.glob("*.safetensors"))}


def test_it_leaves_the_same_bytes(tmp_path: Path) -> None:
    train = command("train", "tiny_algorithms:ScaledPPO", *FLAGS, "--quiet", "--output-dir")
    subprocess.run([*train, "whole"], cwd=tmp_path, env=KNOWN, check=True, timeout=200, capture_output=True)
    victim = subprocess.Popen([*train, "killed"], cwd=tmp_path, env=KNOWN, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("killed/*/checkpoints/step_1536")):
        assert victim.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline, "no checkpoint appeared"
        time.sleep(0.005)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    (run_dir,) = tmp_path.glob("killed/*__seed*")
    assert not list(run_dir.glob("checkpoints/step_20096"))
    resume = command("resume", str(run_dir), "--quiet")
    subprocess.run(resume, cwd=tmp_path, env=KNOWN, check=True, timeout=200, capture_output=True)
    whole, resumed = final_bytes(tmp_path / "whole"), final_bytes(tmp_path / "killed")
    assert len(whole) > 1
    assert whole == resumed
