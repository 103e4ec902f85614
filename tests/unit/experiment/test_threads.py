"""CPU threads: which library gets them, and when `num_threads: auto` borrows idle cores."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from threadpoolctl import threadpool_info

from rl_training.config import TrainConfig
from rl_training.core import cpu
from rl_training.core.one_thread import one_thread
from rl_training.core.types import EnvSpec, Progress, UpdateResult
from rl_training.experiment import threads
from rl_training.experiment.threads import IdleCores, SpareCores, ThreadTrial, available_cores, run_threads

VECTOR = spaces.Box(-1.0, 1.0, (17,), np.float32)
FRAMES = spaces.Box(0, 255, (4, 84, 84), np.uint8)
BOARD = spaces.Box(0, 1, (10, 10, 4), np.float32)
CONTINUOUS, DISCRETE = spaces.Box(-1.0, 1.0, (6,), np.float32), spaces.Discrete(4)

WORTHWHILE = [
    ("ppo, as it comes", "ppo", VECTOR, {}, False),
    ("ppo, wide", "ppo", VECTOR, {"num_steps": 512, "batch_size": 4096, "hidden_sizes": (256, 256)}, True),
    ("ppo, a wide critic", "ppo", VECTOR, {"batch_size": 256, "critic_hidden_sizes": (1024, 1024)}, True),
    ("a2c, as it comes", "a2c", VECTOR, {}, False),
    ("dqn, as it comes", "dqn", VECTOR, {}, False),
    ("td3, as it comes", "td3", VECTOR, {}, True),
    ("sac, as it comes", "sac", VECTOR, {}, True),
    ("sac, 1024 wide", "sac", VECTOR, {"hidden_sizes": (1024, 1024)}, True),
    ("memory", "recurrent_ppo", VECTOR, {"core_size": 1024, "num_steps": 64, "batch_size": 512}, False),
    ("Nature CNN", "ppo", FRAMES, {"num_steps": 128, "batch_size": 256}, True),
    ("a board", "ppo", BOARD, {"num_steps": 32, "batch_size": 256}, True),
    ("another device", "sac", VECTOR, {"hidden_sizes": (2048, 2048), "device": "meta"}, False),
]  # fmt: skip


def pools():
    blas = {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
    return torch.get_num_threads(), *blas


class Learner:
    """Takes `seconds` for an update on a clock that it owns, and learns the number of threads if it is `inexact`."""

    update_path = "explicit"

    def __init__(self, *, inexact=False):
        self.now, self.threads, self.inexact = 0.0, 1, inexact
        self.seconds = {1: 1.0, 2: 0.6}
        self.weights, self.updates, self.used, self.delay = torch.zeros(2), 0, [], 0

    def clock(self):
        return self.now

    def set_threads(self, number):
        self.threads = number

    def update(self, batch, progress):
        self.now += self.seconds[self.threads]
        self.updates += 1
        self.used.append(self.threads)
        self.weights = self.weights + batch[:2] * (self.threads if self.inexact else 1)
        rare = {"actor_loss": torch.tensor(0.0)} if self.delay and not progress.updates % self.delay else {}
        return UpdateResult({"loss": self.weights.sum()} | rare)

    def state_dict(self):
        return {"model": {"weights": self.weights}}

    def load_state_dict(self, state):
        self.weights = state["model"]["weights"].clone()

    def not_finite(self, state):
        return None if state["model"]["weights"].isfinite().all() else "weights"


class Cores:
    """Idle cores as a test says."""

    idle = 1.0

    def since_last_look(self):
        return self.idle


@pytest.fixture
def spare(monkeypatch):
    def make(**options):
        learner, cores = Learner(**options), Cores()
        monkeypatch.setattr(SpareCores, "CLOCK", staticmethod(learner.clock))
        return SpareCores(learner, learner.set_threads, 2, cores), learner, cores

    return make


def updated(spare, count, batch=1.0, rows=2):
    """Update `count` times; return the threads of each update, the last if it was taken twice."""
    seen = []
    for _ in range(count):
        spare.learner.used.clear()
        spare.update(torch.full((rows,), batch), Progress())
        seen.append(spare.learner.used[0])
        assert spare.learner.threads == 1, "only the update itself has more threads"
    return seen


class TestWorthwhile:
    @pytest.mark.parametrize(
        ("algo", "space", "overrides", "wanted"), [row[1:] for row in WORTHWHILE], ids=[row[0] for row in WORTHWHILE]
    )  # fmt: skip
    def test_sizes_decide(self, algo, space, overrides, wanted, monkeypatch):
        monkeypatch.setattr(threads, "available_cores", lambda: 64)
        monkeypatch.setattr(
            threads, "choose_device", lambda name: torch.device("cpu" if name == "auto" else name)
        )
        config = TrainConfig(algo=algo, env_id="X").with_overrides(**overrides)
        spec = EnvSpec(space, CONTINUOUS if algo in ("sac", "td3") else DISCRETE, config.num_envs)
        with one_thread(), run_threads(config, spec, Learner()) as learner:
            assert isinstance(learner, SpareCores) == wanted
            assert pools() == (1, 1)

    @pytest.mark.parametrize(("cores", "most"), [(2, 2), (3, 3), (4, 4), (128, 4)])
    def test_never_more_than_there_are_cores(self, cores, most, monkeypatch):
        monkeypatch.setattr(threads, "available_cores", lambda: cores)
        config = TrainConfig(algo="sac", env_id="X")
        with one_thread(), run_threads(config, EnvSpec(VECTOR, CONTINUOUS, 1), Learner()) as learner:
            assert learner.most == most

    @pytest.mark.parametrize("overrides", [{"encoder": "my:Encoder"}, None])
    def test_an_update_with_code_of_the_user_is_never_taken_twice(self, overrides, monkeypatch):
        monkeypatch.setattr(threads, "available_cores", lambda: 2)
        config = TrainConfig(algo="sac", env_id="X").with_overrides(**overrides or {})
        spec, learner = EnvSpec(VECTOR, CONTINUOUS, 1), Learner()
        with one_thread(), run_threads(config, spec, learner, own_code=overrides is None) as used:
            assert used is learner

    def test_nothing_to_borrow_on_one_core(self, monkeypatch):
        monkeypatch.setattr(threads, "available_cores", lambda: 1)
        learner = Learner()
        with (
            one_thread(),
            run_threads(TrainConfig(algo="sac", env_id="X"), EnvSpec(VECTOR, CONTINUOUS, 1), learner) as used,
        ):
            assert used is learner


class TestOnePool:
    """torch's threads and those of BLAS wait by spinning, and take the cores from each other."""

    @pytest.mark.parametrize(
        ("space", "path", "overrides", "wanted"),
        [
            (VECTOR, "explicit", {}, (1, 3)),
            (VECTOR, "explicit, loss by autograd", {}, (1, 3)),
            (VECTOR, "autograd", {}, (3, 1)),
            (VECTOR, "explicit after autograd", {"encoder": "my:Encoder"}, (3, 1)),
            (FRAMES, "explicit", {}, (3, 1)),
            (FRAMES, "explicit", {"encoder": "flat"}, (1, 3)),
        ],
    )
    def test_the_library_of_the_large_products_gets_the_threads(self, space, path, overrides, wanted):
        config = TrainConfig(algo="ppo", env_id="X", num_threads=3).with_overrides(**overrides)
        learner = Learner()
        learner.update_path = path
        before = pools()
        with one_thread():
            with run_threads(config, EnvSpec(space, DISCRETE, 8), learner) as used:
                assert used is learner
                assert pools() == wanted
            assert pools() == (1, 1)
        assert pools() == before


