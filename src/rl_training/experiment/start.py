"""Starting, resuming and evaluating runs. Command line and Python both come through here."""

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from rl_training.algorithms.base import Algorithm
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.protocols import Engine
from rl_training.envs.determinism import settle_rebuilding
from rl_training.envs.factory import EnvFactory
from rl_training.envs.stepper_factory import training_stepper
from rl_training.experiment.agent import Agent
from rl_training.experiment.building import (
    UserObjects,
    choose_device,
    custom_algorithm_name,
    flattened_images,
    with_masks,
)
from rl_training.experiment.checkpoints.folders import find_checkpoint, open_checkpoint, restore_backups
from rl_training.experiment.checkpoints.format import Checkpoint, read_checkpoint, write_checkpoint
from rl_training.experiment.checkpoints.locking import RunLock
from rl_training.experiment.checkpoints.replay import verify_replay
from rl_training.experiment.checkpoints.snapshot import older_than
from rl_training.experiment.checkpoints.trust import (
    Permission,
    refuse_foreign_encoder,
    refuse_foreign_module,
    refuse_missing_factory,
    refuse_other_env,
)
from rl_training.experiment.checkpoints.warm_start import FOLDER, Learned
from rl_training.experiment.console import Console
from rl_training.experiment.files import refuse_special_files
from rl_training.experiment.loading import check_algorithm, load_agent
from rl_training.experiment.logs.metadata import Metadata, differences, read_metadata, surroundings
from rl_training.experiment.logs.sinks import check_tracker
from rl_training.experiment.resources import keep_freed_memory, settle_threads, using_threads
from rl_training.experiment.run import Run, TrainResult
from rl_training.experiment.run_folder import (
    Origin,
    find_run_dir,
    make_run_dir,
    newest_checkpoint_or_none,
    read_origin,
)
from rl_training.models.encoders import EncoderClass
from rl_training.runtime.callbacks import Callback, TrainingContext
from rl_training.runtime.engines import LocalEngine


def train(
    config: TrainConfig,
    *,
    algorithm: type[Algorithm] | None = None,
    factory: EnvFactory | None = None,
    encoder: EncoderClass | None = None,
    callbacks: Sequence[Callback] = (),
    start_from: str | PathLike[str] | None = None,
    learned: Checkpoint | None = None,
    console: Console | None = None,
    arguments: Sequence[str] | None = None,
) -> TrainResult:
    """Train in a new run folder; `start_from` is a checkpoint whose state the run begins with, its steps included.

    A run that begins with what was `learned` elsewhere takes weights and statistics of that alone, and counts from 0.
    `algorithm` is the class whose builders make the parts, by default the table's entry; `factory` builds an
    environment, by default Gymnasium does; `encoder` is a class, by default the one that the setting names.
    """
    given = UserObjects(algorithm, factory, encoder)
    checkpoint = open_checkpoint(start_from) if start_from is not None else None
    if checkpoint is not None:
        check_algorithm(checkpoint, given)
    begin = Learned.of(learned) if learned is not None else None
    if begin is not None:
        begin.check(config, given)
    choose_device(config.device)
    check_tracker(config)
    console = console or Console()
    config = _masks_of(given.name_encoder(config), given, checkpoint or learned, console.notice)
    config = settle_rebuilding(config, factory, console.notice)
    with _equipped(config, factory) as (config, engine):
        _give_notice(config, engine, console)
        run = Run(config, given, callbacks, console)
        run.build_parts(engine.spec, checkpoint, notice=console.notice)
        # last of all: bad input leaves no folder
        run_dir = _begun(run, begin, checkpoint, engine)
        record = begin.record if begin is not None else None
        metadata = Metadata(run_dir, config, list(sys.argv if arguments is None else arguments), record)
        if begin is not None:
            console.notice(begin.notice)
        with RunLock(run_dir):
            return run.execute(run_dir, metadata, engine, checkpoint)


def _give_notice(config: TrainConfig, engine: Engine, console: Console) -> None:
    """Show the hints that a user should read before a run of this config begins."""
    for notice in engine.notices:
        console.notice(notice)
    for key in flattened_images(config, engine.spec):
        console.notice(
            f"{f'entry {key!r} of an observation' if key else 'an observation'} is an image, but encoder 'flat' "
            "flattens it; encoder 'auto' uses a CNN"
        )
    for mistake in config.algorithm.probable_mistakes(config.total_timesteps, config.num_envs):
        console.notice(mistake)


