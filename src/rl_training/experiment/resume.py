"""Resumes runs from their newest intact checkpoint, after checking that this is possible and safe."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.lookup import algorithm_name, find_algorithm, is_called
from rl_training.algorithms.losses import LossFunction
from rl_training.config import TrainConfig
from rl_training.config.train_config import OF_THE_MACHINE
from rl_training.core.errors import UserError
from rl_training.core.types import Progress
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.building import UserObjects
from rl_training.experiment.checkpoints.folders import find_checkpoint, restore_backups
from rl_training.experiment.checkpoints.format import (
    Checkpoint,
    read_checkpoint,
    refuse_large_replay,
    write_checkpoint,
)
from rl_training.experiment.checkpoints.locking import RunLock
from rl_training.experiment.checkpoints.replay import verify_replay
from rl_training.experiment.checkpoints.saved_losses import refuse_other_losses
from rl_training.experiment.checkpoints.snapshot import older_than
from rl_training.experiment.checkpoints.trust import (
    Permission,
    Trust,
    refuse_missing_factory,
    without_foreign_cluster,
)
from rl_training.experiment.checkpoints.warm_start import WarmStart
from rl_training.experiment.console import Console
from rl_training.experiment.files import refuse_special_files
from rl_training.experiment.games.evaluation import evaluation_opponent
from rl_training.experiment.logs.metadata import Metadata, differences, read_metadata, surroundings
from rl_training.experiment.run import Run, TrainResult
from rl_training.experiment.run_data import open_collecting, open_data
from rl_training.experiment.run_folder import Origin, find_run_dir, newest_checkpoint_or_none, read_origin
from rl_training.models.encoders import EncoderClass
from rl_training.runtime.callbacks import Callback


def resume(
    path: str | PathLike[str],
    *,
    total_timesteps: int | None = None,
    total_updates: int | None = None,
    max_time: float | None = None,
    algorithm: type[Algorithm] | None = None,
    factory: EnvFactory | None = None,
    encoder: EncoderClass | None = None,
    losses: Mapping[str, LossFunction] | None = None,
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
    arguments: Sequence[str] | None = None,
    env_id: str | None = None,
    trust_modules: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> TrainResult:
    """Continue a run from its newest intact checkpoint, or from the checkpoint at `path`; later steps are repeated.

    A run that was killed before its first checkpoint starts again. `total_timesteps` extends a run and its schedules;
    `total_updates` does so if it learns from a dataset alone. A run of another user imports its environment's module
    only with `env_id` or `trust_modules`. `settings` may replace those that do not change the result, such as `engine`.
    """
    run_dir, console, trust = find_run_dir(Path(path)), console or Console(), Trust(algorithm, trust_modules)
    refuse_special_files(run_dir)
    with RunLock(run_dir):
        restore_backups(run_dir / "checkpoints")
        home = run_dir if Path(path).resolve() == run_dir.resolve() else None
        checkpoint = _read(path, home, trust)
        source, previous = checkpoint or read_origin(run_dir, trust), read_metadata(run_dir)
        given = UserObjects(_own_class(run_dir, source.config, algorithm), factory, encoder, losses or {})
        _check_trust(checkpoint.path if checkpoint else run_dir, source, env_id, given, trusted=trust_modules)
        saved = _without_foreign_services(source, console, trusted=trust_modules)
        extension = _extension(source.config, total_timesteps, total_updates)
        config = given.named(_overridden(saved, settings, max_time=max_time, **extension))
        refuse_other_losses(run_dir, source.losses, given.loss_names(config))
        dataset = open_data(config, given, checkpoint)
        if checkpoint is not None:
            checkpoint = _to_continue(run_dir, checkpoint, config, previous, bool(extension), home)
        with open_collecting(config, given, console, dataset, resumed=True) as (engine, placement):
            run = Run(config, given, callbacks, console, placement.config, dataset=dataset)
            run.opponent = evaluation_opponent(config, engine.spec, factory, run_dir, trust_modules)
            start = checkpoint or _first_checkpoint(run, source, run_dir, trust)
            record = source.started_from if isinstance(source, Origin) else None
            start = run.build_parts(
                engine.spec, start, resumed=checkpoint is not None, fall_back_in=home, notice=console.notice
            )
            metadata = Metadata(run_dir, config, arguments, record, engine=placement.record)
            metadata.resumed(previous, start.progress.clock if start else 0)
            return run.execute(run_dir, metadata, engine, start)


def _extension(config: TrainConfig, timesteps: int | None, updates: int | None) -> dict[str, int]:
    """Return the new budget as a setting; raise if it is not what the run counts."""
    wrong, flag = (timesteps, "--total-updates") if config.offline else (updates, "--total-timesteps")
    if wrong is not None:
        counts = "updates, as it learns from a dataset alone" if config.offline else "environment steps"
        raise UserError(f"the run counts {counts}; use {flag}")
    budgets = {"total_timesteps": timesteps, "total_updates": updates}
    return {name: budget for name, budget in budgets.items() if budget is not None}


def _read(path: str | PathLike[str], home: Path | None, trust: Trust) -> Checkpoint | None:
    if home is not None:
        return newest_checkpoint_or_none(home, trust)
    return read_checkpoint(find_checkpoint(path), trust)


def _own_class(run_dir: Path, config: TrainConfig, given: type[Algorithm] | None) -> type[Algorithm]:
    """Return the class of a run's algorithm; raise if another one is given."""
    if given is None:
        return find_algorithm(config.algo)
    if not is_called(given, config.algo):
        raise UserError(
            f"{run_dir} is a run of {config.algo}, not of {algorithm_name(given)}; leave the algorithm out, or "
            f"fine-tune from its weights in a new run: {given.__name__}.start_from(path)"
        )
    return given


