"""The real scheduler with hundreds of hosts on a virtual clock: nothing is lost, repeated or out of order."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rl_training.core.types import Progress, State
from rl_training.experiment.throughput import Costs, Linear
from rl_training.runtime.crews import HostLost
from rl_training.runtime.groups import Rollout, Started, Ticket
from rl_training.runtime.scheduled_sampler import TICKETS_AT_ONCE, ScheduledSampler
from support.virtual_crew import DIGEST, PARENT, Trouble, VirtualCrew, free_problems, problems
from support.virtual_runs import Setting, VirtualRun

HOUR = 3600.0
TROUBLE = Trouble(noise=0.02, straggling=0.02, slow_host=2.0, deaths_per_hour=0.05)


def costs(groups: int, envs: int = 2, *, update: float = 20.0) -> Costs:
    """Return costs of rollouts that take about half a minute."""
    return Costs(
        num_envs=groups * envs,
        num_steps=640,
        step=Linear(0.03, 0.005),
        act=Linear(0.004, 0.001),
        record=Linear(1e-4, 1e-5),
        update=update,
        receive=0.2,
        snapshot=Linear(1e-3, 1e-4),
        message=2e-3,
        parameter_bytes=10**7,
        copy_per_byte=1e-10,
    )


def setting(hosts: int, groups: int, **settings: Any) -> Setting:
    return Setting(costs=costs(groups), num_groups=groups, num_hosts=hosts, **settings)


def found(run: VirtualRun) -> list[str]:
    """Return what is wrong with what a run with lag 0 or 1 has learned from."""
    wanted = run.setting
    assert isinstance(wanted.lag, int)
    return list(problems(run.source.learned, wanted.num_groups, wanted.lag, wanted.costs.timesteps))


def assert_same(run: VirtualRun, other: VirtualRun) -> None:
    assert len(run.source.learned) == len(other.source.learned)
    for rows, others in zip(run.source.learned, other.source.learned, strict=True):
        np.testing.assert_array_equal(rows, others)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(("hosts", "groups", "hours"), [(64, 64, 8), (64, 256, 8), (512, 512, 2)])
def test_every_rollout_is_learned_from_once_and_in_order(lag, hosts, groups, hours):
    run = VirtualRun(setting(hosts, groups, lag=lag, trouble=TROUBLE)).iterate_for(hours * HOUR)
    assert run.sampler.restarts > 0.5 * hosts * hours * TROUBLE.deaths_per_hour
    assert run.sampler.lost_rollouts > 0
    assert found(run) == []
    alone = VirtualRun(setting(1, groups, lag=lag)).iterate(len(run.source.learned))
    assert alone.sampler.restarts == 0
    assert_same(run, alone)


def test_hosts_are_lost_at_every_moment():
    """Otherwise the tests above would not say much."""
    frequent = replace(TROUBLE, deaths_per_hour=1.0, hanging=0.5)
    run = VirtualRun(setting(64, 128, lag=1, trouble=frequent)).iterate_for(2 * HOUR)
    moments = ("during work", "without work", "after an answer", "while restarting")
    assert set(run.crew.losses) == {f"{how} {moment}" for how in ("died", "hung") for moment in moments}
    assert found(run) == []


@pytest.mark.parametrize("max_policy_lag", [1, 2])
@pytest.mark.parametrize(("hosts", "groups", "hours"), [(64, 64, 8), (64, 256, 8), (512, 512, 2)])
def test_with_lag_free_every_ticket_is_accounted_for(max_policy_lag, hosts, groups, hours):
    wanted = setting(hosts, groups, lag="free", max_policy_lag=max_policy_lag, trouble=TROUBLE)
    run = VirtualRun(wanted).iterate_for(hours * HOUR)
    assert run.sampler.restarts > 0.5 * hosts * hours * TROUBLE.deaths_per_hour
    *wrong, (dropped, most) = free_problems(run.source.learned, groups, max_policy_lag)
    assert wrong == []
    assert most == max_policy_lag
    assert run.sampler.metrics()["rollout/dropped"] == dropped
    assert (dropped > 0) == (max_policy_lag == 1)
    learned = len(run.source.learned) * groups
    assert sum(run.crew.issued) == learned + dropped + TICKETS_AT_ONCE * groups


@pytest.mark.parametrize(("hosts", "groups"), [(64, 64), (64, 256), (60, 256), (512, 512)])
@pytest.mark.parametrize("lag", [0, 1, "free"])
@pytest.mark.parametrize("update", [5.0, 29.0, 100.0])
def test_throughput_is_what_the_plan_predicts(lag, hosts, groups, update):
    wanted = Setting(costs=costs(groups, update=update), num_groups=groups, num_hosts=hosts, lag=lag)
    run = VirtualRun(wanted).iterate(10)
    timesteps, since = run.progress.timesteps, run.crew.now
    run.iterate(10)
    speed = (run.progress.timesteps - timesteps) / (run.crew.now - since)
    assert speed == pytest.approx(wanted.prediction().steps_per_second, rel=0.002)


@pytest.mark.parametrize("lag", [0, 1, "free"])
def test_the_slowest_host_sets_the_pace(lag):
    slow = Trouble(slow_host=2.0)
    wanted = setting(64, 64, lag=lag)
    run = VirtualRun(replace(wanted, trouble=slow)).iterate(60)
    twice = replace(wanted.costs, num_steps=2 * wanted.costs.num_steps)
    seconds = twice.timesteps / replace(wanted, costs=twice).prediction().steps_per_second
    assert run.steps_per_second == pytest.approx(wanted.costs.timesteps / seconds, rel=0.02)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("seed", range(3))
def test_a_checkpoint_continues_with_another_number_of_hosts(lag, seed):
    draws = np.random.default_rng(seed)
    groups = 24
    frequent = replace(TROUBLE, deaths_per_hour=2.0)
    run = VirtualRun(setting(24, groups, lag=lag, trouble=frequent, seed=seed))
    for hosts in (5, 1, 13):
        run.iterate(int(draws.integers(0, 12)))
        following = replace(run.setting, num_hosts=hosts, seed=int(draws.integers(1000)))
        run = VirtualRun(following, run.save())
    run.iterate(5)
    assert run.sampler.restarts + len(run.source.learned) > 5
    assert found(run) == []
    assert_same(run, VirtualRun(setting(1, groups, lag=lag)).iterate(len(run.source.learned)))


def test_a_checkpoint_with_lag_free_repeats_what_was_not_learned_from():
    run = VirtualRun(setting(8, 8, lag="free", trouble=TROUBLE)).iterate(9)
    run = VirtualRun(replace(run.setting, num_hosts=3), run.save()).iterate(9)
    *wrong, (dropped, _) = free_problems(run.source.learned, 8, 2)
    assert (wrong, dropped) == ([], 0)


def test_a_run_that_ends_goes_on_as_if_it_had_not():
    """With lag 1, the rollout after the last one has a ticket that was not sent."""
    ending = Progress(total_timesteps=10 * costs(8).timesteps)
    run = VirtualRun(setting(4, 8, lag=1), progress=ending).iterate(9)
    for host in range(4):
        run.crew.strike(host, 7.0 * host, "during the last rollout")
    run.iterate(1)
    assert run.progress.done
    assert run.sampler.restarts == 4
    assert run.crew.issued == [10] * 8
    assert found(VirtualRun(replace(run.setting, num_hosts=2), run.save()).iterate(5)) == []


class ForgetfulCrew(VirtualCrew):
    """Groups whose first environment cannot be restored."""

    def _begun(self, own: Any, group: int, start: Any) -> Started:
        if start.state is None:
            return super()._begun(own, group, start)
        started = super()._begun(own, group, start)
        count, digest = own.groups[group]
        own.groups[group] = count, -digest
        return replace(started, state=self._state(own.groups[group]), lost=(0,))


@pytest.mark.parametrize("lag", [0, 1, "free"])
def test_transitions_are_forgotten_between_the_rollouts_that_they_would_have_joined(lag):
    frequent = Trouble(noise=0.3, deaths_per_hour=5.0)
    run = VirtualRun(setting(6, 12, lag=lag, trouble=frequent), make_crew=ForgetfulCrew).iterate(150)
    broken, digests = set(), list(range(12))
    for k, rows in enumerate(run.source.learned):
        for group, row in enumerate(rows[::2]):
            if row[PARENT] != digests[group]:
                broken.add((k, 2 * group))
            digests[group] = row[DIGEST]
    assert len(broken) > 20
    forgotten = {(place, row) for place, rows in run.source.forgotten for row in rows}
    assert broken == forgotten


class OlderVersion(ScheduledSampler):
    """Acts once with parameters that are one update too old."""

    def _add_tickets(self, ticket: Ticket) -> None:
        version = ticket.version
        if version == 3:
            ticket = replace(ticket, version=2)
        super()._add_tickets(ticket)

    def _forget_old_parameters(self) -> None:
        pass


class StaleState(ScheduledSampler):
    """Begins a lost host's groups with states that are one rollout too old."""

    def _recover(self, lost: HostLost) -> None:
        newer, self._received = self._received, {}
        for group in self.crew.groups[lost.host]:
            for ticket in self._pending[group]:
                newer.pop((group, ticket.number), None)
        self.states = [self.older.get(group, state) for group, state in enumerate(self.states)]
        super()._recover(lost)
        self._received = newer

    older: dict[int, State]

    def _next(self, group: int) -> Rollout:
        self.older = getattr(self, "older", {})
        before = self.states[group]
        found = super()._next(group)
        self.older[group] = before
        return found


