"""A model of throughput: from the costs of a run on one core to steps per second with groups, lag and shards.

`Costs` are measured (`cost_measurement.py`) or invented; everything here is arithmetic on them. The model assumes that
cores are idle otherwise, that processes do not compete for memory bandwidth, and that environments take the same time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any, Literal, NamedTuple, TypeAlias

from rl_training.config import TrainConfig
from rl_training.config.train_config import MAX_LEARNERS, MAX_SAMPLERS

Limit = Literal["environment", "acting", "update", "transport"]
Parts: TypeAlias = dict[Limit, float]
"""Seconds by what they are spent on."""

WORTHWHILE = 1.1
"""Speed-up from which `choose_engine` starts processes."""
TINY = 1e-12
SECONDS_TO_MOVE = 0.01
"""About how long a process waits for a core before the system moves it to another one."""
NOTICEABLE = 1.05
"""Speed-up from which `advice` recommends a setting."""


@dataclass(frozen=True)
class Linear:
    """Seconds of one call for n environments: `fixed + each * n`."""

    fixed: float = 0.0
    each: float = 0.0

    def of(self, n: int) -> float:
        """Return the seconds for n environments."""
        return self.fixed + self.each * n


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a run costs in one process with one thread, in seconds. An iteration is one rollout, or one round."""

    num_envs: int
    num_steps: int
    """Vector steps per iteration."""
    step: Linear
    """One vector step of the environments of a group."""
    act: Linear
    """Choosing the actions of one vector step of a group."""
    record: Linear = Linear()
    """Recording one vector step of a group."""
    update: float
    """All gradient steps of an iteration and their preparation."""
    prepare: float = 0.0
    """Part of `update` before the gradient steps, such as advantages; every learner repeats it."""
    repeated: float = 0.0
    """Part of `update` that does not depend on the size of a minibatch; every shard repeats it."""
    threaded_update: float | None = None
    """`update` with two threads; None if it was not measured."""
    borrows: bool = False
    """Whether `num_threads: auto` updates with two threads on idle cores, as that changes no bit."""
    env_cores: int = 1
    """Cores that the environments of one process step on at the same time: more than one if they have processes or
    threads of their own, which more samplers then share."""
    gradient_steps: int = 1
    """Gradient steps per iteration, each followed by one sum of gradients."""
    rows_per_gradient_step: int = 2**30
    """Rows of a minibatch: the largest number of shards."""
    gradient_bytes: int = 0
    """Bytes of the gradient of one gradient step."""
    parameter_bytes: int = 0
    """Bytes of the parameters that are published to the samplers."""
    receive: float = 0.0
    """Taking over the blocks of one iteration."""
    snapshot: Linear = Linear()
    """Saving the state of a group, once per iteration."""
    message: float = 0.0
    """What an iteration takes longer if other processes collect: messages, waking up, caches that are cold."""
    handling: float = 0.0
    """The part of it in which the learner's process is busy: it sends tickets, and reads answers."""
    exchange: float = 0.0
    """What a gradient step takes longer if two processes compute its shards."""
    copy_per_byte: float = 0.0
    sum_per_byte: float = 0.0
    """Adding one gradient to another."""

    @property
    def timesteps(self) -> int:
        """Environment steps per iteration."""
        return self.num_envs * self.num_steps

    def grown(self, factor: int) -> "Costs":
        """Return the costs with `factor` times as many environments and rows per minibatch: as many gradient steps."""
        divisible = max(self.update - self.prepare - self.repeated, 0.0)
        prepare = self.prepare * factor
        return replace(
            self,
            num_envs=self.num_envs * factor,
            update=prepare + self.repeated + divisible * factor,
            prepare=prepare,
            threaded_update=None,
            borrows=False,
            rows_per_gradient_step=self.rows_per_gradient_step * factor,
            receive=self.receive * factor,
        )


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The settings that decide what is computed where."""

    engine: Literal["local", "process"] = "local"
    env_groups: int = 1
    lag: int = 0
    learner_shards: int = 1
    num_samplers: int = 0
    num_learners: int = 1
    num_threads: int | Literal["auto"] = "auto"

    def settings(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults."""
        return {name: value for name, value in vars(self).items() if value != getattr(DEFAULT, name)}

    def text(self) -> str:
        """Return the settings as text."""
        return " ".join(f"{name}={value}" for name, value in self.settings().items()) or "default"


DEFAULT = Layout()


