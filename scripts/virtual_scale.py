"""Runs the real scheduler with hundreds of hosts on a virtual clock, and compares its speed with the plan's model.

`make virtual-scale` writes `results/virtual_scale.md`. Hosts are those of `tests/support/virtual_crew.py`: they take
the time of the model, straggle, die, hang and restart. Every rollout that was learned from is checked; the exit code is
1 if one is missing, repeated, out of order, or acted with other parameters than it should have.
"""

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from rl_training.experiment.files import write_text
from rl_training.experiment.throughput import Costs, Linear
from rl_training.runtime.scheduled_sampler import TICKETS_AT_ONCE, Lag
from support.virtual_crew import QUIET, Trouble, VirtualCrew, free_problems, problems
from support.virtual_runs import Setting, VirtualRun

HOUR = 3600.0
LAGS: tuple[Lag, ...] = (0, 1, "free")
SIZES = ((64, 64), (64, 256), (512, 512))
"""Hosts and groups."""
TROUBLES = {
    "none": QUIET,
    "noise of 2%": Trouble(noise=0.02),
    "a host at half speed": Trouble(slow_host=2.0),
    "5% of hosts lost per hour": Trouble(deaths_per_hour=0.05),
    "2% stragglers": Trouble(straggling=0.02),
    "all of these": Trouble(noise=0.02, slow_host=2.0, deaths_per_hour=0.05, straggling=0.02),
}
SCHEDULES: tuple[tuple[Lag, int], ...] = ((0, 1), (1, 1), ("free", 2), ("free", 1))
"""Lag, and `max_policy_lag`, which only `free` knows."""
TIMED = (8, 64, 512, 2048)
"""Hosts for which the scheduler's own time is measured."""


def costs(groups: int) -> Costs:
    """Return invented costs: a rollout takes about six seconds, an update four."""
    return Costs(
        num_envs=groups * 8,
        num_steps=128,
        step=Linear(2e-3, 5e-3),
        act=Linear(1e-3, 5e-4),
        record=Linear(1e-4, 1e-5),
        update=4.0,
        receive=0.05,
        snapshot=Linear(1e-3, 1e-4),
        message=2e-3,
        parameter_bytes=10**7,
        copy_per_byte=1e-10,
    )


@dataclass(frozen=True)
class Found:
    """What came of one run."""

    setting: Setting
    trouble: str
    iterations: int
    steps_per_second: float
    restarts: int
    lost_rollouts: int
    dropped: int
    largest_lag: int
    problems: list[str]

    @property
    def ratio(self) -> float:
        """Virtual speed over the prediction, which knows no trouble."""
        return self.steps_per_second / self.setting.prediction().steps_per_second


def tried(setting: Setting, name: str, hours: float) -> Found:
    """Run one setting, and check all that it learned from."""
    run = VirtualRun(setting).iterate_for(hours * HOUR)
    learned, groups = run.source.learned, setting.num_groups
    dropped, most = 0, int(setting.lag) if isinstance(setting.lag, int) else 0
    if setting.lag == "free":
        *wrong, (dropped, most) = free_problems(learned, groups, setting.max_policy_lag)
        if dropped != run.sampler.metrics()["rollout/dropped"]:
            wrong.append("dropped rollouts are not counted")
        if sum(run.crew.issued) != len(learned) * groups + dropped + TICKETS_AT_ONCE * groups:
            wrong.append("a ticket is neither learned from, dropped nor pending")
    else:
        wrong = list(problems(learned, groups, int(setting.lag), setting.costs.timesteps))
        alone = VirtualRun(replace(setting, num_hosts=1, trouble=QUIET)).iterate(len(learned))
        if any((ours != theirs).any() for ours, theirs in zip(learned, alone.source.learned, strict=True)):
            wrong.append("one undisturbed host learns from something else")
    return Found(
        setting,
        name,
        len(learned),
        run.steps_per_second,
        run.sampler.restarts,
        run.sampler.lost_rollouts,
        dropped,
        most,
        [str(each) for each in wrong],
    )