class TestSpareCores:
    def test_a_callbacks_learning_rate_reaches_the_learner(self, spare):
        around, learner, _ = spare()
        around.fixed_learning_rate = 0.5
        assert learner.fixed_learning_rate == around.fixed_learning_rate == 0.5

    def test_idle_cores_are_borrowed_after_one_update_was_taken_twice(self, spare):
        threads, learner, _ = spare()
        assert updated(threads, 10) == [1] * 8 + [2] * 2
        assert threads.exact
        assert learner.updates == 11
        assert learner.weights.tolist() == [10.0, 10.0]

    def test_results_that_depend_on_threads_are_those_of_one(self, spare):
        threads, learner, _ = spare(inexact=True)
        assert updated(threads, 20) == [1] * 20
        assert threads.exact is False
        assert learner.weights.tolist() == [20.0, 20.0]

    def test_only_batches_of_the_size_that_was_compared(self, spare):
        threads, *_ = spare()
        assert updated(threads, 10)[-1] == 2
        assert updated(threads, 3, rows=3) == [1, 1, 1]
        assert updated(threads, 1) == [2]

    def test_an_update_that_leaves_out_a_part_decides_nothing(self, spare):
        """TD3 trains its actor in every other update only."""
        threads, learner, _ = spare()
        learner.delay = 3
        for number in range(8):
            threads.update(torch.ones(2), Progress(updates=number))
        assert (learner.updates, threads.exact) == (9, None)  # the eighth was taken twice, without the actor
        for number in (8, 9):
            threads.update(torch.ones(2), Progress(updates=number))
        assert (learner.updates, threads.exact) == (13, True)
        assert learner.weights.tolist() == [10.0, 10.0]

    def test_negative_zero_is_another_result(self):
        assert not threads._same_tensors(torch.tensor(0.0), torch.tensor(-0.0))
        assert threads._same_tensors(torch.tensor(torch.nan), torch.tensor(torch.nan))

    def test_a_run_that_diverges_is_left_to_the_trainer(self, spare):
        threads, learner, _ = spare()
        updated(threads, 7)
        assert updated(threads, 1, torch.inf) == [1]
        assert threads.exact is None
        assert learner.weights.tolist() == [torch.inf] * 2

    def test_busy_cores_are_never_tried(self, spare):
        threads, learner, cores = spare()
        cores.idle = 0.5
        assert updated(threads, 50) == [1] * 50
        assert learner.updates == 50

    def test_a_neighbour_that_comes_later_gets_its_core_back(self, spare):
        threads, learner, cores = spare()
        updated(threads, 10)
        learner.seconds[2], cores.idle = 20.0, 0.1
        assert updated(threads, 4) == [2, 2, 1, 1]
        started = learner.now
        assert updated(threads, 1000) == [1] * 1000
        assert learner.now - started == 1000.0

    def test_a_failed_attempt_is_not_repeated_before_its_cost_is_small(self, spare):
        threads, learner, _ = spare()  # the cores look idle, and two threads are slow all the same
        learner.seconds[2] = 5.0
        before = 5000
        updated(threads, before)
        assert learner.now <= 1.05 * before

    def test_it_borrows_again_when_the_neighbour_is_gone(self, spare):
        threads, learner, cores = spare()
        updated(threads, 10)
        learner.seconds[2], cores.idle = 3.0, 0.1
        updated(threads, 200)
        learner.seconds[2], cores.idle = 0.6, 1.0
        assert updated(threads, 10)[-1] == 2


