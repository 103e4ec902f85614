"""Workers that die, hang or are signalled: the one at fault is named and nothing waits for it."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records import CountingEnv

from rl_training.config import TrainConfig
from rl_training.core.errors import EnvironmentFault
from rl_training.envs.factory import make_vector_env
from rl_training.envs.stepper import VectorStepper
from rl_training.envs.workers import WorkerVectorEnv

FINE, DIE, HANG = 0, 1, 2


class ObedientEnv(CountingEnv):
    """Dies or hangs where the action says so, and in a reset if it is `broken`."""

    def __init__(self, broken: int = FINE) -> None:
        super().__init__(lengths=(100,))
        self.action_space = type(self.action_space)(3)
        self.broken = broken

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if self.episode >= 0:
            self._obey(self.broken)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._obey(int(action))
        return super().step(action)

    def _obey(self, order: int) -> None:
        if order == DIE:
            os._exit(7)
        if order == HANG:
            time.sleep(3600)


def make_stepper(num_envs: int = 3, env_timeout: float = 1.0, **kwargs: Any) -> VectorStepper:
    config = TrainConfig(
        algo="ppo", env_id="Test", env_backend="async", env_timeout=env_timeout, env_kwargs=kwargs
    )
    stepper = VectorStepper(make_vector_env(config, num_envs, factory=ObedientEnv))
    stepper.reset()
    return stepper


@pytest.fixture
def stepper() -> Iterator[VectorStepper]:
    stepper = make_stepper()
    yield stepper
    end(stepper)


def end(stepper: VectorStepper) -> None:
    """Whatever a test left: no worker outlives it."""
    assert isinstance(stepper.env, WorkerVectorEnv)
    for process in stepper.env.processes:
        process.kill()
        process.join()
    stepper.env.closed = True


def close_in_time(stepper: VectorStepper, seconds: float = 5.0) -> None:
    closing = threading.Thread(target=stepper.close, daemon=True)
    closing.start()
    closing.join(seconds)
    hangs = closing.is_alive()
    if hangs:
        end(stepper)  # ends the wait, too
        closing.join(seconds)
    assert not hangs, "close waits for a worker that does not answer"
    assert multiprocessing.active_children() == []


def orders(**by_index: int) -> Any:
    actions = np.zeros(3, np.int64)
    for name, order in by_index.items():
        actions[int(name.removeprefix("env"))] = order
    return actions


def test_a_worker_that_dies_is_named_with_its_exit_code(stepper: VectorStepper) -> None:
    with pytest.raises(EnvironmentFault, match=r"the worker of environment 1 died \(exit code 7\)"):
        stepper.step(orders(env1=DIE))
    close_in_time(stepper)


def test_a_worker_that_was_killed_is_named_by_the_next_step(stepper: VectorStepper) -> None:
    assert isinstance(stepper.env, WorkerVectorEnv)
    os.kill(stepper.env.processes[2].pid or 0, signal.SIGKILL)
    stepper.env.processes[2].join(5)
    with pytest.raises(EnvironmentFault, match=r"the worker of environment 2 died \(exit code -9\)"):
        stepper.step(orders())
    close_in_time(stepper)


@pytest.mark.parametrize(
    "call",
    ["state_dict", "reset", "resume", "restart_streams"],
)
def test_a_worker_that_was_killed_is_named_by_every_other_call(stepper: VectorStepper, call: str) -> None:
    assert isinstance(stepper.env, WorkerVectorEnv)
    arguments = [stepper.state_dict()] if call == "resume" else []
    os.kill(stepper.env.processes[2].pid or 0, signal.SIGKILL)
    stepper.env.processes[2].join(5)
    with pytest.raises(EnvironmentFault, match=r"the worker of environment 2 died \(exit code -9\)"):
        getattr(stepper, call)(*arguments)


def test_a_worker_that_hangs_is_named_after_the_timeout(stepper: VectorStepper) -> None:
    started = time.monotonic()
    with pytest.raises(EnvironmentFault, match="the worker of environment 1 did not answer for 1 s"):
        stepper.step(orders(env1=HANG))
    assert 0.9 < time.monotonic() - started < 4.0


def test_all_workers_that_hang_are_named(stepper: VectorStepper) -> None:
    with pytest.raises(EnvironmentFault, match="the worker of environment 0, 2 did not answer for 1 s"):
        stepper.step(orders(env0=HANG, env2=HANG))


@pytest.mark.parametrize(("order", "message"), [(DIE, r"died \(exit code 7\)"), (HANG, "did not answer")])
def test_resets_are_watched_as_steps_are(order: int, message: str) -> None:
    stepper = make_stepper(broken=order)
    try:
        with pytest.raises(EnvironmentFault, match=f"the worker of environment 0.* {message}"):
            stepper.reset()
    finally:
        end(stepper)


def test_closing_does_not_wait_for_a_worker_that_hangs(stepper: VectorStepper) -> None:
    with pytest.raises(EnvironmentFault):
        stepper.step(orders(env1=HANG))
    close_in_time(stepper)


def test_closing_in_the_middle_of_a_step_does_not_wait(stepper: VectorStepper) -> None:
    assert isinstance(stepper.env, WorkerVectorEnv)
    stepper.env.step_async(orders(env1=HANG))  # as an interrupt would leave it
    close_in_time(stepper)


def test_closing_healthy_workers_lets_them_end_by_themselves() -> None:
    stepper = make_stepper()
    assert isinstance(stepper.env, WorkerVectorEnv)
    processes = list(stepper.env.processes)
    close_in_time(stepper)
    assert [process.exitcode for process in processes] == [0, 0, 0]


def test_closing_twice_is_fine() -> None:
    stepper = make_stepper()
    stepper.close()
    stepper.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_workers_let_the_signals_of_their_group_pass(stepper: VectorStepper, number: signal.Signals) -> None:
    """Ctrl-C reaches every process of the terminal; the run still needs its environments to end well."""
    assert isinstance(stepper.env, WorkerVectorEnv)
    stepper.step(orders())
    for process in stepper.env.processes:
        os.kill(process.pid or 0, number)
    time.sleep(0.2)
    for count in (2, 3):
        stepper.step(orders())
        assert stepper.out.reward.tolist() == [count] * 3
    assert all(process.is_alive() for process in stepper.env.processes)
    close_in_time(stepper)


def test_the_signals_of_the_main_process_are_as_before() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    stepper = make_stepper(2)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    stepper.close()


def test_a_signal_that_comes_while_workers_are_made_reaches_the_main_process_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received = []
    monkeypatch.setattr(ObedientEnv, "__init__", _signalling(ObedientEnv.__init__, os.getpid()))
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        make_stepper(2).close()
        assert received
    finally:
        signal.signal(signal.SIGTERM, before)


def _signalling(original: Any, parent: int) -> Any:
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        os.kill(parent, signal.SIGTERM)

    return build


def test_the_timeout_is_the_configs() -> None:
    stepper = make_stepper(1, env_timeout=33.0)
    assert isinstance(stepper.env, WorkerVectorEnv)
    assert stepper.env.seconds_to_answer == 33.0
    stepper.close()


def keep_workers(pipe: Any) -> None:
    """Be a process that trains in workers, and wait for the end."""
    stepper = make_stepper(3)
    assert isinstance(stepper.env, WorkerVectorEnv)
    pipe.send([process.pid for process in stepper.env.processes])
    time.sleep(3600)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot tie a process to its parent")
def test_no_worker_outlives_a_parent_that_is_killed_though_one_of_them_is_stopped() -> None:
    receiver, sender = multiprocessing.Pipe()
    parent = multiprocessing.get_context("fork").Process(target=keep_workers, args=(sender,))
    parent.start()
    pids = receiver.recv()
    try:
        assert all(map(alive, pids))
        os.kill(
            pids[1], signal.SIGSTOP
        )  # it cannot notice that its pipe closes, and holds those of the others
        parent.kill()
        parent.join()
        deadline = time.monotonic() + 5
        while any(map(alive, pids)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [pid for pid in pids if alive(pid)] == []
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Failing(CountingEnv):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._turn_the_motor()

    def _turn_the_motor(self) -> Any:
        raise RuntimeError("motor burnt")


@pytest.mark.parametrize("backend", ["async", "sync"])
def test_a_fault_in_a_worker_brings_its_traceback(backend: str) -> None:
    config = TrainConfig(algo="ppo", env_id="Test", env_backend=backend)
    stepper = VectorStepper(make_vector_env(config, 2, factory=Failing))
    stepper.reset()
    with pytest.raises(EnvironmentFault, match=r"environment 0 .*motor burnt") as caught:
        stepper.step(np.zeros(2, np.int64))
    stepper.close()
    told = caught.value.worker_traceback
    if backend == "sync":
        assert told is None
        return
    assert told is not None
    assert "_turn_the_motor" in told
    assert "test_workers.py" in told
    assert "RuntimeError: motor burnt" in told
