"""Commands and workers that are ended by a signal leave nothing behind: no process, no traceback."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from loading import ROOT
from rl_training.algorithms import PPO
from rl_training.core.errors import Interrupted
from rl_training.core.types import Progress
from rl_training.envs.workers import WorkerVectorEnv
from rl_training.experiment.interrupts import Interrupts

pytestmark = pytest.mark.fault


class WithSimulator(gymnasium.Env):
    """Has a process of its own, which `close` ends, and writes its number to the file SIMULATORS."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self):
        self.simulator = subprocess.Popen(
            ["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        with Path(os.environ["SIMULATORS"]).open("a") as file:
            file.write(f"{self.simulator.pid}\n")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        time.sleep(0.001)
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def close(self):
        self.simulator.kill()
        self.simulator.wait()


def started(*words, **environment):
    folders = os.pathsep.join(
        [
            *(
                str(folder)
                for folder in (Path(__file__).parent, ROOT / "tests", ROOT / "tests" / "integration")
            ),
            *filter(None, [os.environ.get("PYTHONPATH")]),
        ]
    )
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        env=os.environ | {"PYTHONPATH": folders} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(condition, seconds=60.0):
    last = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < last
        time.sleep(0.05)


def is_alive(number):
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{number}/status").read_text()


def test_an_evaluation_ended_by_sigterm_closes_its_environments(tiny, tmp_path):
    simulators, agent = tmp_path / "simulators", tmp_path / "agent"
    os.environ["SIMULATORS"] = os.devnull
    try:
        model = PPO(WithSimulator, num_envs=1, hidden_sizes=(4,))
        model.save(agent)
    finally:
        del os.environ["SIMULATORS"]
    command = ("-m", "rl_training", "eval", agent, "--env-factory", "test_stopping:WithSimulator")
    process = started(*command, SIMULATORS=str(simulators))
    try:
        until(lambda: simulators.exists() and len(simulators.read_text().split()) >= 10)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
        assert process.returncode == 143, said
        assert "Traceback" not in said
        left = [number for number in map(int, simulators.read_text().split()) if is_alive(number)]
        assert left == []
    finally:
        process.kill()
        for number in map(int, simulators.read_text().split()):
            if is_alive(number):
                os.kill(number, signal.SIGKILL)


def test_a_worker_whose_parent_is_gone_prints_nothing(capfd):
    env = WorkerVectorEnv([lambda: gymnasium.make("CartPole-v1")])
    env.reset()
    env.parent_pipes[0].close()  # as the kernel does, before it tells the worker of the end
    env.processes[0].join(10)
    assert env.processes[0].exitcode == 1
    assert capfd.readouterr().err == ""
    env.parent_pipes = (None,)
    env.close()


def test_a_signal_is_answered_with_the_time_that_an_update_takes(capfd, monkeypatch):
    interrupts = Interrupts()
    interrupts._signalled(signal.SIGTERM, None)
    assert "after this update; Ctrl-C" in capfd.readouterr().err
    clock = [1e3]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    slow = Interrupts()
    for collecting, updating, evaluating in [(20.0, 30.0, 600.0), (20.0, 10.0, 900.0), (1.0, 1.0, 0.0)]:
        clock[0] += collecting
        slow.on_collect(Progress())
        for _ in range(2):
            clock[0] += updating / 2
            slow.on_update(Progress(), None)
        clock[0] += evaluating
        slow.on_evaluate(Progress(), {})
    clock[0] += 5_000.0  # the signal comes late, such as in a process that was suspended
    slow._signalled(signal.SIGTERM, None)
    assert "after this update, which takes up to about 50 s; Ctrl-C again" in capfd.readouterr().err
    offline = Interrupts()
    for _ in range(3):
        clock[0] += 4.0
        offline.on_update(Progress(), None)
    offline._signalled(signal.SIGTERM, None)
    assert "takes up to about 4 s; Ctrl-C again" in capfd.readouterr().err


def test_the_message_counts_updates_where_the_run_does(tmp_path):
    assert "at 1,000 steps;" in str(Interrupted(signal.SIGINT, tmp_path, 1000, None))
    assert "at 1,000 updates;" in str(Interrupted(signal.SIGINT, tmp_path, 1000, None, "updates"))
