"""Measures the costs of a config on this machine, for the model in `throughput.py`.

It takes a few seconds: random policies play in groups of several sizes, and a new learner updates on what they
recorded, repeated to a whole rollout, in this process with one thread. Then two samplers and two learners in processes
of their own show what those cost (`process_costs.py`). Nothing is written.
"""

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rl_training.algorithms.components import Parts, StatefulLearner
from rl_training.algorithms.learner import BaseLearner
from rl_training.algorithms.optimizers import FlatOptimizer
from rl_training.algorithms.shards import Shards
from rl_training.config import TrainConfig
from rl_training.core.blocks import COLUMNS, Block
from rl_training.core.cpu import usable_cores
from rl_training.core.errors import ConfigError, UserError
from rl_training.core.one_thread import one_thread
from rl_training.core.protocols import ExperienceSource, Learner
from rl_training.core.seeding import callers_generators_kept, seed_global_generators
from rl_training.core.state import split_state
from rl_training.core.timing import heard_by
from rl_training.core.types import Array, EnvSpec, Progress, joined, leaves
from rl_training.data.block_recorder import BlockRecorder, block_columns
from rl_training.envs.stepper_factory import training_stepper
from rl_training.experiment.agent_copies import copied_state
from rl_training.experiment.building import UserObjects, build_actor, build_parts, with_masks
from rl_training.experiment.learner_ranks.ranks import RankedLearner, sharded_learner, stateful_loss
from rl_training.experiment.process_costs import measured_rounds
from rl_training.experiment.resources import check_memory
from rl_training.experiment.threads import (
    WORTHWHILE,
    ThreadTrial,
    available_cores,
    largest_layer,
    thread_setter,
)
from rl_training.experiment.throughput import Costs, Layout, Linear, predict
from rl_training.runtime.profiler import Profiler
from rl_training.runtime.sampler import LocalSampler

SECONDS = 0.5
"""How long each measurement lasts, unless a single call takes longer."""
MAX_ENVS = 32
"""Most environments that are built; the costs of more are extrapolated."""
MAX_CHUNK, MAX_STEPS = 64, 2_000
"""Vector steps that are recorded as one block, and the most of a measurement."""
SECONDS_TO_START = 30.0
"""Longest wait for a second learner."""
MAX_REPLAY = 4_096
"""Rows of the replay buffer, if its batches are not larger; a full one may be slower to read."""
LONG_ROLLOUT = 4 * SECONDS
"""Seconds of a rollout beside which a message takes no time: it is not measured."""
USUAL_MESSAGE, USUAL_HANDLING, USUAL_EXCHANGE = 1e-3, 3e-4, 1e-4
"""Seconds that other processes cost where they are not measured."""
ONE_PROCESS: dict[str, Any] = {
    "engine": "local", "env_groups": 1, "lag": 0, "learner_shards": 1, "num_samplers": "auto", "num_learners": "auto",
    "num_threads": 1, "ray_address": None, "ray_resources": {}, "ray_placement": "spread",
}  # fmt: skip


def measure_costs(
    config: TrainConfig,
    given: UserObjects | None = None,
    progress: Callable[[str], None] = lambda text: None,
    *,
    keep_workers: bool = False,
) -> Costs:
    """Return the costs of a config, measured now; `progress` is called with what is being measured.

    Environments of the `async` backend are measured in this process. With `keep_workers` they stay in their own, so
    that one that hangs or crashes does no harm.
    """
    given = given or UserObjects()
    with callers_generators_kept(), one_thread():
        seed_global_generators(config.seed)
        config = with_masks(_one_process(config, keep_workers=keep_workers), given)
        groups = _measured_groups(config, given, progress)
        progress("updating")
        update = _measured_update(config, given, groups[-1])
        progress("copying")
        costs = _joined_costs(config, groups, update)
        if available_cores() < 2 or costs.step.of(config.num_envs) * costs.num_steps > LONG_ROLLOUT:
            return costs
        progress("collecting in other processes")
        return _with_processes(costs, config, given)


