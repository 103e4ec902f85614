"""`plan`: measures a config on this machine and predicts which settings of groups, lag and shards make it faster."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rl_training.config import TrainConfig
from rl_training.core.cpu import usable_cores
from rl_training.core.errors import UserError
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.building import UserObjects
from rl_training.experiment.cost_measurement import measure_costs
from rl_training.experiment.throughput import (
    DEFAULT,
    NOTICEABLE,
    Costs,
    Layout,
    Limit,
    Prediction,
    predict,
    predictions,
)

ASSUMPTIONS = (
    "cores are as fast as the one that was measured, and do nothing else",
    "processes do not compete for memory bandwidth",
    "environments take the same time for every step, and groups are of equal size",
)
LIMITS: dict[Limit, str] = {
    "environment": "the environments limit it",
    "acting": "choosing actions limits it",
    "update": "the update limits it",
    "transport": "communication limits it",
}


@dataclass(frozen=True)
class Plan:
    """Predicted speeds of a config on a number of cores."""

    costs: Costs
    cores: int
    default: Prediction
    """One process, one group, lag 0, one shard."""
    ranked: list[Prediction]
    """The fastest way to divide the work for every choice of groups, lag and shards; the fastest first."""
    grown: Prediction
    """The fastest with `cores` times as many environments, and as many times larger minibatches."""

    @property
    def best(self) -> Prediction:
        """The fastest prediction."""
        return self.ranked[0]

    def summary(self) -> str:
        """Return which setting helps most, as one sentence."""
        best = self.best
        if best.speedup < NOTICEABLE:
            return f"No setting helps on {_cores(self.cores)}: {LIMITS[best.limit]}."
        settings = best.layout.settings()
        changes = [f"{name} {settings[name]}" for name in HELPFUL if name in settings]
        changes = changes or [f"engine {best.layout.engine}"]
        return (
            f"{' with '.join(filter(None, [', '.join(changes[:-1]), changes[-1]]))} helps most: about "
            f"{best.speedup:.1f} times the speed of the default on {_cores(self.cores)}; {LIMITS[best.limit]}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "cores": self.cores,
            "summary": self.summary(),
            "default": asdict(self.default),
            "predictions": [asdict(each) for each in self.ranked],
            "with_more_environments": asdict(self.grown) | {"num_envs": self.costs.num_envs * self.cores},
            "costs": asdict(self.costs),
            "assumptions": list(ASSUMPTIONS),
        }


HELPFUL = ("env_groups", "lag", "learner_shards", "num_threads")
"""Settings that are changed for speed; the number of processes follows from them."""


def plan(
    config: TrainConfig,
    cores: int | None = None,
    *,
    factory: EnvFactory | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Measure a config for a few seconds and predict its speed on `cores` cores, by default those of this process."""
    (found,) = plans(config, [usable_cores() if cores is None else cores], factory=factory, progress=progress)
    return found


def plans(
    config: TrainConfig,
    cores: Sequence[int],
    *,
    factory: EnvFactory | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Plan]:
    """Measure a config once and predict its speed on several numbers of cores."""
    if wrong := [number for number in cores if number < 1]:
        raise ValueError(f"cores is {wrong[0]}; use 1 or more")
    if config.offline:
        raise UserError(
            "the config learns from a dataset alone, so there is nothing to collect on several cores; plan is for runs "
            "with an environment, or with a dataset_fraction below 1"
        )
    costs = measure_costs(config, UserObjects(factory=factory), progress)
    return [plan_from(costs, number) for number in cores]


def plan_from(costs: Costs, cores: int) -> Plan:
    """Return the predictions for known costs."""
    found: dict[tuple[Any, ...], Prediction] = {}
    for each in predictions(costs, cores):
        found.setdefault(_choice(each.layout), each)
    grown = costs.grown(cores)
    best = predictions(grown, cores)[0]
    usual = predict(costs, DEFAULT, cores)
    # over today's default, so that both columns can be compared
    best = Prediction(
        best.layout, best.steps_per_second, best.steps_per_second / usual.steps_per_second, best.limit
    )
    return Plan(costs, cores, usual, list(found.values()), best)


def _choice(layout: Layout) -> tuple[Any, ...]:
    return layout.env_groups, layout.lag, layout.learner_shards, str(layout.num_threads)


def _cores(number: int) -> str:
    return f"{number:,} core{'s' if number > 1 else ''}"
