"""`engine: auto`: measures a run for a few seconds, and chooses between one process and several."""

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from rl_training.config import TrainConfig
from rl_training.core.cpu import usable_cores
from rl_training.core.errors import UserError, text_of
from rl_training.core.protocols import Engine
from rl_training.experiment.building import UserObjects
from rl_training.experiment.console import Console
from rl_training.experiment.cost_measurement import measure_costs
from rl_training.experiment.hosting import open_engine
from rl_training.experiment.learner_ranks.ranks import stateful_loss
from rl_training.experiment.learner_ranks.ray_ranks import refuse_missing_room
from rl_training.experiment.throughput import (
    NOTHING_TO_DIVIDE,
    ONE_CORE,
    Advice,
    Costs,
    EngineChoice,
    advice,
    choose_engine,
    is_divisible,
)

MEASURING = "engine auto: measuring this run for a few seconds"


@dataclass(frozen=True)
class Placement:
    """Where a run is computed on this machine."""

    config: TrainConfig
    """The config with an engine other than `auto`; it is never saved, so that another machine chooses again."""
    record: dict[str, Any] | None = None
    """What `auto` chose and why, for the metadata; None if the config names its engine."""


def place_run(
    config: TrainConfig, given: UserObjects, console: Console, *, resumed: bool = False
) -> Placement:
    """Return where to compute a run; `engine: auto` is measured, and what it chose is shown.

    Groups, lag and shards stay as they are: of them, only advice is given, and none to a resumed run, which cannot
    follow it. A run that cannot be measured stays in one process, which then reports the error of its environment.
    """
    if config.engine != "auto":
        return Placement(config)
    cores = usable_cores()
    # a choice that no measurement can change is not measured only for advice that nobody reads
    gives_advice = not resumed and console.shows_notices
    choice, found, is_known = ONE_CORE if cores < 2 else NOTHING_TO_DIVIDE, list[Advice](), True
    if cores > 1 and (gives_advice or is_divisible(config)):
        console.notice(MEASURING)
        try:
            costs = _measured(config, given)
        except Exception as error:  # training will raise it, if it comes from the environment
            failure = text_of(error) or type(error).__name__
            choice = EngineChoice("local", 0, 1, f"the run could not be measured ({failure})")
            is_known = False
        else:
            choice = choose_engine(config, costs, cores)
            found = advice(config, costs, cores) if gives_advice else []
    console.notice(f"engine auto chose {choice.engine}: {choice.reason}")
    if gives_advice and is_known:
        console.notice(_advice_text(found, cores))
    return Placement(_placed(config, choice), _record(choice, found, cores))


@contextlib.contextmanager
def open_placed(
    config: TrainConfig, given: UserObjects, console: Console, *, resumed: bool = False
) -> Iterator[tuple[Engine, Placement]]:
    """Open the training environments where `place_run` says, if there is room for the learners as well."""
    placement = place_run(config, given, console, resumed=resumed)
    with open_engine(placement.config, given) as engine:
        refuse_missing_room(placement.config)
        yield engine, placement


def _measured(config: TrainConfig, given: UserObjects) -> Costs:
    """Return the costs of a run, measured without the losses that were given: those may keep state."""
    given = replace(given, losses={})
    if stateful_loss(given.losses_for(config)) is not None:
        raise UserError("its loss may keep state, which measuring would change")
    with warnings.catch_warnings():  # the run itself shows them
        warnings.simplefilter("ignore")
        return measure_costs(config, given, keep_workers=True)


def _placed(config: TrainConfig, choice: EngineChoice) -> TrainConfig:
    if choice.engine == "local":
        return config.with_overrides(engine="local", num_samplers="auto", num_learners="auto")
    return config.with_overrides(
        engine="process", num_samplers=choice.num_samplers, num_learners=choice.num_learners
    )


def _advice_text(found: list[Advice], cores: int) -> str:
    where = f"on {cores} core{'s' if cores > 1 else ''}"
    if not found:
        return f"no env_groups, lag or learner_shards would make this run faster {where}"
    told = "; ".join(each.text() for each in found)
    return f"other settings are another experiment, but would be faster {where}: {told}"


def _record(choice: EngineChoice, found: list[Advice], cores: int) -> dict[str, Any]:
    told = [{"changes": each.changes, "speedup": round(each.speedup, 2)} for each in found]
    return {"setting": "auto", **choice._asdict(), "cores": cores} | ({"advice": told} if told else {})
