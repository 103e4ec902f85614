"""Starts runs: `train` checks everything before it creates a run folder. `evaluate_checkpoint` evaluates an agent."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.losses import LossFunction
from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.protocols import Engine
from rl_training.datasets.dataset import Dataset
from rl_training.envs.determinism import settle_rebuilding
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.agent import Agent
from rl_training.experiment.building import UserObjects, choose_device, flattened_images, with_masks
from rl_training.experiment.checkpoints.folders import keep_checkpoint
from rl_training.experiment.checkpoints.format import Checkpoint
from rl_training.experiment.checkpoints.locking import RunLock
from rl_training.experiment.checkpoints.saved_losses import compare_losses
from rl_training.experiment.checkpoints.trust import Trust
from rl_training.experiment.checkpoints.warm_start import FOLDER, WarmStart
from rl_training.experiment.console import Console
from rl_training.experiment.environment_remarks import environment_remarks
from rl_training.experiment.games.evaluation import evaluation_opponent
from rl_training.experiment.loading import check_algorithm, load_agent
from rl_training.experiment.logs.metadata import Metadata
from rl_training.experiment.logs.sinks import check_tracker
from rl_training.experiment.run import Run, TrainResult
from rl_training.experiment.run_data import open_collecting, open_data, settle_environment
from rl_training.experiment.run_folder import make_run_dir
from rl_training.models.encoders import EncoderClass
from rl_training.runtime.callbacks import Callback, TrainingContext

NOT_REPRODUCIBLE = "lag free: the result depends on the speed of the machine, and is not reproducible"


def train(
    config: TrainConfig,
    *,
    algorithm: type[Algorithm] | None = None,
    factory: EnvFactory | None = None,
    encoder: EncoderClass | None = None,
    losses: Mapping[str, LossFunction] | None = None,
    callbacks: Sequence[Callback] = (),
    start_from: str | PathLike[str] | None = None,
    learned: Checkpoint | None = None,
    console: Console | None = None,
    arguments: Sequence[str] | None = None,
    trust_modules: bool = False,
) -> TrainResult:
    """Train in a new run folder.

    `start_from` is a checkpoint to continue from, with all of its state and its steps; `trust_modules` trusts it. Of
    the checkpoint `learned`, only the weights and wrapper statistics are used; steps count from 0. `algorithm`
    and `encoder` replace the classes of the config, `factory` builds the environments, and `losses` replace losses.
    """
    given, console = UserObjects(algorithm, factory, encoder, losses or {}), console or Console()
    given = replace(given, algorithm=(algorithm := given.algorithm_for(config)))
    config = given.named(config)
    with contextlib.ExitStack() as stack:
        checkpoint, reading = None, stack.enter_context(contextlib.ExitStack())
        if start_from is not None:
            checkpoint = reading.enter_context(keep_checkpoint(start_from, Trust(algorithm, trust_modules)))
        for source in filter(None, (checkpoint, learned)):
            check_algorithm(source, algorithm)
        warm_start = None if learned is None else WarmStart.from_checkpoint(learned)
        choose_device(config.device)
        check_tracker(config)
        compare_losses(config, given, checkpoint, learned, console.notice)
        dataset = open_data(config, given, checkpoint, console.notice)
        config = _settled(config, given, dataset, checkpoint or learned, console.notice)
        engine, placement = stack.enter_context(open_collecting(config, given, console, dataset))
        _show_notices(config, engine, console)
        _show_remarks(config, given, console, continues=start_from is not None)
        run = Run(config, given, callbacks, console, placement.config, dataset=dataset)
        run.build_parts(engine.spec, checkpoint, notice=console.notice)
        run.opponent = evaluation_opponent(config, engine.spec, factory, None, trust_modules)
        reading.close()  # the replay data is in memory now
        # last, so that bad input leaves no folder
        run_dir = _create_folder(run, warm_start, checkpoint, engine)
        metadata = Metadata(run_dir, config, arguments, engine=placement.record)
        if warm_start is not None:
            metadata.data["started_from"] = warm_start.record
            console.notice(warm_start.notice)
        with RunLock(run_dir):
            return run.execute(run_dir, metadata, engine, checkpoint)


def _settled(
    config: TrainConfig,
    given: UserObjects,
    dataset: Dataset | None,
    source: Checkpoint | None,
    notice: Callable[[str], None],
) -> TrainConfig:
    """Return the config with everything that its dataset and its environment decide."""
    if dataset is not None:
        config = settle_environment(config, given, dataset, notice)
    if not given.has_env(config):
        return config
    return settle_rebuilding(_resolve_masks(config, given, source, notice), given.factory, notice)


def _show_remarks(config: TrainConfig, given: UserObjects, console: Console, *, continues: bool) -> None:
    """Show what is worth knowing about the environment; the run that this one continues has shown it."""
    if not continues and console.shows_notices and given.has_env(config):
        for remark in environment_remarks(config, given.factory):
            console.notice(f"environment '{config.env_id}': {remark}")


def _show_notices(config: TrainConfig, engine: Engine, console: Console) -> None:
    for notice in engine.notices:
        console.notice(notice)
    if not config.reproducible:
        console.notice(NOT_REPRODUCIBLE)
    for key in flattened_images(config, engine.spec):
        console.notice(
            f"{f'entry {key!r} of an observation' if key else 'an observation'} is an image, but encoder 'flat' "
            "flattens it; encoder 'auto' uses a CNN"
        )
    if not config.offline:
        for mistake in config.algorithm.probable_mistakes(config.total_timesteps, config.num_envs):
            console.notice(mistake)


def _create_folder(
    run: Run, warm_start: WarmStart | None, checkpoint: Checkpoint | None, engine: Engine
) -> Path:
    """Create and return the run folder, with copies of the weights of a warm start and of an opponent's."""
    config, given = run.config, run.given

    def fill(folder: Path) -> None:
        if warm_start is not None:
            warm_start.write(folder, config, run.parts, run.facts)
        if run.opponent is not None:
            run.opponent.write(folder)

    if warm_start is None:
        start = checkpoint.path.resolve() if checkpoint else None
        return make_run_dir(config, start_from=start, given=given, fill=fill)
    run.warm_start = warm_start
    warm_start.load_into(config, run.parts, engine.spec)
    return make_run_dir(
        config,
        start_from=Path(FOLDER),
        given=given,
        started_from=warm_start.record,
        fill=fill,
    )


