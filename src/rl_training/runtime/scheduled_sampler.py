"""Collects with groups of environments: which rollout acts with which parameters, and what to do if a host is lost.

Results depend on the groups and on the lag, never on the number of hosts, on where they are, or on which of them
answers first.
"""

import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import torch

from rl_training.core.blocks import joined_blocks
from rl_training.core.errors import RunFault
from rl_training.core.packing import PackedModule
from rl_training.core.protocols import ExperienceSource
from rl_training.core.rows import Rows
from rl_training.core.seeding import global_generators, set_global_generators
from rl_training.core.state import as_arrays, as_tensors
from rl_training.core.types import Array, Collected, ObsArray, Progress, State, joined, leaves
from rl_training.runtime.crews import Crew, HostLost
from rl_training.runtime.groups import Rollout, Start, Started, Ticket
from rl_training.runtime.sampler import saved_groups
from rl_training.runtime.steps import StepContext

Lag = int | Literal["free"]
SECONDS_BETWEEN_LOOKS = 1.0
MAX_FAILURES_IN_A_ROW = 5
"""Times that a host may be lost before it has finished a single rollout."""
TICKETS_AT_ONCE = 2
"""lag free: tickets that a group has at a time, so that it never waits."""


@dataclass
class LagMeter:
    """Lags of the rollouts since the last row of metrics, in updates."""

    least: int = 0
    total: int = 0
    most: int = 0
    count: int = 0

    def add(self, lag: int) -> None:
        self.least = min(self.least, lag) if self.count else lag
        self.most = max(self.most, lag) if self.count else lag
        self.total, self.count = self.total + lag, self.count + 1

    def drain(self) -> dict[str, float]:
        """Return the metrics, and begin again."""
        if not self.count:
            return {}
        found = {
            "rollout/policy_lag_min": float(self.least),
            "rollout/policy_lag_mean": self.total / self.count,
            "rollout/policy_lag_max": float(self.most),
        }
        self.__init__()  # type: ignore[misc]  # all fields at their defaults
        return found


@dataclass
class WorkMeter:
    """How samplers and learner spent their time since the last row of metrics, in seconds."""

    since: float
    busy: float = 0.0
    """All hosts together."""
    waited: float = 0.0
    """The learner, for rollouts."""
    learning: float = 0.0
    sampled: int = 0
    """Timesteps."""

    def drain(self, now: float, hosts: int) -> dict[str, float]:
        """Return the metrics, and begin again."""
        seconds = max(now - self.since, 1e-9)
        found = {
            "time/sampled_fps": self.sampled / max(self.busy / hosts, 1e-9),
            "time/learned_fps": self.sampled / max(self.learning, 1e-9),
            "time/learner_waits": min(self.waited / seconds, 1.0),
            "time/samplers_wait": max(1.0 - self.busy / (seconds * hosts), 0.0),
        }
        self.__init__(now)  # type: ignore[misc]  # all other fields at their defaults
        return found