class RecordsTwice(ScheduledSampler):
    """Records one rollout of a group again in place of the next one."""

    before: Rollout | None = None

    def _recorded(self, rollouts: Any) -> Any:
        if self.number == 5:
            rollouts = [self.before, *rollouts[1:]]
        found = super()._recorded(rollouts)
        self.before = replace(rollouts[0], block=_copied(rollouts[0].block))
        return found


class SwapsGroups(ScheduledSampler):
    """Records two groups in each other's place."""

    def _recorded(self, rollouts: Any) -> Any:
        return super()._recorded([rollouts[1], rollouts[0], *rollouts[2:]])


class LosesTickets(ScheduledSampler):
    """Does not issue the tickets of a lost host again."""

    def _recover(self, lost: HostLost) -> None:
        send, self._send = self._send, lambda group, ticket: None  # type: ignore[method-assign]
        super()._recover(lost)
        self._send = send  # type: ignore[method-assign]


class RepeatsReceived(ScheduledSampler):
    """Issues all tickets of a lost host again, also those whose rollouts were received, from the state after these."""

    def _recover(self, lost: HostLost) -> None:
        super()._recover(lost)
        for group in self.crew.groups[lost.host]:
            for ticket in self._pending[group]:
                self._send(group, ticket)


def _copied(block: Any) -> Any:
    return replace(block, obs=block.obs.copy())


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(
    "faulty", [OlderVersion, StaleState, RecordsTwice, SwapsGroups, LosesTickets, RepeatsReceived]
)
def test_a_faulty_scheduler_is_found_out(faulty: Callable[..., ScheduledSampler], lag: int):
    frequent = Trouble(noise=0.3, deaths_per_hour=5.0)
    wanted = setting(4, 8, lag=lag, trouble=frequent)
    assert found(VirtualRun(wanted).iterate(60)) == []
    wrong: list[str] = []
    try:
        wrong = found(VirtualRun(wanted, make_sampler=faulty).iterate(60))
    except AssertionError as error:
        wrong = [str(error)]
    assert wrong
