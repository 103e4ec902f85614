"""Whole runs on a virtual clock: the real scheduler, a learner that only takes time, and a record of what it saw."""

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from rl_training.core.blocks import Block
from rl_training.core.packing import PackedModule
from rl_training.core.types import Array, Progress, State
from rl_training.experiment.throughput import Costs, Layout, Prediction, predict
from rl_training.runtime.scheduled_sampler import TICKETS_AT_ONCE, Lag, ScheduledSampler
from support.virtual_crew import QUIET, Trouble, VirtualCrew


class CountingPolicy(nn.Module):
    """A policy whose parameters are the number of its updates."""

    def __init__(self) -> None:
        super().__init__()
        self.updates = nn.Buffer(torch.zeros((), dtype=torch.int64))


class RecordingSource:
    """Keeps what was recorded, and after how many records rows were forgotten."""

    def __init__(self, steps_per_collect: int) -> None:
        self.steps_per_collect = steps_per_collect
        self.learned: list[Array] = []
        self.forgotten: list[tuple[int, list[int]]] = []

    def record_block(self, block: Block) -> None:
        assert not isinstance(block.obs, dict)
        self.learned.append(block.obs[0].copy())

    def forget(self, rows: Sequence[int]) -> None:
        self.forgotten.append((len(self.learned), list(rows)))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One virtual run."""

    costs: Costs
    num_groups: int
    num_hosts: int
    lag: Lag = 0
    max_policy_lag: int = 2
    trouble: Trouble = QUIET
    seed: int = 0

    def prediction(self) -> Prediction:
        """Return what the plan predicts, on a core for every host and one for the learner."""
        layout = Layout(
            engine="process",
            env_groups=self.num_groups,
            lag=1 if self.lag == "free" else int(self.lag),
            num_samplers=self.num_hosts,
        )
        return predict(self.costs, layout, self.num_hosts + 1)


@dataclass(frozen=True)
class Checkpoint:
    """All that another run needs to go on."""

    sampler: State
    updates: int
    progress: Progress
    learned: list[Array]


@dataclass
class VirtualRun:
    """A run that collects, learns for as long as an update takes, and goes on."""

    setting: Setting
    checkpoint: Checkpoint | None = None
    make_sampler: Callable[..., ScheduledSampler] = ScheduledSampler
    make_crew: Callable[..., VirtualCrew] = VirtualCrew
    progress: Progress = field(default_factory=lambda: Progress(total_timesteps=2**62))

    def __post_init__(self) -> None:
        setting = self.setting
        slots = (TICKETS_AT_ONCE if setting.lag == "free" else int(setting.lag)) + 1
        self.crew = self.make_crew(
            setting.costs,
            setting.num_groups,
            setting.num_hosts,
            slots=slots,
            trouble=setting.trouble,
            seed=setting.seed,
        )
        self.policy, self.source = CountingPolicy(), RecordingSource(setting.costs.num_steps)
        source: Any = self.source
        self.sampler = self.make_sampler(
            self.crew,
            [self.crew.size] * setting.num_groups,
            source,
            PackedModule(self.policy),
            lag=setting.lag,
            max_policy_lag=setting.max_policy_lag,
            max_restarts=2**31,
            clock=self.crew.clock,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of restarts
            if self.checkpoint is None:
                self.sampler.start()
            else:
                self.policy.updates.fill_(self.checkpoint.updates)
                self.progress = self.checkpoint.progress
                self.source.learned = list(self.checkpoint.learned)
                assert self.sampler.load_state_dict(copy.deepcopy(self.checkpoint.sampler)) == []
        self.began = self.crew.now

    def iterate(self, iterations: int) -> "VirtualRun":
        """Collect and learn."""
        costs = self.setting.costs
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(iterations):
                collected = self.sampler.collect(costs.num_steps, self.progress)
                self.progress = self.progress.advanced(timesteps=collected.timesteps, updates=1)
                self.crew.pass_time(costs.receive + costs.update)
                self.policy.updates += 1
        return self

    def iterate_for(self, seconds: float) -> "VirtualRun":
        """Collect and learn until so many virtual seconds have passed."""
        end = self.crew.now + seconds
        while self.crew.now < end:
            self.iterate(1)
        return self

    @property
    def steps_per_second(self) -> float:
        """Environment steps per virtual second, without the start of the hosts."""
        return self.progress.timesteps / (self.crew.now - self.began)

    def save(self) -> Checkpoint:
        """Return a checkpoint; nobody is waited for."""
        state = copy.deepcopy(self.sampler.state_dict())
        return Checkpoint(state, int(self.policy.updates), self.progress, list(self.source.learned))