class ScheduledSampler:
    """Collects with the hosts of a crew.

    With lag 0, rollout k acts with the parameters after k updates, and the learner waits for it. With lag 1, it acts
    with those after k - 1 updates and is collected during an update. With lag `free`, groups collect all the time, with
    the newest parameters; results then depend on the speed of the machine.

    `states` are those of the groups before the oldest rollout that has not been learned from. A checkpoint holds them,
    so it never waits for the hosts, and a lost host begins with them again.
    """

    def __init__(
        self,
        crew: Crew,
        group_sizes: Sequence[int],
        source: ExperienceSource[Any],
        policy: PackedModule,
        *,
        lag: Lag = 0,
        max_policy_lag: int = 1,
        max_restarts: int = 0,
        resumable: bool = True,
        read_statistics: Callable[[State], list[Any]] = lambda state: [],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read_statistics` returns the wrappers' statistics in the state of a group's environments.

        `clock` returns the seconds that waiting times are measured with.
        """
        self.crew, self.group_sizes, self.source, self.policy = crew, group_sizes, source, policy
        self.lag, self.max_policy_lag, self.max_restarts = lag, max_policy_lag, max_restarts
        self._resumable, self._read_statistics, self._clock = resumable, read_statistics, clock
        self._rows = Rows.one_per_env(sum(group_sizes))
        self._first = [0, *accumulate(group_sizes)][:-1]
        self._host_of = {group: host for host, groups in enumerate(crew.groups) for group in groups}
        self.states: list[State] = [{} for _ in group_sizes]
        self._start = Start()
        self._pending: list[deque[Ticket]] = [deque() for _ in group_sizes]
        """Tickets of each group whose rollouts have not been learned from."""
        self._held = False
        """Whether the newest tickets have not been sent yet."""
        self._received: dict[tuple[int, int], Rollout] = {}
        self._due = [0] * len(group_sizes)
        """The number of the next rollout that each group returns."""
        self._broken: dict[tuple[int, int], set[int]] = {}
        """Environments that begin a new episode with a rollout, by its group and number."""
        self._packed: dict[int, Array] = {}
        """Parameters that a pending ticket may need again."""
        self.version = self.number = 0
        self._numbers = [0] * len(group_sizes)
        """lag free: the number of the next ticket of each group."""
        self._on_step: Callable[[StepContext], None] | None = None
        self._failures = [0] * len(crew.groups)
        self._timesteps = self.restarts = self.lost_rollouts = 0
        self._dropped = 0.0
        self._lags, self._work = LagMeter(), WorkMeter(clock())
        self._returned: float | None = None
        """When the learner got its last rollout."""
        self.spans: deque[tuple[int, float, float]] | None = None
        """Receives (group, start, end) of every rollout, for a timeline."""

    @property
    def rows(self) -> Rows:
        return self._rows

    @property
    def resumable(self) -> bool:
        return self._resumable

    @property
    def shares_generators(self) -> bool:
        """Whether the environments use the learner's state of the global generators, as in a run without groups."""
        return self.lag == 0 and len(self.group_sizes) == 1

    def watch(self, on_step: Callable[[StepContext], None], timesteps: int) -> None:
        """Pass every step of all environments to `on_step`, after its rollout was recorded."""
        self._on_step, self._timesteps = on_step, timesteps

    def change_seed(self, *stream: int) -> None:
        self._start = replace(self._start, seed_stream=stream)

    def use_statistics(self, statistics: list[Any], *, frozen: bool = True) -> None:
        """Set the wrappers' running statistics at the start; environment j takes entry j modulo their number."""
        assert not frozen, "the environments of training update their statistics"
        self._start = replace(self._start, statistics=statistics)

    def statistics(self) -> list[Any]:
        """Return the wrappers' running statistics of all environments."""
        return [each for state in self.states for each in self._read_statistics(as_tensors(state["envs"]))]

    def start(self) -> None:
        self._begin([None] * len(self.group_sizes))

    def _begin(self, states: Sequence[State | None]) -> list[int]:
        """Let all groups begin; return the environments that could not be restored."""
        lost: dict[int, list[int]] = {}
        if self.shares_generators:
            self._start = replace(self._start, generators=as_arrays(global_generators()))
        for group, state in enumerate(states):
            self.crew.begin(group, self._start_of(group, state))
        waiting = set(range(len(states)))
        while waiting:
            answer = self.crew.receive(SECONDS_BETWEEN_LOOKS)
            if isinstance(answer, Started):
                waiting.discard(answer.group)
                self.states[answer.group] = answer.state
                lost[answer.group] = [self._first[answer.group] + env for env in answer.lost]
                if answer.generators is not None:
                    set_global_generators(as_tensors(answer.generators))
                for told in answer.warnings:
                    told.show()
            elif isinstance(answer, HostLost):
                self._replace_host(answer)
                for group in self.crew.groups[answer.host]:
                    waiting.add(group)
                    self.crew.begin(group, self._start_of(group, states[group]))
        return sorted(env for envs in lost.values() for env in envs)

    def _start_of(self, group: int, state: State | None) -> Start:
        chosen: list[Any] = []
        if statistics := self._start.statistics:
            chosen = [statistics[number % len(statistics)] for number in self._envs_of(group)]
        return replace(self._start, state=state, statistics=chosen)

    def collect(self, num_steps: int, progress: Progress) -> Collected:
        """Return the next rollout of every group; with a lag, begin the one after it first."""
        self._count_learning()
        self._publish()
        groups = range(len(self.states))
        if self.lag == "free":
            for group in groups:
                self._fill_queue(group, num_steps, progress)
            rollouts = [self._next_fresh(group, num_steps, progress) for group in groups]
        else:
            self._issue(num_steps, progress)
            rollouts = [self._next(group) for group in groups]
        self._forget_old_parameters()
        collected = self._recorded(rollouts)
        if self.lag == "free":  # not before: the new rollouts overwrite those that were just recorded
            for group in groups:
                self._fill_queue(group, num_steps, progress)
        self._returned = self._clock()
        return collected

    def _count_learning(self) -> None:
        """Add the time since the learner got a rollout, or since the last call."""
        if self._returned is not None:
            now = self._clock()
            self._work.learning += now - self._returned
            self._returned = now

    def _publish(self) -> None:
        """Make the learner's parameters available to the hosts."""
        self.version = self.number
        self._packed[self.version] = self.policy.pack()
        self.crew.publish(self.version, self._packed[self.version])
        self.number += 1

    def _forget_old_parameters(self) -> None:
        needed = {ticket.version for queue in self._pending for ticket in queue}
        self._packed = {version: packed for version, packed in self._packed.items() if version in needed}

    def _issue(self, num_steps: int, progress: Progress) -> None:
        """Send the tickets of this rollout, if there are none yet, and with lag 1 those of the next one."""
        if not self._pending[0]:
            generators = as_arrays(global_generators()) if self.shares_generators else None
            self._add_tickets(Ticket(self.version, self.version, num_steps, progress, generators=generators))
        if self._held:  # of a resumed run, whose budget may be another one
            self._pending = [
                deque(_with_total(ticket, progress) for ticket in queue) for queue in self._pending
            ]
            self._send_newest()
        if self.lag == 1:
            # the exact number of timesteps is not known before the rollout; it counts every row
            nominal = progress.advanced(timesteps=num_steps * len(self._rows))
            self._add_tickets(Ticket(self.version + 1, self.version, num_steps, nominal))
            if not nominal.done:  # otherwise the run ends, and only a resumed one needs it
                self._send_newest()

    def _add_tickets(self, ticket: Ticket) -> None:
        for queue in self._pending:
            queue.append(ticket)
        self._held = True

    def _send_newest(self) -> None:
        self._held = False
        for group in range(len(self._pending)):
            self._send(group, self._pending[group][-1])

    def _send(self, group: int, ticket: Ticket) -> None:
        self.crew.submit(group, replace(ticket, watched=self._on_step is not None))

    def _fill_queue(self, group: int, num_steps: int, progress: Progress) -> None:
        """Give a group as many tickets as it may have; each acts with the parameters that are the newest then."""
        queue = self._pending[group]
        while len(queue) < TICKETS_AT_ONCE:
            number = self._numbers[group]
            self._numbers[group] += 1
            queue.append(Ticket(number, None, num_steps, progress))
            self._send(group, queue[-1])

    def _next_fresh(self, group: int, num_steps: int, progress: Progress) -> Rollout:
        """Return the next rollout of a group that is not too old; older ones are dropped."""
        while True:
            rollout = self._next(group)
            if self.version - rollout.version <= self.max_policy_lag:
                return rollout
            self._dropped += 1
            self.source.forget(self._rows.of(self._envs_of(group)))  # its last transitions are not continued
            self._fill_queue(group, num_steps, progress)

    def _envs_of(self, group: int) -> range:
        first = self._first[group]
        return range(first, first + self.group_sizes[group])

    def _next(self, group: int) -> Rollout:
        """Wait for the oldest pending rollout of a group."""
        key = group, self._pending[group][0].number
        since = self._clock()
        while key not in self._received:
            self._receive()
        self._work.waited += self._clock() - since
        self._pending[group].popleft()
        rollout = self._received.pop(key)
        if envs := self._broken.pop(key, None):  # not before: the rollout ahead of it must have been recorded
            self.source.forget(self._rows.of(sorted(envs)))
        self.states[group] = rollout.state  # at once: its host may be lost while another group is waited for
        return rollout

    def _receive(self) -> None:
        answer = self.crew.receive(SECONDS_BETWEEN_LOOKS)
        if isinstance(answer, Rollout):
            self._received[answer.group, answer.number] = answer
            self._due[answer.group] = answer.number + 1
            self._failures[self._host_of[answer.group]] = 0
            self._work.busy += answer.ended - answer.started
            for told in answer.warnings:
                told.show()
            if self.spans is not None:
                self.spans.append((answer.group, answer.started, answer.ended))
        elif isinstance(answer, Started):  # after a restart
            self._report_lost(answer)
        elif isinstance(answer, HostLost):
            self._recover(answer)

    def _recover(self, lost: HostLost) -> None:
        """Replace a host, and let its groups repeat what has not been received."""
        self._replace_host(lost)
        for group in self.crew.groups[lost.host]:
            state, missing = self.states[group], list(self._pending[group])
            if self._held:
                missing.pop()
            while missing and (rollout := self._received.get((group, missing[0].number))) is not None:
                state, missing = rollout.state, missing[1:]
            # only environments that cannot be restored use it; they must not repeat their first episodes
            stream = (*self._start.seed_stream, self._due[group], self.restarts)
            self.crew.begin(group, replace(self._start_of(group, state), seed_stream=stream))
            for ticket in missing:
                self._send(group, ticket)
            self.lost_rollouts += bool(missing)

    def _replace_host(self, lost: HostLost) -> None:
        self.restarts += 1
        self._failures[lost.host] += 1
        groups = list(self.crew.groups[lost.host])
        named = f"group {groups[0]}" if len(groups) == 1 else f"groups {', '.join(map(str, groups))}"
        what = f"sampler {lost.host} ({named}) {lost.reason}"
        if self.restarts > self.max_restarts:
            raise RunFault(
                f"{what}, and max_sampler_restarts is {self.max_restarts}; use a larger number, or engine 'local' to "
                "see an error of the environment"
            )
        if self._failures[lost.host] > MAX_FAILURES_IN_A_ROW:
            raise RunFault(
                f"{what}, {MAX_FAILURES_IN_A_ROW + 1} times in a row without finishing a rollout; check the memory of "
                "the machine, and the environment with engine 'local'"
            )
        warnings.warn(f"{what}; restart {self.restarts} of {self.max_restarts}", stacklevel=2)
        self.crew.restart(lost.host)

    def _report_lost(self, started: Started) -> None:
        for told in started.warnings:
            told.show()
        if started.lost:
            envs = [self._first[started.group] + env for env in started.lost]
            self._broken.setdefault((started.group, self._due[started.group]), set()).update(envs)
            reason = "are not deterministic: replaying their actions led to another state"
            if not self._resumable:
                reason = "cannot be restored"
            warnings.warn(
                f"environments {envs} {reason}. They begin a new episode, so this run differs from an undisturbed one",
                stacklevel=2,
            )

    def _recorded(self, rollouts: Sequence[Rollout]) -> Collected:
        """Record the rollouts of all groups as one; return its counts and its episodes, by step and environment."""
        blocks = [rollout.block for rollout in rollouts if rollout.block is not None]
        self.source.record_block(blocks[0] if len(blocks) == 1 else joined_blocks(blocks))
        if (generators := rollouts[0].generators) is not None:
            set_global_generators(as_tensors(generators))
        for rollout in rollouts:
            self._lags.add(self.version - rollout.version)
        if self._on_step is not None:
            self._pass_steps([rollout.steps for rollout in rollouts])
        parts = [rollout.collected for rollout in rollouts]
        episodes = [
            (step, group, stats)
            for group, part in enumerate(parts)
            for step, stats in zip(part.ended_at, part.episodes, strict=True)
        ]
        episodes.sort(key=lambda each: each[:2])
        timesteps = sum(part.timesteps for part in parts)
        self._work.sampled += timesteps
        return Collected(
            timesteps,
            [stats for _, _, stats in episodes],
            frozenset().union(*(part.info_names for part in parts)),
            [step for step, _, _ in episodes],
        )

    def _pass_steps(self, by_group: Sequence[Sequence[StepContext]]) -> None:
        assert self._on_step is not None
        for parts in zip(*by_group, strict=True):
            self._timesteps += sum(int(part.valid.sum()) for part in parts)
            self._on_step(joined_steps(parts, self._timesteps))

    def metrics(self) -> dict[str, float]:
        """Return lag, waiting times, rates and losses since the last call."""
        self._count_learning()
        found = self._work.drain(self._clock(), len(self.crew.groups)) | {
            "time/sampler_restarts": float(self.restarts),
            "time/lost_rollouts": float(self.lost_rollouts),
        }
        if self.lag == "free":
            found["rollout/dropped"] = self._dropped
        return found | (self._lags.drain() if self.lag != 0 else {})

    def state_dict(self) -> State:
        """Return the states of the groups before the next rollout, and with lag 1 its ticket and parameters.

        A single group without lag has the state of a `LocalSampler`.
        """
        states = [as_tensors(state) for state in self.states]
        if len(states) == 1 and self.lag == 0:
            found: State = states[0]
            return found
        state: State = {"groups": {str(group): own for group, own in enumerate(states)}}
        if self.lag != 0:
            state["lags"] = asdict(self._lags)
        if self.lag == 1 and self._pending[0]:
            ticket = self._pending[0][0]
            assert ticket.version is not None
            state["ticket"] = {
                "number": ticket.number,
                "version": ticket.version,
                "num_steps": ticket.num_steps,
                "progress": asdict(ticket.progress),
            }
            state["parameters"] = torch.from_numpy(self._packed[ticket.version])
        return state

    def load_state_dict(self, state: State) -> list[int]:
        """Continue from a saved state; return the environments that could not be restored.

        If the environments were divided into other groups, all of them begin new episodes. A single group continues as
        in a `LocalSampler`, whatever its size was: its explorer has its state.
        """
        states = saved_groups(state)
        alone = self.shares_generators and len(states) == 1
        if not alone and [_group_size(own) for own in states] != list(self.group_sizes):
            self.start()
            return list(range(len(self._rows)))
        lost = self._begin([as_arrays(own) for own in states])
        if self.lag != 0 and "lags" in state:
            self._lags = LagMeter(**state["lags"])
        saved = state.get("ticket")
        # an agent that continues with other num_steps begins as a new run does
        if self.lag == 1 and saved is not None and int(saved["num_steps"]) == self.source.steps_per_collect:
            progress = Progress(**saved["progress"])
            ticket = Ticket(int(saved["number"]), int(saved["version"]), int(saved["num_steps"]), progress)
            assert ticket.version is not None
            self.number = ticket.number
            self._due = [ticket.number] * len(states)
            self._packed[ticket.version] = state["parameters"].numpy().copy()
            self.crew.publish(ticket.version, self._packed[ticket.version])
            self._add_tickets(ticket)
        return lost


def _group_size(state: State) -> int:
    """Return the number of environments in the saved state of a group; those of native backends have no episodes."""
    episodes = state["envs"].get("episodes")
    return len(state["episodes"]["lengths"] if episodes is None and "episodes" in state else episodes or ())


def _with_total(ticket: Ticket, progress: Progress) -> Ticket:
    """Return a ticket of a run whose budget is that of `progress`."""
    return replace(ticket, progress=replace(ticket.progress, total_timesteps=progress.total_timesteps))


def joined_steps(parts: Sequence[StepContext], timesteps: int) -> StepContext:
    """Return the same step of several groups as one step of all environments."""
    if len(parts) == 1:
        return replace(parts[0], timesteps=timesteps)
    names = ("actions", "rewards", "terminations", "truncations", "valid")
    masks = [part.action_masks for part in parts if part.action_masks is not None]
    return StepContext(
        timesteps=timesteps,
        observations=_joined_obs([part.observations for part in parts]),
        next_observations=_joined_obs([part.next_observations for part in parts]),
        infos=[info for part in parts for info in part.infos],
        action_masks=np.concatenate(masks) if masks else None,
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names},
    )


def _joined_obs(parts: Sequence[ObsArray]) -> ObsArray:
    by_key = [dict(leaves(part)) for part in parts]
    return joined({key: np.concatenate([each[key] for each in by_key]) for key in by_key[0]})
