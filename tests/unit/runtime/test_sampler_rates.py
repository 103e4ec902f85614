"""Rates and waiting times of a scheduled sampler, by a clock whose every second is known."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rl_training.core.types import Collected, Progress
from rl_training.experiment.logs.sinks import WALL_CLOCK
from rl_training.runtime.groups import Rollout
from rl_training.runtime.scheduled_sampler import ScheduledSampler


class Crew:
    """Two hosts, whose rollouts take 2 and 3 seconds; the learner waits for the longer one."""

    groups = ([0], [1])

    def __init__(self) -> None:
        self.now = 50.0
        self.tickets: list[tuple[int, Any]] = []

    def publish(self, version: int, packed: Any) -> None: ...

    def submit(self, group: int, ticket: Any) -> None:
        self.tickets.append((group, ticket))

    def receive(self, timeout: float) -> Rollout:
        group, ticket = self.tickets.pop(0)
        self.now += 2.0 if group == 0 else 1.0
        started = self.now - (2.0 if group == 0 else 3.0)
        return Rollout(group, ticket.number, 0, None, Collected(30, []), {}, 10, started, self.now)


def test_rates_and_shares(monkeypatch):
    crew: Any = Crew()
    monkeypatch.setattr("rl_training.runtime.scheduled_sampler.joined_blocks", lambda blocks: None)
    source: Any = SimpleNamespace(record_block=lambda block: None)
    policy: Any = SimpleNamespace(pack=lambda: None)
    sampler = ScheduledSampler(crew, [3, 3], source, policy, clock=lambda: crew.now)
    for _ in range(2):
        for _ in range(4):
            sampler.collect(10, Progress(total_timesteps=100))
            crew.now += 5.0  # an update
        found = sampler.metrics()
        assert found == {
            "time/sampled_fps": pytest.approx(240 / (4 * (2 + 3) / 2)),
            "time/learned_fps": pytest.approx(240 / (4 * 5)),
            "time/learner_waits": pytest.approx(3 / 8),
            "time/samplers_wait": pytest.approx(1 - (2 + 3) / 2 / 8),
            "time/sampler_restarts": 0.0,
            "time/lost_rollouts": 0.0,
        }
        assert found.keys() <= set(WALL_CLOCK)


def test_every_column_of_the_clock_is_described():
    page = (Path(__file__).parents[3] / "docs" / "logging.md").read_text(encoding="utf-8")
    assert [name for name in WALL_CLOCK if f"`{name}`" not in page] == []
    for name in ("rollout/policy_lag_min", "rollout/dropped"):
        assert f"`{name}`" in page
