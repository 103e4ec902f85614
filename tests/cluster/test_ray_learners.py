"""Shards that actors of a Ray cluster compute give the run of one process, to the byte, whatever happens to them."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_training.core.errors import UserError
from rl_training.experiment.learner_ranks import ray_ranks
from rl_training.experiment.learner_ranks.gloo import GlooExchange
from rl_training.experiment.learner_ranks.ray_ranks import RayRankedLearner
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.engines import ray_site
from support.callbacks import Meddler, StopAtCollect
from support.clusters import wait_until
from support.engine_cases import assert_same_files, settings_of

pytestmark = [pytest.mark.cluster, pytest.mark.fault]
SHARDED: dict[str, Any] = {"learner_shards": 2}


@pytest.fixture
def case(tiny: Callable[..., Any]) -> Callable[..., Any]:
    def build(name: str, **overrides: Any) -> Any:
        settings = settings_of(name, **SHARDED, **overrides)
        return tiny(settings.pop("algo"), **settings)

    return build


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[RayRankedLearner]:
    """Collect the learners with ranks that a test starts; their updates wait for all ranks."""
    found: list[RayRankedLearner] = []
    original = RayRankedLearner.__init__

    def keep(self: RayRankedLearner, *arguments: Any) -> None:
        original(self, *arguments)
        found.append(self)

    monkeypatch.setattr(RayRankedLearner, "__init__", keep)
    monkeypatch.setattr(ray_ranks, "START_WAIT", 100.0)
    return found


class Watcher(Callback):
    """Notes the processes of the other ranks."""

    def __init__(self, started: list[RayRankedLearner]) -> None:
        self.started, self.processes = started, set[int]()

    def on_update(self, progress: Any, result: Any) -> None:
        group = self.started[-1].group
        self.processes |= {handle.process for handle in group.handles} if group is not None else set()


def assert_gone(processes: set[int]) -> None:
    assert processes
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes), 20)


@pytest.mark.parametrize("name", ["ppo, statistics", "sac, gSDE", "dqn, priorities"])
def test_learners_on_two_nodes_are_the_same_run(two_nodes, case, rows, started, name):
    here = train(case(name), callbacks=[Meddler()]).run_dir
    assert not started
    watcher = Watcher(started)
    config = case(name, engine="ray", ray_address=two_nodes.address, num_learners=2)
    there = train(config, callbacks=[watcher, Meddler()]).run_dir
    (ranked,) = started
    assert ranked.helped == ranked.book.number > 1
    assert not ranked.losses.warned
    assert watcher.processes.isdisjoint({0, os.getpid()})
    assert_same_files(here, there, rows)
    assert_gone(watcher.processes)


class Hurt(GlooExchange):
    """Sends a signal to the other rank in the middle of an update, and notes how long that update waits."""

    how = signal.SIGKILL
    started: list[RayRankedLearner]
    sent: list[int]
    seconds: list[float]
    calls = 0

    def complete(self, width: int, dtype: Any, fill: Any) -> Any:
        type(self).calls += 1
        if self._problem is None or type(self).calls not in (3, 12):
            return super().complete(width, dtype, fill)
        group = self.started[-1].group
        assert group is not None
        assert group.handles[0].calls, "it takes part in this update"
        os.kill(group.handles[0].process, self.how)
        self.sent.append(group.handles[0].process)
        began = time.monotonic()
        found = super().complete(width, dtype, fill)
        self.seconds.append(time.monotonic() - began)
        return found


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=str)
def test_a_rank_that_is_killed_or_stopped_changes_nothing_and_is_replaced(
    two_nodes, case, rows, started, monkeypatch, how
):
    settings = {"total_timesteps": 384}
    here = train(case("ppo, statistics", **settings)).run_dir
    monkeypatch.setattr(ray_ranks, "GlooExchange", Hurt)
    monkeypatch.setattr(ray_ranks, "SILENCE", 3.0)
    for name, value in {"how": how, "started": started, "sent": [], "seconds": [], "calls": 0}.items():
        monkeypatch.setattr(Hurt, name, value, raising=False)
    config = case("ppo, statistics", **settings, engine="ray", ray_address=two_nodes.address, num_learners=2)
    why = "did not answer for 3 s" if how is signal.SIGSTOP else r"died \(ActorDiedError\)|was lost"
    with pytest.warns(
        UserWarning, match=rf"learner process 1 on node '.+' ({why}).*; it is started again"
    ) as told:
        there = train(config).run_dir
    assert len([each for each in told if "learner process" in str(each.message)]) == 1
    assert len(set(Hurt.sent)) == 2, "the second signal went to the process that replaced the first"
    assert max(Hurt.seconds) < (3.0 + 3.0 if how is signal.SIGSTOP else 3.0), Hurt.seconds
    (ranked,) = started
    assert ranked.losses.restarts == config.max_sampler_restarts - 2
    assert ranked.helped == ranked.book.number - 2
    assert_same_files(here, there, rows)
    assert_gone(set(Hurt.sent))


def test_after_an_error_no_actor_is_left(two_nodes, case, started):
    watcher = Watcher(started)
    config = case("ppo, statistics", engine="ray", ray_address=two_nodes.address)
    with pytest.raises(ZeroDivisionError):
        train(config, callbacks=[watcher, StopAtCollect(128, ZeroDivisionError)])
    assert_gone(watcher.processes)


def test_auto_is_one_learner_per_shard_at_most_the_free_cpus(two_nodes, case, rows, started):
    here = train(case("ppo, statistics", env_groups=2)).run_dir
    there = {"engine": "ray", "ray_address": two_nodes.address, "env_groups": 2}
    for settings, actors in (
        ({"num_samplers": 2}, []),  # the samplers have both CPUs
        ({"num_samplers": 1}, [1]),
        ({"num_samplers": 2, "ray_resources": {"CPU": 0.5}}, [1]),
    ):
        started.clear()
        run = train(case("ppo, statistics", **there, **settings)).run_dir
        assert [each._site.num_hosts for each in started] == actors, settings
        assert all(each.helped > 1 for each in started)
        assert_same_files(here, run, rows)


def test_too_few_resources_are_one_error(two_nodes, case, monkeypatch, tmp_path):
    monkeypatch.setattr(ray_site, "SECONDS_FOR_ROOM", 2.0)
    config = case(
        "ppo, statistics", env_groups=2, num_samplers=2, num_learners=2, engine="ray", ray_address=two_nodes.address
    )  # fmt: skip
    text = r"num_learners 2 needs \{CPU: 1\} for each but 1, its nodes have .* use fewer num_learners"
    with pytest.raises(UserError, match=text):
        train(config)
    assert not list((tmp_path / "runs").glob("*")), "bad input leaves no folder"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_actor_outlives_the_run_on_a_cluster_that_stays(tmp_path, two_nodes, tiny, launcher, number):
    config = tiny(
        "ppo", env_id="CartPole-v1", num_envs=4, total_timesteps=10_000_000, engine="ray", **SHARDED,
        ray_address=two_nodes.address, log_every_timesteps=500,
    ).with_overrides(output_dir=str(tmp_path / "D"))  # fmt: skip
    (tmp_path / "long.yaml").write_text(config.to_yaml())
    command = launcher("train", "--config", tmp_path / "long.yaml")
    (metrics,) = wait_until(lambda: list(tmp_path.glob("D/*/metrics.jsonl")))
    (learner,) = wait_until(lambda: actors("LearnerActor.update"), 120)
    wait_until(lambda: metrics.read_text(encoding="utf-8").count("\n") >= 3)
    os.kill(learner, signal.SIGSTOP)  # it cannot notice anything itself
    os.kill(command.process.pid, number)
    code, _, err = command.end(120)
    assert code == (-number if number is signal.SIGKILL else 128 + number), err
    assert "Traceback" not in err
    wait_until(lambda: not Path(f"/proc/{learner}").exists(), 60)
    wait_until(lambda: not actors("LearnerActor") and not actors("HostActor"), 60)


def actors(name: str) -> list[int]:
    """Return the processes of this machine that Ray has titled after an actor and what it does."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "cmdline").read_bytes().startswith(f"ray::{name}".encode()):
                found.append(int(folder.name))
    return found
