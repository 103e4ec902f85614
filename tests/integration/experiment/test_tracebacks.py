"""Whoever asks for the traceback of a fault reads it once: no exception is its own cause, nor a copy of it."""

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_training.core.errors import ConfigError, EnvironmentFault, RunFault, UserError
from rl_training.experiment.checkpoints import snapshot
from rl_training.experiment.checkpoints.format import read_checkpoint
from rl_training.experiment.loading import load_agent
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import Callback
from support.callbacks import StopAtCollect

pytestmark = pytest.mark.fault


def causes(error: BaseException) -> list[BaseException]:
    """Return an exception and all that a traceback would show above it; fails where it would go in circles."""
    found: list[BaseException] = []
    link: BaseException | None = error
    while link is not None:
        assert link not in found, f"{link!r} is its own cause"
        found.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return found


def assert_told_once(error: BaseException) -> None:
    chain = causes(error)
    for caused, cause in itertools.pairwise(chain):
        ours = type(caused).__module__.startswith("rl_training")
        same = (
            ours and type(caused) is type(cause) and (str(cause) in str(caused) or str(caused) in str(cause))
        )
        assert not same, f"{caused!r} has a copy of itself as its cause"


def env(mode: str, **more: Any) -> dict[str, Any]:
    kwargs = {"mode": mode, "fail_after": 20}
    return {"env_id": "tiny_envs:Faulty-v0", "env_kwargs": kwargs, "total_timesteps": 320} | more


FAULTY_ENVIRONMENTS = [
    env("raise"),
    env("raise", env_backend="async"),
    env("raise_in_reset"),
    env("die", env_backend="async"),
    env("nan_reward"),
    env("nan_observation", env_backend="async"),
    env("raise", max_restarts=1),
]


@pytest.mark.parametrize("settings", FAULTY_ENVIRONMENTS)
@pytest.mark.filterwarnings("ignore:.*restart 1 of 1")
def test_a_faulty_environment(tiny, settings):
    with pytest.raises(EnvironmentFault, match="last good checkpoint") as fault:
        train(tiny(checkpoint_every_timesteps=16, num_steps=8, **settings))
    assert_told_once(fault.value)


def test_an_interrupt(tiny):
    with pytest.raises(KeyboardInterrupt, match="last good checkpoint") as stop:
        train(tiny(**env("interrupt", rebuild_envs="off", use_action_masks="off")))
    assert_told_once(stop.value)


def test_a_full_disk(tiny, monkeypatch):
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(snapshot, "write_pointer", full)
    with pytest.raises(RunFault, match="checkpoint step_0 could not be written: No space left") as fault:
        train(tiny())
    assert_told_once(fault.value)
    assert [type(link) for link in causes(fault.value)] == [RunFault, OSError]


class Raise(Callback):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_collect(self, progress: Any) -> None:
        raise self.error


@pytest.mark.parametrize("error", [ValueError("mine"), MemoryError(), RunFault("mine"), UserError("mine")])
def test_what_a_callback_raises(tiny, error):
    with pytest.raises(type(error) if not isinstance(error, MemoryError) else RunFault) as fault:
        train(tiny(), callbacks=[Raise(error)])
    assert_told_once(fault.value)


@pytest.mark.parametrize(
    "overrides", [{"env_id": "CartPol-v1"}, {"env_id": "nowhere:X-v0"}, {"env_kwargs": {"lenth": 4}}]
)
def test_bad_input(tiny, overrides):
    with pytest.raises(UserError) as refused:
        train(tiny(**overrides))
    assert_told_once(refused.value)


def test_bad_settings(tiny):
    with pytest.raises(ConfigError) as refused:
        tiny(gamma=2)
    assert_told_once(refused.value)


def cut(path: Path) -> None:
    os.truncate(path, 20)


@pytest.mark.parametrize("use", [read_checkpoint, load_agent, lambda path: resume(path.parents[1])])
@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors"])
@pytest.mark.filterwarnings("ignore:.*falling back to")
def test_damaged_checkpoints(tiny, use: Callable[[Path], Any], name):
    run_dir = train(tiny(total_timesteps=128), callbacks=[StopAtCollect(64)]).run_dir
    steps = sorted((run_dir / "checkpoints").glob("step_*"))
    for step in steps:
        cut(step / name)
    with pytest.raises(UserError) as refused:
        use(steps[-1])
    assert_told_once(refused.value)


def test_the_walk_sees_circles_and_copies():
    circle = ValueError("a")
    other = KeyError("b")
    circle.__cause__, other.__cause__ = other, circle
    with pytest.raises(AssertionError, match="is its own cause"):
        causes(circle)
    copy = RunFault("a (last good checkpoint)")
    copy.__cause__ = RunFault("a")
    with pytest.raises(AssertionError, match="a copy of itself"):
        assert_told_once(copy)
