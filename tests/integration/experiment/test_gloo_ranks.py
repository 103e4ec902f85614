"""Ranks that exchange rows by gloo: the rows of one process, also if a rank dies or stops in the middle."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms.shards import LocalExchange
from rl_training.core.errors import UserError
from rl_training.core.messages import encode_code
from rl_training.core.types import EnvSpec, Progress
from rl_training.data.rollout_buffer import RolloutBatch
from rl_training.experiment.building import NO_OBJECTS, build_parts
from rl_training.experiment.learner_ranks import ray_ranks
from rl_training.experiment.learner_ranks.gloo import GlooExchange, Meeting, join
from rl_training.experiment.learner_ranks.rank import LearnerCopy, Order, digest_of, loss_codes
from rl_training.experiment.learner_ranks.ray_ranks import learner_site, refuse_missing_room
from support.configs import tiny_config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are tested on Linux")
HOME = "127.0.0.1"
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


def filled(call: int, width: int) -> Any:
    """Return a function that writes the row of a shard, which depends on the call too."""

    def fill(shard: int, row: Any) -> None:
        row[:] = np.random.default_rng([call, shard]).standard_normal(width)

    return fill


@pytest.mark.parametrize(("count", "ranks"), [(2, 2), (3, 2), (5, 3), (4, 4)])
def test_rows_are_those_of_one_process(count: int, ranks: int) -> None:
    meeting, found = Meeting(HOME), dict[int, list[Any]]()

    def exchange(rank: int) -> None:
        group = join((HOME, meeting.port), HOME, rank, ranks) if rank else meeting.join(ranks)
        exchange = GlooExchange(count, group)
        calls = enumerate([(70, FLOAT32), (70, FLOAT32), (9, FLOAT64), (70, FLOAT32)])
        found[rank] = [
            exchange.complete(each[0], each[1], filled(call, each[0])).copy() for call, each in calls
        ]

    threads = [threading.Thread(target=exchange, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    alone = LocalExchange(count)
    for call, (width, dtype) in enumerate([(70, FLOAT32), (70, FLOAT32), (9, FLOAT64), (70, FLOAT32)]):
        expected = alone.complete(width, dtype, filled(call, width))
        for rank in range(ranks):
            assert found[rank][call].dtype == dtype
            assert found[rank][call].tobytes() == expected.tobytes(), (call, rank)
    assert not torch.distributed.is_initialized(), "the user's default group is untouched"


RANK = """
import os, signal, sys
from multiprocessing.connection import Connection
from rl_training.core.messages import decode
from rl_training.experiment.learner_ranks import ray_ranks
from rl_training.experiment.learner_ranks.gloo import GlooExchange, join
from rl_training.experiment.learner_ranks.rank import serve

class Orders:
    def __init__(self, connection): self.connection = connection
    def receive(self): return decode(self.connection.recv_bytes())
    def finished(self, order, digest): self.connection.send(order.number)

class Hurt(GlooExchange):
    calls = 0
    def complete(self, *arguments):
        self.calls += 1
        if self.calls == int(sys.argv[4]):
            os.kill(os.getpid(), int(sys.argv[3]))
        return super().complete(*arguments)

