"""Measures what rollouts from other processes cost, besides collecting them: with real processes, for an instant.

Tickets, answers and states are packed and unpacked, processes wake up, and what was in a core's cache is not there any
more. On short rollouts that is more than the environments take, and adding up its parts predicts far less.
"""

import statistics
import time
from typing import Any, NamedTuple

from rl_training.config import TrainConfig
from rl_training.core.types import Progress
from rl_training.experiment.building import UserObjects, build_parts
from rl_training.experiment.hosting import open_engine

MOST_ROUNDS = 200
LONG = 0.05
"""Seconds of an update after which another one makes the caches no colder: it is left out."""


class Rounds(NamedTuple):
    """Rounds of one rollout of every group, which two samplers collect at the same time if there are two groups."""

    groups: int
    wall: float
    """Seconds of a round, from the tickets until it is recorded."""
    handling: float
    """Seconds of the run's own process in it: waiting takes none."""


def measured_rounds(config: TrainConfig, given: UserObjects, *, update: float, seconds: float) -> Rounds:
    """Collect with a process per group for some seconds; `config` is that of one process, `update` its seconds.

    Updates take turns with the rounds, as in a run, unless they are long.
    """
    groups = min(2, config.num_envs)
    placed = config.with_overrides(engine="process", env_groups=groups, num_samplers=groups)
    with open_engine(placed, given) as engine:
        parts: Any = build_parts(placed, engine.spec, given)
        sampler = engine.make_sampler(parts.actor, parts.source)
        assert sampler is not None
        sampler.start()
        progress, found = Progress(total_timesteps=config.total_timesteps), list[tuple[float, float]]()
        num_steps, started = parts.source.steps_per_collect, time.perf_counter()
        while len(found) < 3 or (time.perf_counter() - started < seconds and len(found) < MOST_ROUNDS):
            before, working = time.perf_counter(), time.thread_time()
            sampler.collect(num_steps, progress)
            found.append((time.perf_counter() - before, time.thread_time() - working))
            for batch in parts.source.batches(progress):
                if update < LONG:
                    parts.source.feedback(batch, parts.learner.update(batch, progress))
        walls, handling = zip(*found[1:], strict=True)  # the first is slower
        return Rounds(groups, statistics.mean(walls), statistics.median(handling))