@dataclass(frozen=True)
class Prediction:
    """The predicted speed of a layout."""

    layout: Layout
    steps_per_second: float
    speedup: float
    """Over the default layout."""
    limit: Limit
    """What takes the largest part of the critical path."""


def predict(costs: Costs, layout: Layout, cores: int) -> Prediction:
    """Return the predicted speed of a layout on a number of cores."""
    seconds, limit = _iteration(costs, layout, cores)
    usual = _iteration(costs, DEFAULT, cores)[0]
    return Prediction(layout, costs.timesteps / seconds, usual / seconds, limit)


def predictions(costs: Costs, cores: int) -> list[Prediction]:
    """Return the predictions for the layouts worth trying, the fastest first; the simpler one of equals."""
    found = [predict(costs, layout, cores) for layout in dict.fromkeys(_layouts(costs, cores))]
    return sorted(found, key=_rank)


class EngineChoice(NamedTuple):
    """Where to compute the groups and shards of a config."""

    engine: Literal["local", "process"]
    num_samplers: int
    num_learners: int
    reason: str


ONE_CORE = EngineChoice("local", 0, 1, "there is one core")
NOTHING_TO_DIVIDE = EngineChoice(
    "local", 0, 1, "env_groups 1, lag 0 and learner_shards 1 leave nothing to divide"
)


def is_divisible(config: TrainConfig) -> bool:
    """Return whether several processes could work on a run at the same time."""
    return config.env_groups > 1 or config.lag != 0 or config.learner_shards > 1


def choose_engine(config: TrainConfig, costs: Costs, cores: int) -> EngineChoice:
    """Return the fastest engine for the groups, lag and shards of a config: `local` unless processes are worthwhile.

    If there are processes, their numbers are those that the config gives, wherever it does.
    """
    if cores < 2:
        return ONE_CORE
    if not is_divisible(config):
        return NOTHING_TO_DIVIDE
    local = predict(costs, _own(config), cores)
    others = [predict(costs, layout, cores) for layout in _placements(config, cores)]
    best = min(others, key=_rank, default=local)
    gain = best.steps_per_second / local.steps_per_second
    if not others:
        return EngineChoice("local", 0, 1, "num_samplers and num_learners ask for no other process")
    if gain < WORTHWHILE:
        reason = (
            f"{_processes(best.layout)} are expected to give only {gain:.2f} times the speed of one process"
        )
        return EngineChoice("local", 0, 1, reason)
    chosen = best.layout
    reason = f"{_processes(chosen)} are expected to give {gain:.1f} times the speed of one process"
    return EngineChoice("process", chosen.num_samplers, chosen.num_learners, reason)


@dataclass(frozen=True)
class Advice:
    """A change of settings that is expected to make a run faster."""

    changes: dict[str, int]
    steps_per_second: float
    speedup: float
    """Over the config with the engine that `choose_engine` returns."""
    limit: Limit

    def text(self) -> str:
        """Return the advice as flags, with the speed-up."""
        flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in self.changes.items())
        return f"{flags}: {self.speedup:.1f} times as fast"


def advice(config: TrainConfig, costs: Costs, cores: int) -> list[Advice]:
    """Return which of `env_groups`, `lag` and `learner_shards` would make a run faster, alone or together.

    The best advice is first. Each changes the experiment, so it is a recommendation and never applied by itself.
    """
    now = config.with_overrides(num_samplers="auto", num_learners="auto")
    own = _settings(now)
    current = _chosen(now, costs, cores).steps_per_second
    found = list[Advice]()
    for names in (("env_groups",), ("lag",), ("learner_shards",), ("env_groups", "lag", "learner_shards")):
        tried = (
            _chosen(now.with_overrides(**values), costs, cores)
            for values in _changes(now, costs, cores, names)
        )
        best = min(tried, key=_rank, default=None)
        if best is None or best.steps_per_second < NOTICEABLE * current:
            continue
        changes = {name: value for name, value in vars(best.layout).items() if value != own.get(name, value)}
        if changes and changes not in [each.changes for each in found]:
            found.append(Advice(changes, best.steps_per_second, best.steps_per_second / current, best.limit))
    return sorted(found, key=lambda each: (-round(each.speedup, 2), len(each.changes)))


def _changes(
    config: TrainConfig, costs: Costs, cores: int, names: tuple[str, ...]
) -> Iterator[dict[str, int]]:
    """Yield new values for the named settings."""
    own = _settings(config)
    for layout in _layouts(costs, cores):
        values = {name: getattr(layout, name) for name in own}
        if layout.num_threads == "auto" and all(name in names or values[name] == own[name] for name in own):
            yield {name: values[name] for name in names}