class TestIdleCores:
    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch, tmp_path):
        self.file, self.now = tmp_path / "stat", 100.0
        monkeypatch.setattr(threads, "CPU_TIMES", self.file)
        monkeypatch.setattr(threads.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 2}, raising=False)
        monkeypatch.setattr(threads.os, "sysconf", lambda name: 100)

    def write(self, *idle):
        rows = [f"cpu{core} 9 0 9 {ticks} 0 0 0 0 0 0" for core, ticks in enumerate(idle)]
        self.file.write_text("\n".join(["cpu 99 0 99 9999 0 0 0 0 0 0", *rows, "intr 1 2", "ctxt 3"]))

    def test_those_of_this_process_count(self):
        self.write(1000, 5000, 1000)
        cores = IdleCores()
        self.now += 2.0
        self.write(1200, 9000, 1100)
        assert cores.since_last_look() == pytest.approx(1.5)
        self.now += 1.0
        assert cores.since_last_look() == 0.0

    def test_an_unknown_system_has_none(self):
        cores = IdleCores()
        assert cores.since_last_look() == 0.0
        self.file.write_text("cpu0 what is this")
        assert cores.since_last_look() == 0.0


class TestCores:
    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch, tmp_path):
        monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
        monkeypatch.setattr(cpu, "CGROUP_CPU", tmp_path / "cpu.max")
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        self.quota = tmp_path / "cpu.max"

    def test_those_that_the_process_may_use(self):
        assert available_cores() == 8

    @pytest.mark.parametrize(
        ("text", "wanted"), [("3", 3), ("16", 8), ("0", 8), ("many", 8), ("2,1", 2), ("", 8)]
    )
    def test_no_more_than_openmp_is_allowed(self, text, wanted, monkeypatch):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert available_cores() == wanted

    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            ("200000 100000\n", 2),
            ("50000 100000\n", 1),
            ("250000 100000\n", 2),
            ("max 100000\n", 8),
            ("?", 8),
        ],
    )
    def test_no_more_than_a_container_is_given(self, text, wanted):
        self.quota.write_text(text)
        assert available_cores() == wanted

    def test_a_system_that_does_not_tell(self, monkeypatch):
        monkeypatch.delattr(threads.os, "sched_getaffinity")
        monkeypatch.setattr(threads.os, "cpu_count", lambda: None)
        assert available_cores() == 1


@pytest.mark.parametrize("inexact", [False, True])
def test_a_trial_finds_out_whether_threads_change_the_bytes(inexact):
    learner = Learner(inexact=inexact)
    trial = ThreadTrial(learner, learner.set_threads, 2)
    trial.update(torch.ones(4), Progress())
    assert trial.exact is not inexact
    assert learner.threads == 1
    assert learner.used == [1, 2]
    assert learner.weights.tolist() == [1.0, 1.0], "the result is that of one thread"