def _resolve_masks(
    config: TrainConfig, given: UserObjects, checkpoint: Checkpoint | None, notice: Callable[[str], None]
) -> TrainConfig:
    """Return the config with `use_action_masks` resolved; a run that starts from a checkpoint uses masks if it did."""
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
    """Passes the agent being trained to a model, keeps the run folder, and calls `restored` once training starts."""

    def __init__(self, become: Callable[[Agent], None], restored: Callable[[], None] = lambda: None) -> None:
        self.become, self.restored = become, restored
        self.run_dir: Path | None = None

    def on_start(self, context: TrainingContext) -> None:
        """Pass on the agent."""
        self.run_dir = context.run_dir
        assert isinstance(context.agent, Agent)
        self.become(context.agent)
        self.restored()


def evaluate_checkpoint(
    path: str | PathLike[str],
    num_episodes: int = 10,
    env: EnvFactory | str | None = None,
    trust_modules: bool = False,
    encoder: EncoderClass | None = None,
) -> dict[str, Any]:
    """Evaluate a saved agent, run or checkpoint; return `mean_reward`, `std_reward` and more.

    `env` is another environment to evaluate in: an id, or a function that builds one.
    """
    agent = load_agent(path, env=env, encoder=encoder, trust_modules=trust_modules, probe=False)
    return agent.evaluate(num_episodes)


__all__ = ["Follow", "TrainResult", "evaluate_checkpoint", "make_run_dir", "train"]