class TimedCrew(VirtualCrew):
    """Measures the real time that the scheduler does not spend itself."""

    spent = 0.0

    def _timed(self, name: str, *arguments: Any) -> Any:
        since = time.perf_counter()
        try:
            return getattr(super(), name)(*arguments)
        finally:
            self.spent += time.perf_counter() - since

    def publish(self, *arguments: Any) -> None:
        self._timed("publish", *arguments)

    def submit(self, *arguments: Any) -> None:
        self._timed("submit", *arguments)

    def receive(self, timeout: float) -> Any:
        return self._timed("receive", timeout)


def scheduling(hosts: int, lag: Lag) -> float:
    """Return the microseconds that the scheduler takes per rollout: the least of five, as others use the machine."""
    run = VirtualRun(
        Setting(costs=costs(hosts), num_groups=hosts, num_hosts=hosts, lag=lag), make_crew=TimedCrew
    )
    iterations = max(4096 // hosts, 4)
    found = []
    for _ in range(5):
        before, since = run.crew.spent, time.perf_counter()  # type: ignore[attr-defined]
        run.iterate(iterations)
        own = time.perf_counter() - since - (run.crew.spent - before)  # type: ignore[attr-defined]
        found.append(own / iterations / hosts * 1e6)
    return min(found)


def slowest(hosts: int, groups: int) -> float:
    """Return how many times its usual time the slowest host needs on average if 2% of rollouts take ten times as long.

    The largest of `hosts` sums of `groups / hosts` rollouts.
    """
    own = groups // hosts
    chances = [1.0]  # of 0, 1, 2, ... stragglers among the rollouts of a host
    for _ in range(own):
        chances = [
            0.98 * (chances[k] if k < len(chances) else 0) + 0.02 * (chances[k - 1] if k else 0)
            for k in range(len(chances) + 1)
        ]
    at_most, expected, before = 0.0, 0.0, 0.0
    for count, chance in enumerate(chances):
        at_most += chance
        expected += (at_most**hosts - before) * (own + 9 * count) / own
        before = at_most**hosts
    return expected


def expected_with_stragglers(setting: Setting) -> float:
    """Return the expected ratio to the prediction at lag 0, where every iteration waits for the slowest host."""
    known = setting.costs
    seconds = known.timesteps / setting.prediction().steps_per_second
    collecting = seconds - known.update - known.receive - 2 * known.parameter_bytes * known.copy_per_byte
    collecting -= known.message
    return seconds / (seconds + (slowest(setting.num_hosts, setting.num_groups) - 1) * collecting)


def told_lag(setting: Setting) -> str:
    """Return the lag as text; `free` with its bound."""
    return f"free, at most {setting.max_policy_lag}" if setting.lag == "free" else str(setting.lag)


def report(found: list[Found], timed: dict[tuple[int, Lag], float], hours: float) -> str:
    """Return `results/virtual_scale.md`."""
    rollouts = sum(each.iterations * each.setting.num_groups for each in found)
    bad = sum(bool(each.problems) for each in found)
    steady = [each.ratio for each in found if each.trouble == "none"]
    waits = [each for each in found if each.trouble == "2% stragglers" and each.setting.lag == 0]
    lines = [
        "# The scheduler with hundreds of hosts, on a virtual clock",
        "",
        f"`make virtual-scale`: the real `ScheduledSampler`, {hours:g} virtual hours per row, with hosts that exist "
        "only in an event queue. They take the time of the plan's model (about six seconds per rollout of a group, "
        "four per update). It says nothing about the speed of a network, of real processes or of environments.",
        "",
        f"**{rollouts:,} rollouts were learned from; {bad} of {len(found)} rows have a problem.** At lag 0 and 1, "
        "every group's rollouts were learned from once and in order, each acted with exactly the parameters that its "
        "lag says, and what was recorded is what one undisturbed host records. At lag free, the lag stayed within "
        "`max_policy_lag`, and every ticket was learned from, dropped and counted, or pending.",
        "",
        "## Speed beside the plan's prediction",
        "",
        f"Without trouble the ratio differs from 1 by at most {max(abs(1 - ratio) for ratio in steady):.2%}: at lag 1 "
        "and free, nothing overlaps with the first rollout.",
        "",
        "The model assumes that all rollouts take the same time, and that no host is lost. What that leaves out:",
        "",
        "- Every iteration needs a rollout of every group, so the slowest host sets the pace, at any lag: one host at "
        "half speed costs as much as if all were.",
        "- The more hosts, the likelier that one of them straggles. At lag 0 the expected ratio can be calculated: "
        + "; ".join(
            f"{each.setting.num_hosts} hosts with {each.setting.num_groups} groups "
            f"{expected_with_stragglers(each.setting):.2f} (found {each.ratio:.2f})"
            for each in waits
        )
        + ".",
        f"- With lag free, a group has {TICKETS_AT_ONCE} tickets at a time, so its lag is at most {TICKETS_AT_ONCE}, "
        f"and a `max_policy_lag` of {TICKETS_AT_ONCE} or more drops nothing. With 1, early rollouts are dropped "
        "and collected again while the learner waits, so free may be slower than lag 1.",
        "- Several groups per host average over more rollouts, so a straggler costs less.",
        "- A lost host costs an iteration its restart (5 s) and the repeated rollouts; one that hangs, 60 s of silence "
        "first. A quarter of the lost hosts hang.",
        "",
        "| hosts | groups | lag | trouble | steps/s predicted | found | ratio | iterations | restarts | repeated | "
        "dropped | largest lag |",
        "|---" * 12 + "|",
    ]
    for each in found:
        wanted = each.setting
        problem = f" **{each.problems[0]}**" if each.problems else ""
        lines.append(
            f"| {wanted.num_hosts} | {wanted.num_groups} | {told_lag(wanted)} | {each.trouble}{problem} | "
            f"{wanted.prediction().steps_per_second:,.0f} | {each.steps_per_second:,.0f} | {each.ratio:.3f} | "
            f"{each.iterations} | {each.restarts} | {each.lost_rollouts} | "
            f"{each.dropped:,} | {each.largest_lag} |"
        )
    lines += [
        "",
        "*Repeated*: how often a group had to collect again what was under way when its host was lost.",
        "",
        "## The scheduler's own time",
        "",
        "Real microseconds per rollout, without those of the crew: tickets, answers, and joining the blocks of eight "
        "tiny environments per group. The least of five measurements.",
        "",
        "| hosts | " + " | ".join(f"lag {lag}" for lag in LAGS) + " |",
        "|---" * (len(LAGS) + 1) + "|",
    ]
    for hosts in TIMED:
        lines.append(f"| {hosts} | " + " | ".join(f"{timed[hosts, lag]:.1f}" for lag in LAGS) + " |")
    return "\n".join(lines) + "\n"


def main(hours: float = 2.0, output: str = str(ROOT / "results" / "virtual_scale.md")) -> int:
    """Try every row and write the table; the exit code is 1 if a rollout was not what it should be."""
    found = []
    for hosts, groups in SIZES:
        for lag, most in SCHEDULES:
            for name, trouble in TROUBLES.items():
                setting = Setting(
                    costs=costs(groups),
                    num_groups=groups,
                    num_hosts=hosts,
                    lag=lag,
                    max_policy_lag=most,
                    trouble=trouble,
                    seed=1,
                )
                found.append(tried(setting, name, hours))
                print(
                    f"{hosts} hosts, {groups} groups, lag {told_lag(setting)}, {name}: ratio {found[-1].ratio:.3f}, "
                    f"{found[-1].restarts} restarts, {found[-1].problems[:1] or 'good'}",
                    flush=True,
                )
    timed = {(hosts, lag): scheduling(hosts, lag) for hosts in TIMED for lag in LAGS}
    write_text(Path(output), report(found, timed, hours))
    return int(any(each.problems for each in found))


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
