"""The dataset of a run: opens it, and settles which environment the run is evaluated in."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.protocols import Engine
from rl_training.core.types import EnvSpec
from rl_training.data.dataset_source import refuse_other_dataset
from rl_training.datasets.dataset import Dataset
from rl_training.datasets.opening import is_table, open_dataset
from rl_training.datasets.recording import Spaces
from rl_training.envs.stepper_factory import probe_spec
from rl_training.experiment.agent import check_spaces
from rl_training.experiment.building import NO_OBJECTS, UserObjects
from rl_training.experiment.checkpoints.format import Checkpoint
from rl_training.experiment.checkpoints.trust import module_is_imported
from rl_training.experiment.console import Console
from rl_training.experiment.engine_choice import Placement, open_placed
from rl_training.experiment.resources import available_memory, keep_freed_memory
from rl_training.experiment.run_recording import read_run
from rl_training.runtime.engines.local import OfflineEngine

NO_NOTICE: Callable[[str], None] = lambda text: None  # noqa: E731


def open_data(
    config: TrainConfig,
    given: UserObjects,
    checkpoint: Checkpoint | None = None,
    notice: Callable[[str], None] = NO_NOTICE,
) -> Dataset | None:
    """Return the dataset that a config names, if there is one; raise if a run to be continued had another."""
    if config.dataset is None:
        return None
    # a table does not contain spaces
    spaces = spaces_of(config, given) if is_table(config.dataset) and given.has_env(config) else None
    dataset = open_named(config.dataset, spaces, config.max_dataset_memory)
    for remark in dataset.remarks:
        notice(f"dataset '{config.dataset}': {remark}")
    source = {} if checkpoint is None else checkpoint.state.get("source", {})
    if "dataset" in source:
        refuse_other_dataset(dataset, source["dataset"])
    return dataset


def open_named(name: str, spaces: Spaces | None = None, max_memory: int | None = None) -> Dataset:
    """Return the dataset that a name means, a run's too; `max_memory` is half of what is free by default.

    `spaces` are those of a table.
    """
    if max_memory is None and (available := available_memory()) is not None:
        max_memory = available // 2
    return open_dataset(name, read_run=read_run, spaces=spaces, max_memory=max_memory)


def spaces_of(config: TrainConfig, given: UserObjects = NO_OBJECTS) -> Spaces:
    """Return the spaces of a config's environment."""
    found = probe_spec(config.with_overrides(use_action_masks="off"), given.factory)
    return found.observation_space, found.action_space


def data_spec(config: TrainConfig, dataset: Dataset) -> EnvSpec:
    """Return the spaces of a dataset as those of a run."""
    return EnvSpec(dataset.observation_space, dataset.action_space, config.num_envs)


def settle_environment(
    config: TrainConfig, given: UserObjects, dataset: Dataset, notice: Callable[[str], None] = NO_NOTICE
) -> TrainConfig:
    """Return the config with the environment of the dataset, unless it names one itself; raise if spaces differ.

    Where the dataset's environment cannot be built, the run has none: it is not evaluated.
    """
    own = given.has_env(config)
    settled = config if own else _environment_of(dataset, config)
    if given.has_env(settled):
        try:
            found = probe_spec(settled.with_overrides(use_action_masks="off"), given.factory)
            check_spaces(f"dataset {dataset.name}", settled, found, data_spec(config, dataset), "has")
        except UserError as error:
            if own or not config.offline:
                raise
            notice(f"the dataset names the environment '{settled.env_id}', which is not used: {error}")
            settled = config
    if not config.offline and not given.has_env(settled):
        raise UserError(
            f"dataset_fraction is {config.dataset_fraction:g}, so the run also collects, but there is no environment: "
            f"dataset '{dataset.name}' names none that is installed; give --env-id (in Python: env_id=...)"
        )
    if settled.use_action_masks == "auto":
        settled = settled.with_overrides(use_action_masks="off")
    return settled


def _environment_of(dataset: Dataset, config: TrainConfig) -> TrainConfig:
    """Return the config with the environment that the dataset names; its module is not imported."""
    found = dataset.recorded_in
    if not found.env_id or not module_is_imported(found.env_id):
        return config
    changes: dict[str, Any] = {"env_id": found.env_id}
    if not config.env_kwargs:
        changes["env_kwargs"] = {
            key: value for key, value in found.env_kwargs.items() if key != "render_mode"
        }
    if config.max_episode_steps is None and "max_episode_steps" not in found.env_kwargs:
        changes["max_episode_steps"] = found.max_episode_steps
    return config.with_overrides(**changes)


@contextlib.contextmanager
def open_collecting(
    config: TrainConfig,
    given: UserObjects,
    console: Console,
    dataset: Dataset | None,
    *,
    resumed: bool = False,
) -> Iterator[tuple[Engine, Placement]]:
    """Open the training environments, or none for a run that learns from its dataset alone."""
    if dataset is None or not config.offline:
        with open_placed(config, given, console, resumed=resumed) as found:
            yield found
        return
    keep_freed_memory()
    placed = config if config.engine != "auto" else config.with_overrides(engine="local")
    yield OfflineEngine(data_spec(config, dataset), config.total_updates), Placement(placed)
