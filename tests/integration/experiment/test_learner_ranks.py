"""Processes that compute shards: the same bytes for any number of them, whatever happens to them."""

import errno
import functools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training import PPO, SAC
from rl_training.algorithms import ppo
from rl_training.algorithms.losses import Loss
from rl_training.algorithms.ppo import PPOLearner, ppo_loss
from rl_training.algorithms.sac import SACLearner
from rl_training.core.errors import UserError
from rl_training.core.types import EnvSpec
from rl_training.data.recurrent_rollout_buffer import SequenceBatch
from rl_training.experiment.building import build_parts
from rl_training.experiment.learner_ranks import exchanges, ranks
from rl_training.experiment.learner_ranks.memory import Board, SharedBlock, read_batch, write_batch
from rl_training.experiment.learner_ranks.rank import digest_of, loss_codes
from rl_training.experiment.learner_ranks.ranks import RankedLearner, num_learners
from rl_training.experiment.resume import resume
from rl_training.experiment.start import train
from support.callbacks import Meddler, StopAtCollect
from support.compared_runs import assert_same_run
from support.configs import tiny_config
from support.engine_cases import LOCKS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are tested on Linux")
SHARDED: dict[str, Any] = {"learner_shards": 2, "engine": "process"}


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Have as many cores as a test wants, and updates that wait for all ranks."""
    monkeypatch.setattr(ranks, "START_WAIT", 60.0)

    def have(count: int) -> None:
        monkeypatch.setattr(ranks, "usable_cores", lambda: count)

    return have


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[RankedLearner]:
    """Collect the learners with ranks that a test starts."""
    found: list[RankedLearner] = []
    original = RankedLearner.__init__

    def keep(self: RankedLearner, *arguments: Any) -> None:
        original(self, *arguments)
        found.append(self)

    monkeypatch.setattr(RankedLearner, "__init__", keep)
    return found


CASES: dict[str, dict[str, Any]] = {
    "ppo": {"normalize_obs": True},
    "sac": {"normalize_obs": True, "gradient_steps": 2},
    "recurrent_ppo": {"learner_shards": 3, "encoder": "tiny_encoders:Dropping", "features_dim": 6},
    "recurrent_ppo, masks": {"env_id": LOCKS},
    "dqn, priorities": {"prioritized": True, "n_step": 3},
    "td3": {},
    "sac, encoder": {"encoder": "tiny_encoders:Sigmoid", "features_dim": 7},
    "ppo, pixels": {"env_id": "rl_training.envs.tasks:rl_training/Catch-v0", "features_dim": 16},
}


@pytest.mark.parametrize("case", CASES)
def test_one_process_and_two_are_the_same_run(
    case: str, tmp_path: Path, cores: Any, started: list[RankedLearner], rows: Any
) -> None:
    config = tiny_config(case.partition(",")[0], tmp_path, **SHARDED | CASES[case])
    cores(1)
    alone = train(config, callbacks=[Meddler()]).run_dir
    assert not started
    cores(2)
    together = train(config, callbacks=[Meddler()]).run_dir
    (ranked,) = started
    assert ranked.helped > 1
    assert ranked.helped == ranked.book.number
    assert not ranked.losses.warned, "no rank was lost"
    assert_same_run(alone, together, rows)


class Hurt(exchanges.SharedMemoryExchange):
    """Sends signals to the other rank in the middle of an update."""

    signals: ClassVar[dict[int, signal.Signals]] = {5: signal.SIGKILL, 11: signal.SIGSTOP}
    pids: ClassVar[list[int]] = []
    find: ClassVar[list[RankedLearner]] = []

    def complete(self, width: int, dtype: Any, fill: Any) -> Any:
        if (number := self.signals.get(self.sequence)) is not None:
            (ranked,) = self.find
            rank = ranked.ranks[1]
            assert rank is not None
            assert rank.last_order == ranked.book.number, "it takes part in this update"
            os.kill(rank.process.pid, number)
            self.pids.append(rank.process.pid)
        return super().complete(width, dtype, fill)


@pytest.mark.fault
def test_a_rank_that_is_killed_or_stopped_changes_nothing_and_is_replaced(
    tmp_path: Path, cores: Any, started: list[RankedLearner], rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config("ppo", tmp_path, **SHARDED, total_timesteps=192)
    cores(1)
    alone = train(config).run_dir
    cores(2)
    monkeypatch.setattr(ranks, "SILENCE", 0.7)
    monkeypatch.setattr(ranks, "SharedMemoryExchange", Hurt)
    monkeypatch.setattr(Hurt, "find", started)
    monkeypatch.setattr(Hurt, "pids", [])
    with pytest.warns(
        UserWarning, match="learner process 1 was killed by signal 9; it is started again"
    ) as told:
        hurt = train(config).run_dir
    assert len([each for each in told if "learner process" in str(each.message)]) == 1
    assert len(set(Hurt.pids)) == 2, "the second signal went to the process that replaced the first"
    assert not any(Path(f"/proc/{pid}").exists() for pid in Hurt.pids)
    assert started[0].losses.restarts == config.max_sampler_restarts - 2
    assert [row["time/learner_restarts"] for row in rows(hurt / "metrics.jsonl")][-1] == 2.0
    assert all("time/learner_restarts" not in row for row in rows(alone / "metrics.jsonl"))
    assert_same_run(alone, hurt, rows)


def test_a_run_is_resumed_with_more_processes(
    tmp_path: Path, cores: Any, started: list[RankedLearner], rows: Any
) -> None:
    config = tiny_config("a2c", tmp_path, **SHARDED)
    cores(1)
    whole = train(config).run_dir
    half = train(config, callbacks=[StopAtCollect(32)]).run_dir
    cores(2)
    resume(half)
    assert started[0].helped > 0
    assert_same_run(whole, half, rows)


def test_after_an_error_no_process_is_left(tmp_path: Path, cores: Any, started: list[RankedLearner]) -> None:
    cores(2)
    with pytest.raises(ZeroDivisionError):
        train(tiny_config("ppo", tmp_path, **SHARDED), callbacks=[StopAtCollect(32, ZeroDivisionError)])
    (ranked,) = started
    assert ranked.ranks == {1: None}
    assert _children(os.getpid()) == []


DRIVER = """
import sys
from rl_training.experiment.learner_ranks import ranks
ranks.usable_cores = lambda: 2
from support.configs import tiny_config
from rl_training.experiment.start import train
train(tiny_config("ppo", sys.argv[1], learner_shards=2, engine="process", total_timesteps=10**8))
"""


def _children(pid: int) -> list[int]:
    return [
        int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    ]


@pytest.mark.fault
def test_no_rank_outlives_a_run_that_is_killed(tmp_path: Path) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not ((found := _children(driver.pid)) and "libtorch" in _maps(found[0])):
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(found[0], signal.SIGSTOP)  # it cannot notice anything itself
    finally:
        driver.kill()
        driver.wait()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{found[0]}").exists():
        assert time.monotonic() < deadline, "the rank is still there"
        time.sleep(0.02)


def _maps(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


class OwnLearner(SACLearner):
    """Has an update of its own, which asks for no shards."""

    def _train_batch(self, rows: Any, updates: int, learning_rate: Any) -> Any:
        return {"loss": 0.0}, None


class OwnSAC(SAC):
    """SAC with that update."""

    @staticmethod
    def build_learner(settings: Any, context: Any, actor: Any) -> Any:
        found = SAC.build_learner(settings, context, actor)
        found.__class__ = OwnLearner
        return found


def test_an_update_without_shards_is_refused(tmp_path: Path) -> None:
    config = tiny_config("sac", tmp_path, learner_shards=2)
    with pytest.raises(UserError, match="learner_shards is 2, but OwnLearner computes its gradients without"):
        train(config, algorithm=OwnSAC)


def test_a_loss_that_cannot_be_sent_is_refused(tmp_path: Path, cores: Any) -> None:
    cores(2)
    lock = threading.Lock()

    def locked_loss(minibatch: Any, **settings: Any) -> Any:
        with lock:
            return ppo_loss(minibatch, **settings)

    with pytest.raises(UserError, match=r"cannot be sent to other processes .*; use engine 'local'"):
        train(tiny_config("ppo", tmp_path, **SHARDED), losses={"loss": locked_loss})


def noisy_loss(minibatch: Any, **settings: Any) -> Any:
    """Draws from every global generator."""
    parts = ppo_loss(minibatch, **settings)
    noise = 1 + 0.1 * (random.random() + np.random.rand() + float(torch.rand(())))
    return {**parts, "loss": parts["loss"] * noise}


def test_random_numbers_of_a_loss_do_not_depend_on_the_processes(
    tmp_path: Path, cores: Any, started: list[RankedLearner], rows: Any
) -> None:
    config = tiny_config("ppo", tmp_path, **SHARDED)
    runs = []
    for count in (1, 2):
        cores(count)
        runs.append(train(config, losses={"loss": noisy_loss}).run_dir)
    assert started[0].helped > 1
    assert_same_run(*runs, rows)


def test_a_patched_loss_with_noise_is_seeded_in_every_process(
    tmp_path: Path, cores: Any, started: list[RankedLearner], rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank does not know that its loss was patched, but it is told that there are random numbers."""
    monkeypatch.setattr("rl_training.algorithms.ppo.ppo_loss", noisy_loss)
    config = tiny_config("ppo", tmp_path, **SHARDED)
    runs = []
    for count in (1, 2):
        cores(count)
        runs.append(train(config).run_dir)
    assert started[0].helped > 1
    assert_same_run(*runs, rows)


