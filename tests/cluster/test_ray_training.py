"""A run whose groups are on a Ray cluster is the run of one process, to the byte, whatever happens to the cluster."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rl_training import PPO
from rl_training.core.errors import EnvironmentFault, RunFault, UserError
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.engines import ray as ray_engine
from rl_training.runtime.engines import ray_site
from rl_training.runtime.engines.ray import RayCrew
from rl_training.runtime.ray_cluster import ray_cluster
from support.callbacks import StopAtCollect
from support.clusters import marked, wait_until
from support.compared_runs import tensors
from support.engine_cases import assert_same_files, last, settings_of

pytestmark = [pytest.mark.cluster, pytest.mark.fault]
CPUS = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster that several runs use: it takes seconds to start."""
    with ray_cluster(None, num_cpus=CPUS) as found:
        yield found.ray


@pytest.fixture
def case(tiny: Callable[..., Any]) -> Callable[..., Any]:
    def build(name: str, **overrides: Any) -> Any:
        settings = settings_of(name, **overrides)
        return tiny(settings.pop("algo"), **settings)

    return build


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ppo, statistics", {}),
        ("ppo, statistics", {"env_groups": 3}),
        ("ppo, statistics", {"env_groups": 3, "lag": 1}),
        ("recurrent ppo, masks", {"env_groups": 2}),
        ("recurrent ppo, masks", {"env_groups": 2, "lag": 1}),
        ("dqn, priorities", {"env_groups": 2}),
        ("dqn, priorities", {"env_groups": 2, "lag": 1}),
        ("sac, gSDE", {"env_groups": 2}),
        ("sac, gSDE", {"env_groups": 2, "lag": 1}),
        ("pixels", {"env_groups": 2}),
        ("pixels", {"env_groups": 2, "lag": 1}),
    ],
    ids=str,
)
def test_a_run_is_the_same_on_a_cluster(cluster, case, rows, name, settings):
    here = train(case(name, **settings)).run_dir
    samplers = min(settings.get("env_groups", 1), 2)
    there = train(case(name, **settings, engine="ray", num_samplers=samplers)).run_dir
    assert_same_files(here, there, rows)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_run_goes_on_elsewhere(cluster, case, rows, lag):
    there, here = {"engine": "ray", "num_samplers": 2}, {"engine": "local", "num_samplers": "auto"}
    settings = {"env_groups": 2, "lag": lag}
    whole = train(case("ppo, statistics", **settings)).run_dir
    for first, then in ((there, here), (here, there)):
        paused = train(case("ppo, statistics", **settings, **first), callbacks=[StopAtCollect(96)])
        assert paused.paused
        resume(paused.run_dir, settings=then)
        assert_same_files(whole, paused.run_dir, rows)