def _chosen(config: TrainConfig, costs: Costs, cores: int) -> Prediction:
    """Return the prediction for a config with the engine that would be chosen for it."""
    choice = choose_engine(config, costs, cores)
    return predict(costs, _own(config, *choice[:3]), cores)


def _own(
    config: TrainConfig,
    engine: Literal["local", "process"] = "local",
    num_samplers: int = 0,
    num_learners: int = 1,
) -> Layout:
    """Return the layout of a config, by default in one process."""
    return Layout(
        engine=engine,
        num_samplers=num_samplers,
        num_learners=num_learners,
        num_threads=config.num_threads,
        **_settings(config),
    )


def _settings(config: TrainConfig) -> dict[str, int]:
    """Return the settings that are part of the experiment.

    Lag `free` is about as fast as 1, unless a `max_policy_lag` of 1 drops rollouts.
    """
    lag = config.lag if isinstance(config.lag, int) else 1
    return {"env_groups": config.env_groups, "lag": lag, "learner_shards": config.learner_shards}


def _placements(config: TrainConfig, cores: int) -> Iterator[Layout]:
    """Yield the ways to divide the groups and shards of a config among processes."""
    samplers: list[int] = [0, *_sizes_and(min(config.env_groups, cores))]
    learners: list[int] = _sizes_and(min(config.learner_shards, cores))
    if isinstance(config.num_samplers, int):
        samplers = [config.num_samplers]
    if isinstance(config.num_learners, int):
        learners = [config.num_learners]
    for num_samplers in samplers:
        for num_learners in learners:
            if num_samplers or num_learners > 1:
                yield _own(config, "process", num_samplers, num_learners)


def _layouts(costs: Costs, cores: int) -> Iterator[Layout]:
    """Yield the layouts worth trying, within the bounds of the settings."""
    yield DEFAULT
    if costs.threaded_update is not None and cores > 1 and not costs.borrows:
        yield Layout(num_threads=2)
    groups = sorted({*_sizes(costs.num_envs), min(cores, costs.num_envs)})
    most = min(cores, costs.rows_per_gradient_step, MAX_LEARNERS)
    shards = _sizes(most)
    for learner_shards in shards if cores > 1 else []:
        for env_groups in groups:
            hosts = {min(env_groups, cores), min(env_groups, max(cores - learner_shards, 1))}
            hosts = {min(host, MAX_SAMPLERS) for host in hosts}
            for lag in (0, 1):
                for num_samplers in sorted({*hosts, 0} if learner_shards > 1 and env_groups == 1 else hosts):
                    yield Layout(
                        engine="process",
                        env_groups=env_groups,
                        lag=lag if num_samplers else 0,
                        learner_shards=learner_shards,
                        num_samplers=num_samplers,
                        num_learners=learner_shards,
                    )


def _sizes(most: int) -> list[int]:
    """Return the powers of two up to `most`.

    >>> _sizes(6)
    [1, 2, 4]
    """
    return [2**power for power in range(most.bit_length())]


def _sizes_and(most: int) -> list[int]:
    """Return the powers of two up to `most`, and `most` itself."""
    return sorted({*_sizes(most), most})


def _rank(found: Prediction) -> tuple[Any, ...]:
    layout = found.layout
    processes = layout.num_samplers + layout.num_learners
    return -round(found.speedup, 2), layout.lag, layout.learner_shards, layout.env_groups, processes


def _processes(layout: Layout) -> str:
    samplers, learners = layout.num_samplers, layout.num_learners
    told = [f"{samplers} sampler{'s' if samplers > 1 else ''}"] if samplers else []
    return " and ".join([*told, f"{learners} learner{'s' if learners > 1 else ''}"])