def _warn_of_differences(checkpoint: Checkpoint, config: TrainConfig) -> None:
    for difference in differences(checkpoint.facts["surroundings"], surroundings(config)):
        warnings.warn(f"{difference}: the resumed run may not be bit-for-bit identical", stacklevel=3)


def _overridden(config: TrainConfig, settings: Mapping[str, Any] | None, **others: Any) -> TrainConfig:
    """Return a config with settings that a resumed run may change; raise for any other in `settings`."""
    settings = settings or {}
    for name in settings:
        if name not in OF_THE_MACHINE:
            raise UserError(
                f"a resumed run has its own settings, so {name} cannot be changed; only {', '.join(OF_THE_MACHINE)} can"
            )
    return config.with_overrides(**settings, **others)


def _without_foreign_services(source: Checkpoint | Origin, console: Console, *, trusted: bool) -> TrainConfig:
    """Return the config without a tracker and a cluster that somebody else chose: they would receive our data."""
    config = source.config
    if trusted or source.signed:
        return config
    if config.track != "none":
        console.notice(
            f"the run is not signed by you, so nothing is sent to {config.track}; give --trust-modules to send its "
            "metrics"
        )
        config = config.with_overrides(track="none")
    if config.engine == "ray":
        console.notice(
            "the run is not signed by you, so it does not use the Ray cluster that it names; give --engine ray"
        )
        config = without_foreign_cluster(config)
    return config


def _check_trust(
    path: Path, source: Checkpoint | Origin, env_id: str | None, given: UserObjects, *, trusted: bool
) -> None:
    """Raise for another environment than that of the run, for a missing factory, and for untrusted code."""
    recorded = source.config.env_id
    if env_id is not None and env_id != recorded:
        raise UserError(f"{path} is a run on '{recorded}', not on '{env_id}'; leave --env-id out")
    refuse_missing_factory(path, recorded, needed=source.env_factory and given.factory is None)
    named = given.settings if env_id is None else given.settings | {"env_id"}
    Permission(path, source.signed or trusted, named).refuse_all(source.config)
    if isinstance(source, Checkpoint):
        refuse_large_replay(source)