def _with_processes(costs: Costs, config: TrainConfig, given: UserObjects) -> Costs:
    """Return the costs with those of rollouts from other processes: what is not known from one process."""
    found = measured_rounds(config, given, update=costs.update, seconds=SECONDS)
    part = replace(costs, message=0.0, receive=0.0, update=0.0, prepare=0.0)
    layout = Layout(engine="process", env_groups=found.groups, num_samplers=found.groups)
    collecting = part.timesteps / predict(part, layout, available_cores()).steps_per_second
    message = max(found.wall - collecting - costs.receive, found.handling, 0.0)
    return replace(costs, message=message, handling=min(found.handling, message))


def _one_process(config: TrainConfig, *, keep_workers: bool) -> TrainConfig:
    """Return the config as one process runs it, with a small replay buffer that is learned from at once."""
    moved = config.env_backend == "async" and not keep_workers
    changes = ONE_PROCESS | ({"env_backend": "sync"} if moved else {})
    settings = config.algorithm
    if hasattr(settings, "buffer_size") and hasattr(settings, "learning_starts"):
        rows = max(MAX_REPLAY, 2 * getattr(settings, "batch_size", 1), 2 * config.num_envs)
        changes |= {"buffer_size": min(settings.buffer_size, rows), "learning_starts": 0}
    return config.with_overrides(**changes)