class Closes(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes a file when it is closed, as environments that record something do."""

    def __init__(self, folder: str) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.folder = Path(folder)

    def close(self) -> None:
        (self.folder / f"{os.getpid()}-{id(self)}").touch()
        super().close()


def test_environments_are_closed(cluster, tiny, tmp_path):
    folder = str(tmp_path)
    config = tiny("ppo", num_envs=4, env_groups=2, engine="ray", num_samplers=2)
    PPO(config, env=lambda: Closes(folder)).learn()
    elsewhere = [name for name in os.listdir(folder) if not name.startswith(f"{os.getpid()}-")]
    assert len([name for name in elsewhere if name[0].isdigit()]) == 4


CREWS: list[RayCrew] = []


@pytest.fixture
def crews(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember every crew that is hired."""
    build = RayCrew.__init__

    def remember(self: RayCrew, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        CREWS.append(self)

    monkeypatch.setattr(RayCrew, "__init__", remember)


class Disturbed(Callback):
    """Kills or stops an actor of the crew at some updates."""

    def __init__(self, how: signal.Signals | str, every: int) -> None:
        self.how, self.every, self.sent, self.updates = how, every, 0, 0

    def on_update(self, progress: Any, result: Any) -> None:
        self.updates += 1
        if self.updates % self.every:
            return
        crew = CREWS[-1]
        handle = crew._hosts[self.sent % len(crew._hosts)]
        if not handle.process:
            return
        if isinstance(self.how, signal.Signals):
            os.kill(handle.process, self.how)
        else:
            crew._ray.kill(handle.actor, no_restart=True)
        self.sent += 1


@pytest.mark.parametrize(
    ("how", "lag", "every"),
    [(signal.SIGKILL, 0, 2), (signal.SIGKILL, 1, 2), (signal.SIGSTOP, 1, 4), ("ray.kill", 0, 3)],
    ids=str,
)
def test_lost_actors_change_nothing(cluster, case, rows, crews, how, lag, every):
    settings = {"env_groups": 3, "lag": lag, "total_timesteps": 480}
    here = train(case("ppo, statistics", **settings)).run_dir
    disturbed = Disturbed(how, every)
    config = case("ppo, statistics", **settings, engine="ray", num_samplers=2, env_timeout=4.0)
    reason = r"did not answer for 4 s" if how is signal.SIGSTOP else "died"
    with pytest.warns(UserWarning, match=rf"sampler \d \(groups? .*\) on node '.*' {reason}"):
        there = train(config, callbacks=[disturbed]).run_dir
    assert disturbed.sent >= 2 or how is signal.SIGSTOP
    assert_same_files(here, there, rows)
    assert rows(there / "metrics.jsonl")[-1]["time/sampler_restarts"] >= 1


def test_the_samplers_of_a_lost_node_are_replaced_on_another(tmp_path, two_nodes, launcher, tiny, rows):
    config = tiny(
        "ppo", env_id="CartPole-v1", num_envs=4, env_groups=2, lag=1, total_timesteps=60_000, log_every_timesteps=2_000
    )  # fmt: skip
    here = train(config).run_dir
    file = tmp_path / "there.yaml"
    there = tmp_path / "there"
    file.write_text(config.with_overrides(output_dir=str(there)).to_yaml())
    words = ("--engine", "ray", "--ray-address", two_nodes.address, "--ray-resources", "{CPU: 0.5}")
    command = launcher("train", "--config", file, *words)
    (metrics,) = wait_until(lambda: list(there.glob("*/metrics.jsonl")))
    wait_until(lambda: metrics.read_text(encoding="utf-8").count("\n") >= 3)
    os.kill(two_nodes.raylet, signal.SIGKILL)
    code, _, err = command.end(400)
    assert code == 0, err
    assert "was lost with its node" in err or "died" in err
    assert_same_files(here, metrics.parent, rows)
    assert rows(metrics)[-1]["time/sampler_restarts"] >= 1


def test_errors_of_hosts_are_those_of_the_environment(cluster, tiny):
    config = tiny("ppo", env_id="tiny_envs:Faulty-v0", engine="ray", env_groups=2)
    with pytest.raises(EnvironmentFault, match=r"environment \d \(Faulty-v0\)"):
        train(config)


def test_environments_of_a_lambda_are_sent(cluster, tiny):
    models = []
    for engine in ("local", "ray"):
        config = tiny("ppo", num_envs=4, engine=engine, env_groups=2)
        env: Any = lambda: gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1"), 7)  # noqa: E731
        models.append(tensors(last(PPO(config, env=env).learn().run_dir)))
    assert models[0] == models[1]


def test_an_environment_that_stops_is_replaced_by_a_new_host(cluster, tiny):
    """A step that never ends is noticed, although the process of the actor lives."""
    here = os.getpid()

    class Endless(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            while os.getpid() != here:
                pass
            return super().step(action)

    config = tiny("ppo", engine="ray", env_timeout=3.0, max_sampler_restarts=1)
    with (
        pytest.raises(RunFault, match=r"did not answer for 3 s, and max_sampler_restarts is 1"),
        pytest.warns(),
    ):
        PPO(config, env=lambda: Endless(gymnasium.make("CartPole-v1"))).learn()


def test_a_free_lag_learns_from_the_newest_parameters(cluster, case, rows):
    run = train(case("ppo, statistics", env_groups=2, lag="free", engine="ray", total_timesteps=960)).run_dir
    assert max(row["rollout/policy_lag_max"] for row in rows(run / "metrics.jsonl")) <= 4


def test_other_versions_on_a_node_are_warned_of_once(cluster, case, monkeypatch):
    build = RayCrew.__init__

    def elsewhere(self: RayCrew, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        self._here = self._here | {"torch": "0.1"}

    monkeypatch.setattr(RayCrew, "__init__", elsewhere)
    with pytest.warns(UserWarning, match=r"has torch .* instead of 0\.1; a run is the same") as told:
        train(case("ppo, statistics", env_groups=2, engine="ray", num_samplers=2))
    assert len([each for each in told if "instead of 0.1" in str(each.message)]) == 1


def test_auto_is_one_sampler_per_group_at_most_the_cpus(cluster, case, crews):
    for groups, samplers in ((2, 2), (4, CPUS)):
        train(case("ppo, statistics", env_groups=groups, engine="ray", ray_placement="pack"))
        assert len(CREWS[-1].groups) == samplers


def test_too_few_resources_are_one_error(cluster, case, monkeypatch, tmp_path):
    monkeypatch.setattr(ray_site, "SECONDS_FOR_ROOM", 2.0)
    for settings, text in (
        (
            {"env_groups": 4, "num_samplers": 4},
            r"num_samplers 4 needs \{CPU: 1\} for each, its nodes have \{CPU: 3\}",
        ),
        (
            {"ray_resources": {"GPU": 1}},
            r"num_samplers 1 needs \{CPU: 1, GPU: 1\} for each, .*\{CPU: 3, GPU: 0\}",
        ),
        ({"ray_resources": {"GPU": 1.5}}, "ray_resources is"),
    ):
        with pytest.raises(UserError, match=text):
            train(case("ppo, statistics", engine="ray", **settings))
    assert not list((tmp_path / "runs").glob("*")), "bad input leaves no folder"
    train(case("ppo, statistics", engine="ray"))  # nothing is reserved any more


def test_a_replacement_without_room_ends_the_run(cluster, case, crews, monkeypatch):
    """The last checkpoint is intact, and the message says what is missing."""
    monkeypatch.setattr(ray_engine, "SECONDS_TO_START", 5.0)
    options = ray_site.RaySite.options
    given: list[int] = []

    def second_needs_more(self: Any, host: int) -> dict[str, Any]:
        given.append(host)
        found = options(self, host)
        return found | {"num_cpus": 99, "scheduling_strategy": "SPREAD"} if len(given) > 1 else found

    monkeypatch.setattr(ray_site.RaySite, "options", second_needs_more)
    config = case("ppo, statistics", engine="ray", total_timesteps=960)
    with (
        pytest.raises(RunFault, match=r"did not start .* within 5 s: num_samplers 1"),
        pytest.warns(match="died"),
    ):
        train(config, callbacks=[Disturbed(signal.SIGKILL, 2)])


def long_run(folder: Path, tiny: Callable[..., Any], **settings: Any) -> Path:
    config = tiny(
        "ppo", env_id="CartPole-v1", num_envs=4, env_groups=2, lag=1, total_timesteps=10_000_000, engine="ray",
        log_every_timesteps=500,
    ).with_overrides(**{"output_dir": str(folder / "D")} | settings)  # fmt: skip
    file = folder / "long.yaml"
    file.write_text(config.to_yaml())
    return file


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_run(tmp_path, tiny, launcher, number):
    command = launcher("train", "--config", long_run(tmp_path, tiny))
    wait_until(lambda: list(tmp_path.glob("D/*/metrics.jsonl")))
    assert any("raylet" in each for each in marked(command.mark).values())
    if number is signal.SIGINT:
        os.killpg(command.process.pid, number)  # as a terminal does
    else:
        os.kill(command.process.pid, number)
    code, _, err = command.end(120)
    if number is signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:
        assert code == 128 + number, err
        assert len(list(tmp_path.glob("D/*/checkpoints/last"))) == 1
        assert "Traceback" not in err


def test_nothing_is_left_after_success_and_after_failure(tmp_path, tiny, launcher):
    file = long_run(tmp_path, tiny, total_timesteps=256)
    code, _, err = launcher("train", "--config", file).end(200)
    assert (code, err) == (0, "")
    file = long_run(tmp_path, tiny, env_id="tiny_envs:Faulty-v0", output_dir=str(tmp_path / "E"))
    code, _, err = launcher("train", "--config", file).end(200)
    assert code == 1
    assert "Faulty-v0" in err
    code, _, err = launcher("train", "--config", file, "--ray-resources", "{GPU: 1}").end(200)
    assert code == 2
    assert err.startswith(
        "error: the Ray cluster has too few resources: num_samplers 2 needs {CPU: 1, GPU: 1}"
    ), err


def test_a_cluster_that_stops_ends_the_run(tmp_path, tiny, launcher):
    command = launcher("train", "--config", long_run(tmp_path, tiny))
    wait_until(lambda: list(tmp_path.glob("D/*/metrics.jsonl")))
    (raylet,) = [pid for pid, text in marked(command.mark).items() if "raylet/raylet" in text.split(" ")[0]]
    os.kill(raylet, signal.SIGKILL)
    code, _, err = command.end(200)
    assert code == 1, err
    assert np.all(["Traceback" not in line for line in err.splitlines()]), err