def test_a_patched_loss_that_arrives_as_the_original_is_noticed(
    tmp_path: Path, cores: Any, started: list[RankedLearner], rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrapper with the name of the function that it replaces is sent by that name."""

    @functools.wraps(ppo_loss)
    def halved(minibatch: Any, **settings: Any) -> Any:
        parts = ppo_loss(minibatch, **settings)
        return {**parts, "loss": 0.5 * parts["loss"]}

    monkeypatch.setattr("rl_training.algorithms.ppo.ppo_loss", halved)
    config = tiny_config("ppo", tmp_path, **SHARDED)
    cores(1)
    alone = train(config).run_dir
    cores(2)
    with pytest.warns(UserWarning, match="its loss .*ppo_loss is another function there"):
        together = train(config).run_dir
    assert started[0].helped == 0
    assert_same_run(alone, together, rows)


def test_a_patched_gradient_is_noticed(
    tmp_path: Path, cores: Any, started: list[RankedLearner], rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ppo.ppo_gradient

    @functools.wraps(original)
    def halved(minibatch: Any, **settings: Any) -> Any:
        parts, *gradients = original(minibatch, **settings)
        return parts, *[None if each is None else 0.5 * each for each in gradients]

    monkeypatch.setattr("rl_training.algorithms.ppo.ppo_gradient", halved)
    config = tiny_config("ppo", tmp_path, **SHARDED)
    cores(1)
    alone = train(config).run_dir
    cores(2)
    with pytest.warns(UserWarning, match="its loss_gradient .*ppo_gradient is another function there"):
        together = train(config).run_dir
    assert started[0].helped == 0
    assert_same_run(alone, together, rows)


FACTOR = 1.0


def scaled_loss(minibatch: Any, *, power: int = 1, **settings: Any) -> Any:
    parts = ppo_loss(minibatch, **settings)
    return {**parts, "loss": FACTOR**power * parts["loss"]}


def test_a_digest_of_a_loss_sees_constants_defaults_and_numbers_of_its_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made(number: float) -> Any:
        namespace: dict[str, Any] = {}
        exec(f"def loss(minibatch):\n    return {number} * minibatch", namespace)  # another constant
        return namespace["loss"]

    def digest(function: Any) -> Any:
        return loss_codes({"loss": Loss(function)})["loss"]

    assert digest(made(1.5)) == digest(made(1.5)) != digest(made(2.5))
    before = digest(scaled_loss)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 2.0)
    assert digest(scaled_loss) != before
    monkeypatch.undo()
    assert digest(scaled_loss) == before
    monkeypatch.setitem(scaled_loss.__kwdefaults__, "power", 3)
    assert digest(scaled_loss) != before


class Shuffling(PPOLearner):
    """Scales the advantages of an update by a random number, outside the passes over slices."""

    def update(self, batch: Any, progress: Any) -> Any:
        scale = 0.5 + np.random.rand() + random.random()
        return super().update(replace(batch, advantages=batch.advantages * scale), progress)


class OwnPPO(PPO):
    @staticmethod
    def build_learner(settings: Any, context: Any, actor: Any) -> Any:
        learner = PPO.build_learner(settings, context, actor)
        learner.__class__ = Shuffling
        return learner


def test_random_numbers_of_an_own_learner_do_not_depend_on_the_processes(
    tmp_path: Path, cores: Any, started: list[RankedLearner], rows: Any
) -> None:
    config = tiny_config("ppo", tmp_path, **SHARDED)
    runs = []
    for count in (1, 2):
        cores(count)
        runs.append(OwnPPO(config).learn().run_dir)
    assert started[0].helped > 1
    assert_same_run(*runs, rows)


def test_a_row_that_is_complete_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rank was lost right after it had written the row, which other ranks may be reading."""
    block, counters = SharedBlock(), SharedBlock()
    board = Board(counters, 2, 2)
    filled: list[int] = []

    def absent(shard: int, seconds: float) -> bool:
        board.ready[shard] = exchange.sequence
        return True

    exchange = exchanges.SharedMemoryExchange(block, board, 2, absent)
    exchange.reserve(4, 4)
    exchange.begin(0, (0,))
    monkeypatch.setattr(exchanges, "LOOK_EVERY", 0.0)
    exchange.complete(4, np.dtype(np.float32), lambda shard, row: filled.append(shard))
    assert filled == [0]
    block.close()
    counters.close()


class Counts:
    """A loss that remembers how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, minibatch: Any, **settings: Any) -> Any:
        self.calls += 1
        parts = ppo_loss(minibatch, **settings)
        return {**parts, "loss": parts["loss"] / self.calls}


def test_a_loss_that_may_keep_state_is_computed_by_one_process(
    tmp_path: Path, cores: Any, started: list[RankedLearner], rows: Any
) -> None:
    config = tiny_config("ppo", tmp_path, **SHARDED)
    cores(1)
    alone = train(config, losses={"loss": Counts()}).run_dir
    cores(2)
    with pytest.warns(UserWarning, match="Counts is not a plain function and may keep state"):
        together = train(config, losses={"loss": Counts()}).run_dir
    assert not started
    assert_same_run(alone, together, rows)


def test_an_update_of_more_rows_than_its_batch_is_refused() -> None:
    block = SharedBlock()
    exchange = exchanges.SharedMemoryExchange(block, Any, 2, lambda shard, seconds: False)
    exchange.reserve(10, 4)
    with pytest.raises(UserError, match=r"more rows than its batch has.*num_learners to 1"):
        exchange.complete(11, np.dtype(np.float32), lambda shard, row: None)
    block.close()


class Failing:
    """Stands in for a process that cannot import what it needs."""

    started = 0
    ready, last_order = False, 0

    def __init__(self, number: int, *rest: Any) -> None:
        self.number, type(self).started = number, type(self).started + 1

    def has_finished(self, board: Any) -> bool:
        return False

    def problem(self, board: Any, seconds: float) -> str | None:
        return "failed (ModuleNotFoundError: no module named 'mine')"

    def end(self) -> None: ...


def test_a_rank_that_fails_three_times_is_given_up(
    tmp_path: Path, cores: Any, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config("ppo", tmp_path, **SHARDED, total_timesteps=320)
    cores(1)
    alone = train(config).run_dir
    cores(2)
    monkeypatch.setattr(ranks, "Rank", Failing)
    with pytest.warns(UserWarning, match="learner process 1 failed") as told:
        together = train(config).run_dir
    found = [str(each.message) for each in told if "learner process" in str(each.message)]
    assert len(found) == 2
    assert "no module named 'mine'" in found[0]
    assert "is not started again" in found[1]
    assert Failing.started == 3
    assert_same_run(alone, together, rows)


def test_processes_that_cannot_be_started_are_refused(
    tmp_path: Path, cores: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    cores(2)
    monkeypatch.setattr(ranks, "Rank", refuse)
    with pytest.raises(UserError, match="learner processes cannot be started: Resource temporarily"):
        train(tiny_config("ppo", tmp_path, **SHARDED))


def test_batches_of_any_form_and_growing_size_pass_through_shared_memory() -> None:
    sender = SharedBlock()
    receiver = SharedBlock(os.dup(sender.descriptor))
    try:
        for rows in (3, 500):
            batch = SequenceBatch(
                obs={"a": torch.randn(rows, 2), "b": torch.arange(rows, dtype=torch.uint8)},
                actions=torch.arange(2 * rows)[::2],  # not contiguous
                logprobs=torch.randn(rows),
                values=torch.randn(rows),
                advantages=torch.randn(rows),
                returns=torch.randn(rows),
                extra={"starts": torch.ones(rows, dtype=torch.bool)},
                sequences=torch.zeros(0, 0, dtype=torch.int64),
                memory=(torch.randn(1, 4), torch.randn(1, 5)),
            )
            found = read_batch(write_batch(batch, sender), receiver)
            assert type(found) is SequenceBatch
            assert found.valid is None
            assert [len(part) for part in (found.obs, found.memory, found.extra)] == [2, 2, 1]
            pairs = zip(_numbers(found), _numbers(batch), strict=True)
            assert all(torch.equal(one, other) and one.dtype == other.dtype for one, other in pairs)
    finally:
        sender.close()
        receiver.close()


def _numbers(batch: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    batch.map(lambda tensor: found.append(tensor) or tensor)
    return found


def test_a_digest_sees_values_order_generators_and_counters() -> None:
    config = tiny_config("dqn", "unused", learner_shards=2)
    spec = EnvSpec(spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2), 2)
    learner: Any = build_parts(config, spec).learner
    flat, seen = learner.optimizer.flat, [digest_of(learner)]
    flat[[3, 40]] = flat[[40, 3]]
    seen.append(digest_of(learner))
    flat[-1] += 1e-6
    seen.append(digest_of(learner))
    learner.target.follow()
    seen.append(digest_of(learner))
    learner.noise_rng.random()
    seen.append(digest_of(learner))
    learner.target_updates.value += 1
    seen.append(digest_of(learner))
    assert len(set(seen)) == 6
    assert digest_of(learner) == seen[-1]


def test_how_many_processes_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("ppo", tmp_path, learner_shards=4)
    monkeypatch.setattr(ranks, "usable_cores", lambda: 3)
    assert num_learners(config) == 1
    assert num_learners(config.with_overrides(engine="process")) == 3
    assert num_learners(config.with_overrides(engine="process", num_learners=2)) == 2
    assert num_learners(config.with_overrides(engine="process", learner_shards=2)) == 2
    assert num_learners(config.with_overrides(engine="ray")) == 3, "a cluster of this run is this machine"
    there = config.with_overrides(engine="ray", ray_address="auto")
    assert num_learners(there) == 4, "the cores of this machine do not matter"
    assert num_learners(there.with_overrides(num_learners=2)) == 2
