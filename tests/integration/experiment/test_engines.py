"""A run is the same to the byte wherever its groups of environments are, and whatever happens to their processes."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training import PPO
from rl_training.core.errors import EnvironmentFault, RunFault, UserError
from rl_training.core.messages import decode
from rl_training.core.types import Progress
from rl_training.data.sources import RolloutSource
from rl_training.experiment import hosting
from rl_training.experiment.agent_copies import copied_state
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from rl_training.policies.explorers import EpsilonGreedyExplorer
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.engines import process
from rl_training.runtime.engines.fork_server import ForkServer
from rl_training.runtime.engines.local import LocalCrew
from rl_training.runtime.engines.process import ProcessCrew
from rl_training.runtime.groups import Ticket
from rl_training.runtime.steps import StepContext
from support.callbacks import StopAtCollect
from support.compared_runs import tensors
from support.engine_cases import CASES, assert_same_files, last, settings_of


class Server(ForkServer):
    """A fork server that several runs use; it is closed at the end of the module."""

    def close(self) -> None:
        """A run has ended."""

    def really_close(self) -> None:
        super().close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    found = Server(hosting.__name__, "serve")
    yield found
    found.really_close()


@pytest.fixture(autouse=True)
def _shared_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "new_fork_server", lambda: server)


@pytest.fixture
def case(tiny: Callable[..., Any]) -> Callable[..., Any]:
    """Return the config of a case with four environments; keywords override settings."""

    def build(name: str, **overrides: Any) -> Any:
        settings = settings_of(name, **overrides)
        return tiny(settings.pop("algo"), **settings)

    return build


@pytest.mark.parametrize("name", CASES)
def test_one_group_without_lag_in_another_process_is_the_plain_run(case, rows, name):
    plain = train(case(name)).run_dir
    other = train(case(name, engine="process")).run_dir
    assert_same_files(plain, other, rows)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_groups_are_the_same_in_any_number_of_processes(case, rows, name, lag):
    groups = {"env_groups": 3, "lag": lag}
    here = train(case(name, **groups)).run_dir
    for samplers in (1, 2, 3):
        there = train(case(name, **groups, engine="process", num_samplers=samplers)).run_dir
        assert_same_files(here, there, rows)


def test_groups_and_lag_are_other_experiments(case):
    runs = [
        train(case("ppo, statistics", **settings)).run_dir
        for settings in ({}, {"env_groups": 2}, {"lag": 1}, {"env_groups": 2, "lag": 1})
    ]
    models = {(last(run) / "model.safetensors").read_bytes() for run in runs}
    assert len(models) == 4


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("name", ["ppo, statistics", "recurrent ppo, masks", "dqn, priorities", "sac, gSDE"])
def test_a_run_goes_on_elsewhere(case, rows, name, lag):
    """Saved with two samplers, resumed with none, and the other way round: the bytes of a run in one go."""
    there = {"engine": "process", "num_samplers": 2}
    settings = {"env_groups": 2, "lag": lag}
    whole = train(case(name, **settings)).run_dir
    half = case(name, **settings).total_timesteps // 2
    for first, then in ((there, {"engine": "local", "num_samplers": "auto"}), ({}, there)):
        paused = train(case(name, **settings, **first), callbacks=[StopAtCollect(half)])
        assert paused.paused
        resume(paused.run_dir, settings=then)
        assert_same_files(whole, paused.run_dir, rows)


def test_an_extended_run_with_lag_is_the_longer_one(case, rows):
    """The last ticket of a run is not collected, but it is saved: a longer run begins with it."""
    long, short = case("ppo, statistics", lag=1), case("ppo, statistics", lag=1, total_timesteps=128)
    whole, extended = train(long).run_dir, train(short).run_dir
    resume(extended, total_timesteps=long.total_timesteps)
    assert tensors(last(whole)) == tensors(last(extended))


def test_an_extended_run_with_lag_has_the_new_budget(case):
    """Schedules of the first rollout after it, such as DQN's exploration, follow the longer run."""
    seen: list[int] = []
    act = EpsilonGreedyExplorer.act

    def watched(self: Any, obs: Any, acted: Any, progress: Any) -> None:
        seen.append(progress.total_timesteps)
        act(self, obs, acted, progress)

    short = train(case("dqn, priorities", lag=1, total_timesteps=48)).run_dir
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(EpsilonGreedyExplorer, "act", watched)
        resume(short, total_timesteps=96)
    assert set(seen) == {96}