connection = Connection(int(sys.argv[1]))
learner = decode(connection.recv_bytes()).build()
group = join(("127.0.0.1", int(sys.argv[2])), "127.0.0.1", 1, 2)
serve(learner, Hurt(learner.shards.count, group), Orders(connection))
connection.send(learner.optimizer.flat.tolist())
"""


class Pair:
    """Two learners in this process, one of which has a rank in another process, and one batch."""

    def __init__(self, folder: Path, hurt: signal.Signals, call: int) -> None:
        config = tiny_config("ppo", folder, learner_shards=3)
        spec = EnvSpec(spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2), 2)
        parts: list[Any] = [build_parts(config, spec).learner for _ in range(2)]
        self.alone, self.learner = parts
        generator = torch.Generator().manual_seed(0)
        columns = [torch.randn(31, generator=generator) for _ in range(4)]
        obs, actions = torch.randn(31, 3, generator=generator), torch.arange(31) % 2
        self.batch, self.progress = RolloutBatch(obs, actions, *columns), Progress(total_timesteps=100)
        self.given_up = 0
        meeting = Meeting(HOME)
        self.pipe: Connection[Any, Any]
        self.pipe, theirs = Pipe()
        with theirs:
            self.other = subprocess.Popen(
                [sys.executable, "-c", RANK, *map(str, (theirs.fileno(), meeting.port, int(hurt), call))],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        losses = NO_OBJECTS.losses_for(config)
        copy = LearnerCopy(
            config, spec, NO_OBJECTS, losses, torch.float32, uses_random=False, codes=loss_codes(losses)
        )
        self.pipe.send_bytes(encode_code(copy))
        self.exchange = GlooExchange(3, meeting.join(2), self.problem)
        self.learner.shards.exchange = self.exchange

    def problem(self, seconds: float) -> str | None:
        self.given_up += seconds > 1.0
        return "stopped" if seconds > 1.0 else None

    def update(self, number: int) -> None:
        """Let both take the same update; they return the same numbers."""
        digest, state = digest_of(self.learner), self.learner.state_dict() if number == 0 else None
        if self.exchange.failure is None:
            order = Order(number, 0, (), self.batch, self.progress, None, digest, state)
            self.pipe.send_bytes(encode_code(order))
        found, expected = (each.update(self.batch, self.progress) for each in (self.learner, self.alone))
        assert found.metrics == expected.metrics
        assert self.learner.optimizer.flat.tolist() == self.alone.optimizer.flat.tolist()


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    found = Pair(tmp_path, *request.param)
    try:
        yield found
    finally:
        found.other.kill()
        found.other.wait()
        found.exchange.leave()


@pytest.mark.parametrize("pair", [(signal.SIGKILL, 0)], indirect=True, ids=["unhurt"])
def test_ranks_on_two_machines_take_the_same_steps(pair: Pair) -> None:
    for number in range(2):
        pair.update(number)
        assert pair.pipe.recv() == number
    pair.pipe.send_bytes(encode_code(None))
    assert pair.pipe.recv() == pair.alone.optimizer.flat.tolist()
    assert pair.exchange.failure is None


@pytest.mark.fault
@pytest.mark.parametrize("pair", [(signal.SIGKILL, 3), (signal.SIGSTOP, 3)], indirect=True, ids=str)
def test_a_rank_that_is_lost_in_an_update_changes_nothing(pair: Pair) -> None:
    for number in range(2):
        pair.update(number)
        if pair.other.poll() is None:
            assert pair.exchange.failure == "stopped"
            assert pair.given_up == 1, "it is waited for once, not in every exchange"
        else:
            assert pair.other.returncode == -signal.SIGKILL
            assert str(pair.exchange.failure).startswith("lost its connection (")
            assert pair.given_up == 0, "nobody waits for a connection that is closed"


def test_other_ranks_are_told_that_the_group_is_lost() -> None:
    """Only rank 0 goes on alone: another one would take steps that nobody asked for."""
    meeting, joined, failures = Meeting(HOME), threading.Event(), list[str]()

    def other() -> None:
        exchange = GlooExchange(2, join((HOME, meeting.port), HOME, 1, 2))
        joined.set()
        try:
            exchange.complete(5, FLOAT32, filled(0, 5))
        except RuntimeError as error:
            failures.append(str(error))

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    exchange = GlooExchange(2, meeting.join(2))
    assert joined.wait(60)
    exchange.leave()
    thread.join(60)
    assert len(failures) == 1


def test_auto_goes_on_alone_if_a_cluster_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **settings: Any) -> None:
        raise UserError("the Ray cluster has too few resources")

    monkeypatch.setattr(ray_ranks, "RaySite", refuse)
    config = tiny_config("ppo", tmp_path, learner_shards=3, engine="ray", ray_address="auto")
    with pytest.warns(UserWarning, match="too few resources; this process computes all shards"):
        assert learner_site(config) is None
    refuse_missing_room(config)
    for check in (learner_site, refuse_missing_room):
        with pytest.raises(UserError, match=r"too few resources$"):
            check(config.with_overrides(num_learners=2))