def _begun(run: Run, begin: Learned | None, checkpoint: Checkpoint | None, engine: Engine) -> Path:
    """Return the folder of a run that is about to begin, perhaps with what was learned elsewhere."""
    config, given = run.config, run.given
    if begin is None:
        return make_run_dir(config, start_from=checkpoint.path.resolve() if checkpoint else None, given=given)
    run.learned = begin
    begin.put_into(config, run.parts, engine.spec)
    return make_run_dir(
        config,
        start_from=Path(FOLDER),
        given=given,
        started_from=begin.record,
        fill=lambda folder: begin.write(folder, config, run.parts, run.facts),
    )


def resume(
    path: str | PathLike[str],
    *,
    total_timesteps: int | None = None,
    max_time: float | None = None,
    algorithm: type[Algorithm] | None = None,
    factory: EnvFactory | None = None,
    encoder: EncoderClass | None = None,
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
    arguments: Sequence[str] | None = None,
    env_id: str | None = None,
    trust_modules: bool = False,
) -> TrainResult:
    """Go on with a run from its newest whole checkpoint, or from one that is named; what came after it is made anew.

    A run that was killed before its first checkpoint begins again from its config. `total_timesteps` extends a run;
    schedules are functions of the fraction of the budget, so extending a run stretches them from here on. A module that
    the run of somebody else names is imported only if `env_id` repeats that name, or with `trust_modules`.
    """
    run_dir, console = find_run_dir(Path(path)), console or Console()
    given = UserObjects(algorithm, factory, encoder)
    refuse_special_files(run_dir)
    with RunLock(run_dir):
        restore_backups(run_dir / "checkpoints")
        # a checkpoint asked for by name is used or refused
        home = run_dir if Path(path).resolve() == run_dir.resolve() else None
        checkpoint = newest_checkpoint_or_none(run_dir) if home else read_checkpoint(find_checkpoint(path))
        own, previous = checkpoint or read_origin(run_dir), read_metadata(run_dir)
        check_trust(checkpoint.path if checkpoint else run_dir, own, env_id, given, trusted=trust_modules)
        extension = {} if total_timesteps is None else {"total_timesteps": total_timesteps}
        config = given.name_encoder(own.config.with_overrides(max_time=max_time, **extension))
        if checkpoint is not None:
            check_algorithm(checkpoint, given)
            checkpoint = _unfinished(run_dir, checkpoint, config, previous, bool(extension), home)
            if extension:
                checkpoint = _extended(checkpoint, config)
            warn_of_differences(checkpoint, config)
        with _equipped(config, factory) as (config, engine):
            start = starting_checkpoint(own, run_dir, given) if isinstance(own, Origin) else checkpoint
            run = Run(config, given, callbacks, console)
            record = own.started_from if isinstance(own, Origin) else None
            if record is not None and start is not None:
                run.learned, start = Learned(start, record), None
            start = run.build_parts(
                engine.spec, start, own=checkpoint is not None, fall_back_in=home, notice=console.notice
            )
            metadata = Metadata(run_dir, config, list(sys.argv if arguments is None else arguments), record)
            metadata.resumed(previous, start.progress.clock if start else 0)
            return run.execute(run_dir, metadata, engine, start)


def _masks_of(
    config: TrainConfig, given: UserObjects, checkpoint: Checkpoint | None, notice: Callable[[str], None]
) -> TrainConfig:
    """Return the config with its masks settled; a run that begins with somebody's state stays with or without them."""
    if checkpoint is None:
        return with_masks(config, given, notice)
    had = checkpoint.config.use_action_masks == "on"
    if not had and config.use_action_masks == "auto":
        found = with_masks(config, given).use_action_masks == "on"
        if found:
            notice(
                f"environment '{config.env_id}' provides action masks, but {checkpoint.path} was trained without "
                "them and ignores them; train a new run to use them"
            )
        return config.with_overrides(use_action_masks="off") if found else config
    if had and config.use_action_masks == "on":
        try:
            return with_masks(config, given)
        except UserError as error:
            raise UserError(
                f"{checkpoint.path} was trained with action masks, but environment '{config.env_id}' provides none; "
                "load it with use_action_masks='off' to continue without them"
            ) from error
    return with_masks(config, given, notice)


def _extended(checkpoint: Checkpoint, config: TrainConfig) -> Checkpoint:
    """Write a new budget into the checkpoint at once, so that it is not forgotten whatever happens next.

    Whoever gives a budget wants the run to go on: an early stop is taken back.
    """
    state = checkpoint.state
    if "trainer" in state:
        state = state | {"trainer": state["trainer"] | {"stop_reason": None}}
    extended = replace(checkpoint, config=config, state=state)
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


class Follow(Callback):
    """Tells a model which agent it is while a run lasts, and knows the run's folder when it has ended anyhow."""

    def __init__(self, become: Callable[[Agent], None]) -> None:
        self.become = become
        self.run_dir: Path | None = None

    def on_start(self, context: TrainingContext) -> None:
        """Take the agent that is being trained."""
        self.run_dir = context.run_dir
        assert isinstance(context.agent, Agent)
        self.become(context.agent)