def _to_continue(
    run_dir: Path,
    checkpoint: Checkpoint,
    config: TrainConfig,
    previous: dict[str, Any],
    extended: bool,
    home: Path | None,
) -> Checkpoint:
    """Return the checkpoint that a run continues from, with the schedules of its new length if it is extended."""
    checkpoint = _unfinished(run_dir, checkpoint, config, previous, extended, home)
    checkpoint = _extended(checkpoint, config) if extended else checkpoint
    _warn_of_differences(checkpoint, config)
    return checkpoint


def _unfinished(
    run_dir: Path,
    checkpoint: Checkpoint,
    config: TrainConfig,
    previous: dict[str, Any],
    extended: bool,
    home: Path | None,
) -> Checkpoint:
    """Raise an error if the run is finished, unless its last checkpoint is damaged: then return the one before it."""
    end = _end_of(run_dir, checkpoint, config, previous, extended=extended)
    if end is None:
        return checkpoint
    if home is not None:
        try:
            verify_replay(checkpoint.path, checkpoint.facts["replay"])
        except UserError as damage:
            return older_than(checkpoint, home, damage)
    raise UserError(end)


def _end_of(
    run_dir: Path, checkpoint: Checkpoint, config: TrainConfig, previous: dict[str, Any], *, extended: bool
) -> str | None:
    """Return why there is nothing left to train; None if there is."""
    progress, flag = _of_budget(checkpoint.progress, config), "--total-timesteps"
    if config.offline:
        flag = "--total-updates"
    status = previous.get("status")
    done, total, unit = progress.clock, progress.total, progress.unit
    # a run that was killed after its last checkpoint still has to record its end
    if done >= total and status in ("finished", "stopped"):
        return f"{run_dir} is finished ({done:,} of {total:,} {unit}); extend it with {flag} N"
    if extended and total < done:
        return f"{run_dir} has already done {done:,} {unit}; use {flag} {done} or more"
    # an extension is in the checkpoint before it is in the metadata
    reason = checkpoint.state.get("trainer", {}).get("stop_reason", previous.get("stop_reason"))
    if status == "stopped" and reason is not None and not extended:
        return f"{run_dir} is finished ({reason}); to continue anyway, use {flag} {total}"
    return None


def _of_budget(progress: Progress, config: TrainConfig) -> Progress:
    """Return the progress with the budget of the config."""
    updates = config.total_updates if config.offline else None
    return replace(progress, total_timesteps=config.total_timesteps, total_updates=updates)


def _extended(checkpoint: Checkpoint, config: TrainConfig) -> Checkpoint:
    """Write the new budget into the checkpoint at once, so that a crash cannot lose it; clear an early stop."""
    state = checkpoint.state
    if "trainer" in state:
        state = state | {"trainer": state["trainer"] | {"stop_reason": None}}
    progress = _of_budget(checkpoint.progress, config)
    extended = replace(checkpoint, config=config, state=state, progress=progress)
    try:
        write_checkpoint(
            checkpoint.path,
            config=config,
            progress=extended.progress,
            state=state,
            facts=extended.facts,
            signed=checkpoint.signed,
        )
    except OSError as error:
        raise UserError(f"{checkpoint.path} cannot be written: {error.strerror}") from error
    return extended


def _first_checkpoint(
    run: Run, source: Checkpoint | Origin, run_dir: Path, trust: Trust
) -> Checkpoint | None:
    """Return what a run without checkpoints of its own starts from; pretrained weights are given to the run."""
    assert isinstance(source, Origin), "a run has a checkpoint or a record of how it started"
    start = _starting_checkpoint(source, run_dir, replace(trust, algorithm=run.given.algorithm))
    if source.started_from is None or start is None:
        return start
    run.warm_start = WarmStart(start, source.started_from)
    return None


def _starting_checkpoint(origin: Origin, run_dir: Path, trust: Trust) -> Checkpoint | None:
    """Return the checkpoint that a run was started from, if any; the run has none of its own yet."""
    if origin.start_from is None:
        return None
    if not origin.signed:
        raise UserError(f"{run_dir} has no checkpoint and is not signed by you; start it again")
    return read_checkpoint(run_dir / origin.start_from, trust)