def test_native_environments_resume_alike_in_every_process(case, rows):
    """Their episodes begin anew, but the explorer and its random stream go on."""
    settings = {"env_id": "CartPole-v1", "env_backend": "native", "env_wrappers": ()}
    runs = []
    for engine in ({}, {"engine": "process"}):
        half = train(case("ppo, statistics", **settings, **engine), callbacks=[StopAtCollect(96)]).run_dir
        resume(half)
        runs.append(half)
    assert_same_files(*runs, rows)


class ReusesInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Changes one array in place, which is in the info of every step."""

    def reset(self, **arguments: Any) -> Any:
        self.steps = np.zeros(1)
        return super().reset(**arguments)

    def step(self, action: Any) -> Any:
        self.steps += 1
        return *super().step(action)[:4], {"steps": self.steps}


def test_callbacks_see_the_infos_of_their_step(tiny):
    class Watcher(Callback):
        def __init__(self) -> None:
            self.seen: list[float] = []

        def on_step(self, step: StepContext) -> None:
            self.seen += [float(info["steps"][0]) for info in step.infos]

    found = []
    for engine in ("local", "process"):
        found.append(Watcher())
        config = tiny("ppo", num_envs=2, engine=engine, env_id="CartPole-v1")
        train(config, factory=lambda: ReusesInfo(gymnasium.make("CartPole-v1")), callbacks=[found[-1]])
    assert found[0].seen == found[1].seen
    assert len(set(found[0].seen)) > 5


def test_infos_that_cannot_be_copied_are_one_error(tiny):
    lock = threading.Lock()

    class Locked(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], {"lock": lock}

    class Watches(Callback):
        def on_step(self, step: StepContext) -> None: ...

    config = tiny("ppo", num_envs=4, env_groups=2)
    with pytest.raises(
        UserError, match=r"cannot be copied .*; remove it in a wrapper, or use engine 'local'"
    ):
        PPO(config, env=lambda: Locked(gymnasium.make("CartPole-v1"))).learn(callbacks=[Watches()])


class FakeProcess:
    """A process that answers when it is told to."""

    def __init__(self) -> None:
        ours, self.theirs = multiprocessing.Pipe()
        self.connection, self.pid = ours, os.getpid()


def test_messages_wait_while_much_is_unanswered():
    """Both sides would wait for each other if they filled both directions of a connection."""
    fake = FakeProcess()
    memory = os.memfd_create("test")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(process, "send_handle", lambda *_: None)
        patched.setattr(process, "wait_at_most", lambda *_: None)
        host = process.HostProcess(fake, memory, 1.0)
    for number in range(100):
        host.send(("begin", number, b"x" * 10_000))
    assert host.waiting == 100
    received = []
    while fake.theirs.poll():
        received.append(decode(fake.theirs.recv_bytes())[1])
    assert received == [0, 1, 2], "three of them are less than 32 KiB"
    for number in range(100):
        host.has_answered()
        while fake.theirs.poll():
            received.append(decode(fake.theirs.recv_bytes())[1])
        assert len(received) == min(number + 4, 100)
    assert received == list(range(100))
    assert host.waiting == 0
    os.close(memory)


def test_a_crew_that_cannot_be_sent_leaves_no_descriptor(tiny):
    lock = threading.Lock()

    def build() -> Any:
        with lock:
            return gymnasium.make("CartPole-v1")

    config = tiny("ppo", engine="process")
    for attempt in range(3):
        if attempt == 1:  # the first one may load modules
            before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(UserError, match="cannot be sent to other processes"):
            PPO(config, env=build).learn()
    assert len(os.listdir("/proc/self/fd")) == before
    assert not Path(config.output_dir).exists(), "bad input leaves no run folder"


def test_a_fork_that_fails_leaves_the_other_processes_alone():
    server = ForkServer("tiny_forks", "serve")
    try:
        first = server.fork()
        with pytest.raises(
            RunFault, match=r"no process can be started: .*; use fewer num_samplers, or raise"
        ):
            server.fork()
        assert server.process.poll() is None
        assert first.connection.recv() == "alive"
        first.connection.send("still there")
        assert first.connection.recv() == "still there"
    finally:
        server.close()


def test_a_fault_of_the_next_rollout_waits_for_its_turn():
    """With lag 1 it is collected before this one is learned from, which must not be lost with it."""

    class FailsSecond:
        calls = 0

        def load(self, version: int, packed: Any) -> None: ...

        def collect(self, group: int, ticket: Any) -> Any:
            self.calls += 1
            if self.calls == 2:
                raise EnvironmentFault("broken")
            return "rollout"

    crew = LocalCrew(lambda groups, columns: FailsSecond(), 1, lambda group: {})  # type: ignore[arg-type,return-value]
    crew.publish(0, np.zeros(1, np.uint8))
    for number in range(2):
        crew.submit(0, Ticket(number, 0, 8, Progress()))
    assert crew.receive(0.0) == "rollout"
    with pytest.raises(EnvironmentFault, match="broken"):
        crew.receive(0.0)


def test_a_fork_server_that_is_killed_while_it_starts_is_replaced_again(monkeypatch):
    starts, start = [], ForkServer._start

    def killed_at_first(self: ForkServer) -> None:
        start(self)
        starts.append(self.process)
        if len(starts) <= 3:
            self.process.kill()

    monkeypatch.setattr(ForkServer, "_start", killed_at_first)
    server = ForkServer("tiny_forks", "serve")
    try:
        assert server.fork().connection.recv() == "alive"
        assert [process.poll() for process in starts] == [-signal.SIGKILL] * 3 + [None]
    finally:
        server.close()


def test_a_fork_server_that_is_always_killed_is_an_error(monkeypatch):
    start = ForkServer._start

    def killed(self: ForkServer) -> None:
        start(self)
        self.process.kill()

    monkeypatch.setattr(ForkServer, "_start", killed)
    server = ForkServer("tiny_forks", "serve")
    try:
        with pytest.raises(RunFault, match="the fork server ended with exit code -9"):
            server.fork()
    finally:
        server.close()


class Disturbed(Callback):
    """Sends signals to processes of the crew at updates."""

    def __init__(self, number: signal.Signals, every: int = 3) -> None:
        self.number, self.every, self.sent, self.updates = number, every, 0, 0

    def on_start(self, context: Any) -> None:
        self.crew = ALIVE[-1]

    def on_update(self, progress: Any, result: Any) -> None:
        self.updates += 1
        if self.updates % self.every == 0:
            process = self.crew._hosts[self.sent % len(self.crew._hosts)]
            if process is not None:
                os.kill(process.pid, self.number)
                self.sent += 1


ALIVE: list[ProcessCrew] = []


@pytest.fixture
def crews(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember every crew that is hired."""
    build = ProcessCrew.__init__

    def remember(self: ProcessCrew, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        ALIVE.append(self)

    monkeypatch.setattr(ProcessCrew, "__init__", remember)


@pytest.mark.fault
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("name", ["ppo, statistics", "recurrent ppo, masks", "dqn, priorities"])
def test_lost_processes_change_nothing(case, rows, crews, name, lag, number):
    settings = {"env_groups": 3, "lag": lag, "total_timesteps": 480}
    here = train(case(name, **settings)).run_dir
    disturbed = Disturbed(number, every=2 if number is signal.SIGKILL else 4)
    config = case(name, **settings, engine="process", num_samplers=2, env_timeout=0.7)
    with pytest.warns(UserWarning, match=r"sampler \d \(groups? .*\) (died|did not answer for 0\.7 s)"):
        there = train(config, callbacks=[disturbed]).run_dir
    assert disturbed.sent >= 2
    assert_same_files(here, there, rows)
    assert rows(there / "metrics.jsonl")[-1]["time/sampler_restarts"] >= 1


@pytest.mark.fault
def test_a_lost_fork_server_is_replaced(case, rows, crews, monkeypatch):
    servers: list[ForkServer] = []

    def new_server() -> ForkServer:
        servers.append(ForkServer(hosting.__name__, "serve"))
        return servers[-1]

    monkeypatch.setattr(hosting, "new_fork_server", new_server)

    class KillServer(Callback):
        updates = 0

        def on_update(self, progress: Any, result: Any) -> None:
            self.updates += 1
            if self.updates == 3:
                servers[-1].process.kill()

    settings = {"env_groups": 2, "total_timesteps": 480}
    here = train(case("ppo, statistics", **settings)).run_dir
    with pytest.warns(UserWarning, match="died"):
        there = train(
            case("ppo, statistics", **settings, engine="process", num_samplers=2), callbacks=[KillServer()]
        ).run_dir
    assert_same_files(here, there, rows)


@pytest.mark.fault
def test_processes_that_die_at_once_end_the_run(case):
    here = os.getpid()

    class Deadly(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            if os.getpid() != here:  # the run itself tries the environment first
                os.kill(os.getpid(), signal.SIGKILL)
            return super().step(action)

    config = case("ppo, statistics", engine="process")
    with (
        pytest.raises(RunFault, match="times in a row without finishing a rollout"),
        pytest.warns(match="died"),
    ):
        PPO(config, env=lambda: Deadly(gymnasium.make("CartPole-v1"))).learn()


@pytest.mark.fault
def test_the_budget_of_restarts_is_respected(case, crews):
    config = case("ppo, statistics", engine="process", total_timesteps=960, max_sampler_restarts=1)
    with (
        pytest.raises(RunFault, match="max_sampler_restarts is 1; use a larger number"),
        pytest.warns(match="died"),
    ):
        train(config, callbacks=[Disturbed(signal.SIGKILL, every=2)])


class GlobalNoise(gymnasium.Env[Any, Any]):
    """Draws from the global generators, as careless environments do."""

    observation_space = spaces.Box(-9, 9, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.time = 0
        return np.random.randn(2).astype(np.float32).clip(-9, 9), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return np.random.randn(2).astype(np.float32).clip(-9, 9), 1.0, self.time == 5, False, {}


@pytest.mark.filterwarnings("ignore:environment")
@pytest.mark.parametrize("settings", [{}, {"env_groups": 2}, {"lag": 1}], ids=str)
def test_global_generators_belong_to_the_group(tiny, settings):
    config = tiny("ppo", num_envs=4, **settings)
    models = []
    for engine in ("local", "process"):
        model = PPO(config.with_overrides(engine=engine), env=GlobalNoise).learn()
        models.append(tensors(last(model.run_dir)))
    assert models[0] == models[1]


def test_environments_of_a_lambda_and_of_the_main_module_are_sent(tiny):
    config = tiny("ppo", num_envs=4, engine="process", env_groups=2)
    length = 5
    model = PPO(config, env=lambda: gymnasium.wrappers.TimeLimit(GlobalNoise(), length)).learn()
    assert model.evaluate(num_episodes=1)["mean_ep_length"] == 5


@pytest.mark.parametrize("lag", [0, 1])
def test_callbacks_see_the_steps_of_all_groups_in_order(case, lag):
    class Watcher(Callback):
        def __init__(self) -> None:
            self.steps: list[StepContext] = []

        def on_step(self, step: StepContext) -> None:
            self.steps.append(step)

    watchers = []
    for settings in ({}, {"engine": "process", "num_samplers": 2}):
        watchers.append(Watcher())
        train(case("ppo, statistics", env_groups=2, lag=lag, **settings), callbacks=[watchers[-1]])
    here, there = (watcher.steps for watcher in watchers)
    assert [step.timesteps for step in here] == [4 * (number + 1) for number in range(len(here))]
    assert len(here) == len(there) == 48
    for one, other in zip(here, there, strict=True):
        assert len(one.infos) == 4
        for name in ("observations", "actions", "rewards", "terminations", "next_observations", "valid"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


@pytest.mark.parametrize("lag", [0, 1])
def test_info_keywords_and_episodes_of_all_groups_are_merged(tiny, rows, lag):
    """The logged mean is that of the episodes of all groups: every environment reports its own number."""
    settings = {"num_envs": 4, "env_groups": 3, "lag": lag, "info_keywords": ("tenths:last", "ones:sum")}
    runs = [
        train(tiny("ppo", env_id="tiny_envs:Counting-v0", **settings, **engine)).run_dir
        for engine in ({}, {"engine": "process", "num_samplers": 2})
    ]
    assert_same_files(*runs, rows)
    found = [row for row in rows(runs[0] / "metrics.jsonl") if "info/tenths" in row]
    assert found
    for row in found:
        assert row["info/tenths"] == pytest.approx(row["rollout/ep_len_mean"] / 10)
        assert row["info/ones"] == row["rollout/ep_len_mean"]


@pytest.mark.fault
def test_more_threads_change_nothing_about_acting(tiny):
    """Hosts act with one thread, so the run's own process does as well, whatever `num_threads` gives to updates."""
    settings = {
        "env_id": "Pendulum-v1", "num_envs": 64, "num_steps": 8, "total_timesteps": 1024, "env_groups": 2,
        "hidden_sizes": (512, 512), "batch_size": 256, "update_epochs": 1, "num_threads": 2,
    }  # fmt: skip
    here, there = (train(tiny("ppo", **settings, engine=engine)).run_dir for engine in ("local", "process"))
    assert (last(here) / "model.safetensors").read_bytes() == (last(there) / "model.safetensors").read_bytes()


def test_an_agent_goes_on_with_other_rollouts(case, monkeypatch):
    """The ticket of a run with lag 1 is for rollouts of its own length."""
    full: list[bool] = []
    batches = RolloutSource.batches

    def checked(self: Any, *args: Any) -> Any:
        full.append(self.buffer.full)
        return batches(self, *args)

    monkeypatch.setattr(RolloutSource, "batches", checked)
    run = train(case("ppo, statistics", lag=1)).run_dir
    for num_steps in (8, 32):
        PPO.load(run, num_steps=num_steps).learn(256)
    assert all(full)


@pytest.mark.parametrize(
    ("before", "after"),
    [({"env_groups": 2}, {"env_groups": 1}), ({"lag": 1}, {"lag": 0}), ({}, {"env_groups": 2, "lag": 1})],
    ids=str,
)
def test_an_agent_goes_on_with_other_groups(case, before, after):
    first = train(case("ppo, statistics", **before)).run_dir
    model = PPO.load(first, **after)
    begun = model.agent.timesteps
    weights = copied_state(model.agent.state)["model"]
    model.learn(256)
    assert model.run_dir != first
    assert model.agent.timesteps >= begun + 256
    assert model.config.env_groups == after.get("env_groups", before.get("env_groups", 1))
    changed = [
        name
        for name, tensor in model.agent.state["model"].items()
        if isinstance(tensor, torch.Tensor) and not torch.equal(tensor, weights[name])
    ]
    assert changed, "it learns"


@pytest.mark.parametrize("settings", [{"num_envs": 2}, {}], ids=["fewer", "as many"])
@pytest.mark.parametrize("backend", ["sync", "native"])
def test_an_agent_goes_on_alike_with_every_engine(case, rows, settings, backend):
    """Also where its environments begin new episodes: the explorer continues its stream."""
    first = train(case("ppo, statistics", env_id="CartPole-v1", env_wrappers=(), env_backend=backend)).run_dir
    runs = [PPO.load(first, engine=engine, **settings).learn(128).run_dir for engine in ("local", "process")]
    assert_same_files(*runs, rows)


REGISTERED = """
import gymnasium, sys
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from rl_training import PPO

class Mine(CartPoleEnv):
    pass

class Doubled(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 2 * reward

class Around(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("Mine-v0"))

gymnasium.register("Mine-v0", entry_point=sys.argv[1] if len(sys.argv) > 1 else Mine, max_episode_steps=50)
gymnasium.register("Around-v0", entry_point=Around)
gymnasium.register("Broken-v0", entry_point="__main__:Missing")
if __name__ == "__main__":
    for engine in ("local", "process"):
        env_id = "Around-v0" if sys.argv[2:] == ["around"] else "Mine-v0"
        model = PPO(env_id, num_envs=4, env_groups=2, num_steps=8, batch_size=16, hidden_sizes=(8,), engine=engine,
                    total_timesteps=128, output_dir=engine, eval_every_timesteps=0,
                    env_wrappers=[Doubled] if sys.argv[2:] == ["wrapped"] else ())
        model.learn()
"""


@pytest.mark.parametrize(
    "entry_point",
    [(), ("__main__:Mine",), ("__main__:Mine", "wrapped"), ("__main__:Mine", "around")],
    ids=["class", "name", "wrapper", "inside another"],
)
def test_an_environment_that_only_the_script_registers(tmp_path, entry_point):
    (tmp_path / "script.py").write_text(REGISTERED)
    done = subprocess.run(
        [sys.executable, "script.py", *entry_point], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    here, there = (next((tmp_path / engine).iterdir()) for engine in ("local", "process"))
    assert (last(here) / "model.safetensors").read_bytes() == (last(there) / "model.safetensors").read_bytes()


class Simulated(gymnasium.Env[Any, Any]):
    """Needs a program that it starts through a shell, which then ends: the program becomes an orphan."""

    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
    program = "sleep 86397"

    def __init__(self) -> None:
        started = subprocess.run(
            f"{self.program} >/dev/null 2>&1 & echo $!", shell=True, capture_output=True, check=True
        )
        self.pid, self.steps = int(started.stdout), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        os.kill(self.pid, 0)  # an error if the program is gone
        self.steps += 1
        return np.full(2, self.steps / 10, np.float32), 1.0, self.steps == 9, False, {}


@pytest.mark.fault
def test_a_sampler_that_dies_takes_only_its_own_programs_along(tiny, crews):
    config = tiny("ppo", num_envs=4, env_groups=2, total_timesteps=480, engine="process", num_samplers=2)
    disturbed = Disturbed(signal.SIGKILL, 4)
    with pytest.warns(match="died"):
        train(config, factory=Simulated, callbacks=[disturbed])
    assert disturbed.sent > 1
    subprocess.run(
        ["pkill", "-f", f"^{Simulated.program}$"], check=False
    )  # those of the evaluation, in this process


class Outdated(Simulated):
    """Warns as a package does."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self, action: Any) -> Any:
        warnings.warn("use another method", FutureWarning, stacklevel=1)
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps > 9, False, {}


def test_warnings_of_environments_keep_their_category(tiny):
    config = tiny("ppo", num_envs=2, env_groups=2, total_timesteps=64, engine="process")
    with pytest.warns(FutureWarning, match="use another method") as told:
        train(config, factory=Outdated)
    assert {each.filename for each in told if each.category is FutureWarning} == {__file__}


def test_a_fault_of_an_environment_is_reported_as_usual(tiny):
    config = tiny("ppo", env_id="tiny_envs:Faulty-v0", engine="process", env_groups=2)
    with pytest.raises(EnvironmentFault, match=r"environment \d \(Faulty-v0\)"):
        train(config)


@pytest.mark.fault
def test_an_environment_that_cannot_be_built_is_bad_input(tiny):
    here = os.getpid()

    def build() -> Any:
        if os.getpid() != here:
            raise ValueError("not in this process")
        return GlobalNoise()

    config = tiny("ppo", num_envs=4, engine="process", env_groups=2)
    with pytest.raises(UserError, match="not in this process"):
        PPO(config, env=build).learn()


SCRIPT = """
import sys
from rl_training import PPO
PPO("CartPole-v1", seed=1, num_envs=4, engine="process", env_groups=2, num_samplers=2, lag={lag}, num_steps=32,
    batch_size=32, total_timesteps=10_000_000, output_dir=sys.argv[1]).learn(progress=False)
"""


@pytest.mark.fault
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_process_outlives_the_run(tmp_path, number):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(lag=1), str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 60
    while len(descendants(process.pid)) < 3 or not list(tmp_path.glob("*/metrics.jsonl")):
        assert time.monotonic() < deadline, process.stderr
        assert process.poll() is None
        time.sleep(0.05)
    children = descendants(process.pid)
    process.send_signal(number)
    process.wait(timeout=60)
    assert process.stderr is not None
    process.stderr.close()
    deadline = time.monotonic() + 10
    while any(alive(child) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def descendants(pid: int) -> list[int]:
    """Return the processes below a process."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return []
    found = [int(word) for word in text.split()]
    return found + [below for child in found for below in descendants(child)]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