def _unfinished(
    run_dir: Path,
    checkpoint: Checkpoint,
    config: TrainConfig,
    previous: dict[str, Any],
    extended: bool,
    home: Path | None,
) -> Checkpoint:
    """Refuse to go on with a run that is finished, unless its end is damaged: then it is made again."""
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
    """Return why there is nothing to go on with, if so."""
    progress, status = (
        replace(checkpoint.progress, total_timesteps=config.total_timesteps),
        previous.get("status"),
    )
    done, total, unit = progress.clock, progress.total, progress.unit
    # a run killed in its last second still lacks its end, whatever its checkpoint says
    if done >= total and status in ("finished", "stopped"):
        return f"{run_dir} is finished ({done:,} of {total:,} {unit}); extend it with --total-timesteps N"
    if extended and total < done:
        return f"{run_dir} has already done {done:,} {unit}; use --total-timesteps {done} or more"
    # the checkpoint knows of an extension that the metadata has not heard of yet
    reason = checkpoint.state.get("trainer", {}).get("stop_reason", previous.get("stop_reason"))
    if status == "stopped" and reason is not None and not extended:
        return f"{run_dir} is finished ({reason}); to continue anyway, use --total-timesteps {total}"
    return None


def evaluate_checkpoint(
    path: str | PathLike[str],
    num_episodes: int = 10,
    env: EnvFactory | str | None = None,
    trust_modules: bool = False,
    encoder: EncoderClass | None = None,
) -> dict[str, Any]:
    """Evaluate any saved agent, run or checkpoint; return `mean_reward`, `std_reward` and more.

    `env` is another environment than its own: an id, or a function that builds one.
    """
    agent = load_agent(path, env=env, encoder=encoder, trust_modules=trust_modules, probe=False)
    return agent.evaluate(num_episodes)


@contextlib.contextmanager
def _equipped(config: TrainConfig, factory: EnvFactory | None) -> Iterator[tuple[TrainConfig, Engine]]:
    """Lend a run its environments and threads, and keep the memory that it frees; the config has their number in it.

    How many threads `auto` is depends on what the environments show; until that is known there is one, also in workers.
    """
    keep_freed_memory()
    with using_threads(config.num_threads), _engine(config, factory) as engine:
        config = settle_threads(config, engine.spec)
        with using_threads(config.num_threads):
            yield config, engine


@contextlib.contextmanager
def _engine(config: TrainConfig, factory: EnvFactory | None) -> Iterator[Engine]:
    engine = LocalEngine(lambda: training_stepper(config, factory))
    try:
        yield engine
    finally:
        engine.close()


__all__ = ["Follow", "TrainResult", "evaluate_checkpoint", "make_run_dir", "resume", "train"]


def check_trust(
    source: Path, own: Checkpoint | Origin, env_id: str | None, given: UserObjects, *, trusted: bool
) -> None:
    """Refuse an environment that is another than the run's own or not known here, and what may not be imported."""
    recorded, settings = own.config.env_id, own.config.algorithm
    refuse_other_env(source, recorded, env_id)
    refuse_missing_factory(source, recorded, needed=own.env_factory and given.factory is None)
    allowed = trusted or env_id is not None or given.factory is not None
    refuse_foreign_module(source, recorded, signed=own.signed, allowed=allowed)
    known = {"signed": own.signed, "trusted": trusted, "given": given.encoder is not None}
    refuse_foreign_encoder(source, settings.encoder, settings.encoder_kwargs, **known)
    permission = Permission(source, own.signed or trusted)
    permission.refuse_schedules(own.config)
    permission.refuse_wrappers(own.config)


def warn_of_differences(checkpoint: Checkpoint, config: TrainConfig) -> None:
    """Warn of everything around a run that is not as it was."""
    for difference in differences(checkpoint.facts["surroundings"], surroundings(config)):
        warnings.warn(f"{difference}: the resumed run may not be bit-for-bit identical", stacklevel=3)


def starting_checkpoint(origin: Origin, run_dir: Path, given: UserObjects) -> Checkpoint | None:
    """Return the checkpoint that a run which has none of its own had begun with, if it had."""
    if origin.algorithm is not None and origin.algorithm != custom_algorithm_name(origin.config, given):
        name = origin.algorithm.rpartition(":")[2]
        raise UserError(f"{run_dir} was started by {origin.algorithm}; use resume(path, algorithm={name})")
    if origin.start_from is None:
        return None
    if not origin.signed:
        raise UserError(f"{run_dir} has no checkpoint and is not signed by you; start it again")
    return read_checkpoint(run_dir / origin.start_from)