def _iteration(costs: Costs, layout: Layout, cores: int) -> tuple[float, Limit]:
    """Return the seconds of an iteration, and what takes most of its critical path."""
    sampling, updating = _sampling(costs, layout), _updating(costs, layout, cores)
    if layout.num_samplers == 0:
        return _named(sampling | updating)
    # the busiest sampler: its groups, their states, and a copy of the parameters
    share, snapshots = _busiest_share(layout), _snapshots(costs, layout)
    copying = costs.parameter_bytes * costs.copy_per_byte
    collecting: Parts = {
        "environment": sampling["environment"] * share,
        "acting": sampling["acting"] * share,
        "transport": snapshots * share + copying + costs.message,
    }
    learning: Parts = updating | {"transport": updating["transport"] + costs.receive + copying}
    work = sampling["environment"] * costs.env_cores + sampling["acting"] + snapshots
    if layout.lag == 0:  # samplers that share a core take turns
        turns = max(work / cores / max(sum(collecting.values()), TINY), 1.0)
        collecting = {name: seconds * turns for name, seconds in collecting.items()}
        return _named(learning | collecting | {"transport": learning["transport"] + collecting["transport"]})
    learning["transport"] += costs.handling
    collecting["transport"] -= costs.handling
    on_all_cores: Parts = {
        "environment": sampling["environment"] * costs.env_cores / cores,
        "acting": sampling["acting"] / cores,
        "update": updating["update"] * layout.num_learners / cores,
        "transport": (snapshots + learning["transport"] * layout.num_learners) / cores,
    }
    overlapped = _overlapped(collecting, learning, layout, cores)
    return max(overlapped, _named(on_all_cores), key=lambda path: path[0])


def _overlapped(collecting: Parts, learning: Parts, layout: Layout, cores: int) -> tuple[float, Limit]:
    """Return the seconds of both at the same time.

    If there are more processes than cores, they share the cores until the shorter side has finished. Learners wait for
    each other after every gradient step, so all of them are as slow as one that shares its core. Short rollouts end
    before the system moves a process: samplers then take turns on the cores that learners leave free.
    """
    samplers, learners = layout.num_samplers, layout.num_learners
    sampled, learned = _named(collecting), _named(learning)
    turns = max(samplers / (cores - learners), 1.0) if cores > learners else inf
    if turns * sampled[0] < SECONDS_TO_MOVE:
        return max((turns * sampled[0], sampled[1]), learned, key=lambda path: path[0])
    shorter, longer = sorted((sampled, learned), key=lambda path: path[0])
    both = (samplers + learners) / cores
    slower = max(ceil(both) if learners > 1 else both, 1.0)
    alone = max((learners if longer == learned else samplers) / cores, 1.0)
    return shorter[0] * slower + (longer[0] - shorter[0]) * alone, longer[1]


def _named(parts: Parts) -> tuple[float, Limit]:
    """Return the sum of the parts, and the name of the largest."""
    return max(sum(parts.values()), TINY), max(parts, key=lambda name: parts[name])


def _sampling(costs: Costs, layout: Layout) -> Parts:
    """Return the seconds of all groups together: in the environments, and for acting and recording."""
    groups, envs, steps = layout.env_groups, costs.num_envs, costs.num_steps
    acting = (costs.act.fixed + costs.record.fixed) * groups + (costs.act.each + costs.record.each) * envs
    environment = costs.step.fixed * groups + costs.step.each * envs
    return {"environment": environment * steps, "acting": acting * steps}


def _snapshots(costs: Costs, layout: Layout) -> float:
    return costs.snapshot.fixed * layout.env_groups + costs.snapshot.each * costs.num_envs


def _busiest_share(layout: Layout) -> float:
    """Return the share of the groups that the busiest sampler hosts."""
    return ceil(layout.env_groups / layout.num_samplers) / layout.env_groups


def _has_threads(costs: Costs, layout: Layout, cores: int) -> bool:
    """Return whether updates have two threads; `auto` borrows a core that no sampler and no learner uses."""
    if cores < 2 or layout.learner_shards > 1:
        return False
    if layout.num_threads != "auto":
        return layout.num_threads > 1
    return costs.borrows and (layout.num_samplers == 0 or layout.lag == 0)


def _updating(costs: Costs, layout: Layout, cores: int) -> Parts:
    """Return the seconds of an update on one learner: computing, and summing gradients."""
    if costs.threaded_update is not None and _has_threads(costs, layout, cores):
        return {"update": costs.threaded_update, "transport": 0.0}
    shards, learners = layout.learner_shards, layout.num_learners
    if shards == 1:
        return {"update": costs.update, "transport": 0.0}
    divisible = max(costs.update - costs.prepare - costs.repeated, 0.0)
    update = costs.prepare + ceil(shards / learners) * (costs.repeated + divisible / shards)
    one = shards * costs.gradient_bytes * costs.sum_per_byte  # every learner adds all of them
    if learners > 1:  # write the own gradient, read the others, and wait for each other
        one += 2 * costs.gradient_bytes * costs.copy_per_byte + costs.exchange
    return {"update": update, "transport": costs.gradient_steps * one}
