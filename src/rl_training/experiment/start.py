"""Start a run: `train` checks everything before the run leaves a trace. `evaluate_checkpoint` plays a saved agent."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
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
    flattened_images,
    with_masks,
)
from rl_training.experiment.checkpoints.folders import open_checkpoint
from rl_training.experiment.checkpoints.format import Checkpoint
from rl_training.experiment.checkpoints.locking import RunLock
from rl_training.experiment.checkpoints.warm_start import FOLDER, Learned
from rl_training.experiment.console import Console
from rl_training.experiment.loading import check_algorithm, load_agent
from rl_training.experiment.logs.metadata import Metadata
from rl_training.experiment.logs.sinks import check_tracker
from rl_training.experiment.resources import keep_freed_memory, settle_threads, using_threads
from rl_training.experiment.run import Run, TrainResult
from rl_training.experiment.run_folder import (
    make_run_dir,
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
    with equipped(config, factory) as (config, engine):
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
def equipped(config: TrainConfig, factory: EnvFactory | None) -> Iterator[tuple[TrainConfig, Engine]]:
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


__all__ = ["Follow", "TrainResult", "equipped", "evaluate_checkpoint", "make_run_dir", "train"]