def _measured_groups(
    config: TrainConfig, given: UserObjects, progress: Callable[[str], None]
) -> list["_Group"]:
    """Return groups of several sizes; the last has all environments, or as many as can be stepped in a short time."""
    started = time.perf_counter()

    def measured(size: int) -> _Group:
        progress(f"stepping {size} environment{'s' if size > 1 else ''}")
        return _measured_group(config, given, size)

    if config.num_envs == 1:  # a second one, for the cost of one more
        return [measured(2), measured(1)]
    most = min(config.num_envs, MAX_ENVS)
    smallest = measured(max(most // 8, 1))
    affordable = int(SECONDS / max(smallest.step / smallest.size, 1e-6))
    most = min(most, max(affordable, 2 * smallest.size))
    largest, middle = measured(most), (smallest.size + most) // 2
    enough = time.perf_counter() - started > 4 * SECONDS or middle == smallest.size
    return [smallest, largest] if enough else [smallest, measured(middle), largest]


@dataclass(frozen=True)
class _Group:
    """Seconds of a vector step of a group, and what it recorded."""

    size: int
    spec: EnvSpec
    block: Block
    step: float
    act: float
    record: float
    snapshot: float


def _measured_group(config: TrainConfig, given: UserObjects, size: int) -> _Group:
    profiler = Profiler()
    with contextlib.closing(training_stepper(config, given.factory, num_envs=size)) as stepper:
        actor = build_actor(config, stepper.spec, given)
        num_steps = min(getattr(config.algorithm, "num_steps", MAX_CHUNK), MAX_CHUNK)
        layout = block_columns(stepper.spec, actor.explorer.columns, num_steps, size)
        recorder = BlockRecorder({name: np.zeros(*each) for name, each in layout.items()})
        sampler = LocalSampler(stepper, actor.explorer, recorder)
        sampler.start()
        progress = Progress(total_timesteps=config.total_timesteps)
        started = time.perf_counter()
        sampler.collect(1, progress)
        recorder.take()
        chunk = int(SECONDS / 4 / max(time.perf_counter() - started, 1e-6))
        chunk = max(1, min(chunk, num_steps))
        profiler.time_calls(stepper, "step", "env")
        for method in ("act", "after_step", "end_collect"):
            profiler.time_calls(actor.explorer, method, "act")
        for method in ("record_action", "record_outcome", "end_collect"):
            profiler.time_calls(recorder, method, "store")
        profiler.time_calls(recorder, "take", "store")
        steps, started = 0, time.perf_counter()
        while steps == 0 or (steps < MAX_STEPS and time.perf_counter() - started < SECONDS):
            sampler.collect(chunk, progress)
            block, steps = recorder.take(), steps + chunk
        snapshot = _usual_seconds(sampler.state_dict, SECONDS / 10)
        sections = profiler.report()["sections"]
        each = {name: sections[name]["seconds"] / steps for name in ("env", "act", "store")}
        return _Group(size, stepper.spec, block, each["env"], each["act"], each["store"], snapshot)


@dataclass(frozen=True)
class _Update:
    """Seconds of an update on one iteration, and how they divide."""

    num_steps: int
    whole: float
    prepare: float
    repeated: float
    receive: float
    gradient_steps: int
    gradient_bytes: int
    parameter_bytes: int
    takes_shards: bool
    threaded: float | None
    borrows: bool
    exchange: float
    factor: float
    """How many times as large the real iteration is."""
    prepare_factor: float
    """The same without epochs."""


@dataclass(frozen=True)
class _Timed:
    """Seconds of one iteration of a learner."""

    receive: float
    prepare: float
    update: float
    gradient_steps: float

    @property
    def whole(self) -> float:
        return self.prepare + self.update


def _measured_update(config: TrainConfig, given: UserObjects, group: _Group) -> _Update:
    """Return the costs of an update; a long one is shortened, and its costs are extrapolated."""
    settings: Any = config.algorithm
    epochs = used = getattr(settings, "update_epochs", 1)
    if hasattr(settings, "num_steps"):
        num_steps = settings.num_steps
        rows = num_steps * config.num_envs
        batched = hasattr(settings, "batch_size")
        unit = getattr(settings, "sequence_length", 1)  # num_steps is a multiple of it
        wanted = settings.rows_per_step(config.num_envs) if batched else rows
        least = -(-wanted // (group.size * unit)) * unit
        changes: dict[str, Any] = {"num_envs": group.size, "num_steps": least}
        short = changes | ({"update_epochs": 1} if epochs > 1 else {})
        first = _timed_updates(config.with_overrides(**short), given, group, once=True)
        times = 2 * SECONDS / max(first.whole, 1e-6)
        if epochs > 1:
            used = max(min(epochs, int(times)), 1)
            changes["update_epochs"] = used
        if batched:
            most = max(rows // group.size // unit * unit, least)
            changes["num_steps"] = min(least * max(int(times / epochs), 1), most)
        measured = config.with_overrides(**changes)
        factor = rows / (changes["num_steps"] * group.size)
    else:
        num_steps = max(getattr(settings, "train_freq", 1) // config.num_envs, 1)
        measured = config.with_overrides(num_envs=group.size)
    parts = build_parts(measured, group.spec, given)
    if not hasattr(settings, "num_steps"):
        factor = num_steps * config.num_envs / (parts.source.steps_per_collect * group.size)
    found = _timed_updates(measured, given, group, parts=parts)
    repeated = _repeated(measured, given, group, found)
    threaded = _threaded(measured, given, group)
    helps = threaded is not None and threaded < found.update
    return _Update(
        num_steps=num_steps,
        whole=found.whole,
        prepare=found.prepare,
        repeated=repeated,
        receive=found.receive,
        gradient_steps=max(round(found.gradient_steps * factor * epochs / used), 1),
        gradient_bytes=_gradient_bytes(parts.learner),
        parameter_bytes=_tensor_bytes(parts.learner.state_dict().get("model", {})),
        takes_shards=(takes_shards := _takes_shards(parts.learner)),
        threaded=threaded,
        borrows=helps and _borrows(measured, given, group),
        exchange=_exchange(measured, given, group, found, repeated) if takes_shards else USUAL_EXCHANGE,
        factor=factor * epochs / used,
        prepare_factor=factor,
    )


def _takes_shards(learner: StatefulLearner) -> bool:
    """Return whether the gradients of a learner can be divided; it cannot be used afterwards."""
    if not isinstance(learner, BaseLearner):
        return False
    try:
        learner.use_shards(Shards(2))
    except UserError:
        return False
    return True


def _repeated(config: TrainConfig, given: UserObjects, group: _Group, found: _Timed) -> float:
    """Return the part of an update that does not depend on the size of a batch, from an update with half of it."""
    settings: Any = config.algorithm
    name = "batch_size" if hasattr(settings, "batch_size") else "num_steps"
    size = getattr(settings, name, 1)
    if size < 4:
        return found.update
    try:
        half = _timed_updates(config.with_overrides(**{name: size // 2}), given, group)
    except ConfigError:
        return 0.0
    # rollouts have twice as many gradient steps of half the size, other updates as many
    ratio = max(found.gradient_steps, 1e-9) / max(half.gradient_steps, 1e-9)
    fixed = 2 * half.update * ratio - found.update
    return min(max(fixed, 0.0), found.update)


def _threaded(config: TrainConfig, given: UserObjects, group: _Group) -> float | None:
    """Return the seconds of gradient steps with two threads; None if the layers are small or there is one core."""
    if available_cores() < 2 or largest_layer(config, group.spec) < WORTHWHILE:
        return None
    parts = build_parts(config, group.spec, given)
    set_threads = thread_setter(config, group.spec, parts.learner.update_path)
    set_threads(2)
    try:
        return _timed_updates(config, given, group, parts=parts).update
    finally:
        set_threads(1)


def _borrows(config: TrainConfig, given: UserObjects, group: _Group) -> bool:
    """Return whether `num_threads: auto` may borrow a core: two threads give the bytes of one on this processor."""
    parts = build_parts(config, group.spec, given)
    set_threads = thread_setter(config, group.spec, parts.learner.update_path)
    trial = ThreadTrial(parts.learner, set_threads, 2)
    _timed_updates(config, given, group, parts=parts, updates=trial, once=True)
    return trial.exact


def _exchange(
    config: TrainConfig, given: UserObjects, group: _Group, whole: _Timed, repeated: float
) -> float:
    """Return what a gradient step takes longer if two processes compute its shards, measured with a real one."""
    one_process = stateful_loss(given.losses_for(config)) is not None  # it computes all shards
    if one_process or available_cores() < 2 or config.algorithm.rows_per_step(config.num_envs) < 2:
        return USUAL_EXCHANGE
    config = config.with_overrides(engine="process", learner_shards=2, num_learners=2)
    parts = build_parts(config, group.spec, given)
    with sharded_learner(config, group.spec, given, parts.learner, parts.learner) as updates:
        assert isinstance(updates, RankedLearner)
        until = time.monotonic() + SECONDS_TO_START
        while not updates.helped and time.monotonic() < until:
            _timed_updates(config, given, group, parts=parts, updates=updates, once=True)
        together = _timed_updates(config, given, group, parts=parts, updates=updates)
    return max(together.update - (whole.update + repeated) / 2, 0.0) / max(together.gradient_steps, 1.0)


def _timed_updates(
    config: TrainConfig,
    given: UserObjects,
    group: _Group,
    *,
    parts: Parts | None = None,
    updates: Learner[Any] | None = None,
    once: bool = False,
) -> _Timed:
    """Return the usual seconds of an iteration; every update begins with the same weights.

    `updates` takes the updates of the learner with other processes, which would have to load those weights: the
    learner keeps its own.
    """
    parts = parts or build_parts(config, group.spec, given)
    source, learner = parts.source, parts.learner
    check_memory(source.nbytes, "a rollout", "use fewer num_steps or num_envs")
    block = _repeated_block(group.block, source.steps_per_collect)
    before = copied_state(learner.state_dict())
    kept = list[_Timed]()
    iterations, started = 0, time.perf_counter()
    while True:
        found = _timed_iteration(source, updates or learner, block, config.total_timesteps)
        iterations += 1
        if found.gradient_steps:
            kept.append(found)
        if updates is None:
            learner.load_state_dict(before)
        late = time.perf_counter() - started >= SECONDS
        if (once and kept) or (late and len(kept) > 1) or iterations >= MAX_STEPS:
            break
    later = kept[1:] or kept or [found]  # the first is slower
    share = len(kept) / iterations if kept else 1.0  # rounds of some algorithms have no update
    return _Timed(
        receive=statistics.median(each.receive for each in later),
        prepare=share * statistics.median(each.prepare for each in later),
        update=share * statistics.median(each.update for each in later),
        gradient_steps=share * statistics.mean(each.gradient_steps for each in later),
    )


def _timed_iteration(
    source: ExperienceSource[Any], learner: Learner[Any], block: Block, total_timesteps: int
) -> _Timed:
    laps = list[str]()
    started = time.perf_counter()
    source.record_block(block)
    received = time.perf_counter() - started
    updating, count = 0.0, 0
    started = time.perf_counter()
    with heard_by(laps.append):
        for batch in source.batches(Progress(total_timesteps=total_timesteps)):
            before = time.perf_counter()
            result = learner.update(batch, Progress(total_timesteps=total_timesteps))
            updating += time.perf_counter() - before
            source.feedback(batch, result)
            count += result.updates
    prepared = time.perf_counter() - started - updating
    return _Timed(received, prepared, updating, max(laps.count("optimiser"), count))


def _repeated_block(block: Block, num_steps: int) -> Block:
    """Return a block of `num_steps`: the steps of a shorter one again and again."""
    size = _block_bytes(block) // block.num_steps * num_steps
    check_memory(2 * size, "a rollout", "use fewer num_steps or num_envs")
    order = np.arange(num_steps) % block.num_steps
    counts = np.concatenate([[0], np.cumsum(block.ended.sum(axis=1))])
    ended = [np.arange(counts[t], counts[t + 1]) for t in order]
    rows = np.concatenate(ended).astype(np.intp)
    after = [*order, order[-1] + 1]
    return replace(
        block,
        obs=joined({key: array[after] for key, array in leaves(block.obs)}),
        final_obs=joined({key: array[rows] for key, array in leaves(block.final_obs)}),
        extra={name: array[order] for name, array in block.extra.items()},
        **{name: getattr(block, name)[order] for name in COLUMNS},
    )


def _joined_costs(config: TrainConfig, groups: list[_Group], update: _Update) -> Costs:
    factor = update.factor
    prepare = update.prepare * update.prepare_factor
    rows = config.algorithm.rows_per_step(config.num_envs) if update.takes_shards else 1
    many_cores = config.env_backend in ("async", "envpool")
    return Costs(
        num_envs=config.num_envs,
        num_steps=update.num_steps,
        step=_line(groups, "step"),
        act=_line(groups, "act"),
        record=_line(groups, "record"),
        update=(update.whole - update.prepare) * factor + prepare,
        prepare=prepare,
        repeated=update.repeated * factor,
        threaded_update=None if update.threaded is None else update.threaded * factor + prepare,
        borrows=update.borrows,
        gradient_steps=update.gradient_steps,
        env_cores=min(usable_cores(), config.num_envs) if many_cores else 1,
        rows_per_gradient_step=max(rows, 1),
        gradient_bytes=update.gradient_bytes,
        parameter_bytes=update.parameter_bytes,
        receive=update.receive * update.prepare_factor,
        snapshot=_line(groups, "snapshot"),
        message=USUAL_MESSAGE,
        handling=USUAL_HANDLING,
        exchange=update.exchange,
        copy_per_byte=_seconds_per_byte(max(update.parameter_bytes, 2**16), np.copyto),
        sum_per_byte=_seconds_per_byte(max(update.gradient_bytes, 2**16), _add),
    )


def _line(groups: list[_Group], name: str) -> Linear:
    """Return the line through a cost by size; the largest group is met exactly, and neither part is negative."""
    largest = groups[-1]
    at = getattr(largest, name)
    slopes = [
        (at - getattr(group, name)) / (largest.size - group.size)
        for group in groups
        if group.size != largest.size
    ]
    each = min(max(statistics.median(slopes), 0.0), at / largest.size) if slopes else at / largest.size
    return Linear(at - each * largest.size, each)


def _block_bytes(block: Block) -> int:
    arrays: list[Array] = [array for _, array in leaves(block.obs)] + [
        getattr(block, name) for name in COLUMNS
    ]
    return sum(array.nbytes for array in (*arrays, *block.extra.values()))


def _gradient_bytes(learner: StatefulLearner) -> int:
    """Return the usual bytes of a gradient; of all weights, if the optimizers are of another kind."""
    found = [part.gradient for part in vars(learner).values() if isinstance(part, FlatOptimizer)]
    if not found:
        return sum(map(_tensor_bytes, learner.learned_state().values()))
    return sum(gradient.numel() * gradient.element_size() for gradient in found) // len(found)


def _tensor_bytes(state: dict[str, Any]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in split_state(state)[0].values())


def _seconds_per_byte(size: int, operation: Callable[[Array, Array], None]) -> float:
    target, source = np.ones(size // 4, np.float32), np.ones(size // 4, np.float32)
    return _usual_seconds(lambda: operation(target, source), SECONDS / 20) / target.nbytes


def _add(target: Array, source: Array) -> None:
    np.add(target, source, out=target)


def _usual_seconds(call: Callable[[], Any], seconds: float) -> float:
    times, started = list[float](), time.perf_counter()
    while not times or (time.perf_counter() - started < seconds and len(times) < MAX_STEPS):
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
    return statistics.median(times)
