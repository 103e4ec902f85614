"""Runs: the folder, the parts, the loop, and what is left behind. Command line and Python both come through here."""

import contextlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, RunFault, UserError
from rl_training.core.seeding import EVALUATION_ACTIONS, numpy_generator
from rl_training.core.types import Evaluation, Progress, State
from rl_training.envs.factory import EnvFactory, make_vector_env
from rl_training.envs.stepper import VectorStepper
from rl_training.experiment.agent import build_parts, evaluation_stepper, load_agent
from rl_training.experiment.checkpointing import (
    Checkpoint,
    find_checkpoint,
    point,
    prune,
    read_checkpoint,
    restore_model,
    write_checkpoint,
)
from rl_training.experiment.console import Console
from rl_training.experiment.curves import plot_learning_curve
from rl_training.experiment.files import write_text
from rl_training.experiment.logging import RunLogger, open_logger
from rl_training.experiment.metadata import Metadata
from rl_training.runtime.callbacks import Callback, StopAtReward, StopOnPlateau, TimeLimit
from rl_training.runtime.collector import Collector
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.trainer import Cadence, Trainer


@dataclass(frozen=True)
class TrainResult:
    """What a run left: where it is and how it ended."""

    run_dir: Path
    checkpoint_path: Path
    metrics: dict[str, Any] = field(default_factory=dict)
    stop_reason: str | None = None


def make_run_dir(cfg: TrainConfig) -> Path:
    """Create and return `output_dir/<algo>__<env_id>__seed<seed>__<stamp>`; two runs never share one."""
    env_name = re.sub(r"[^A-Za-z0-9._-]+", "-", cfg.env_id)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    name = f"{cfg.algo}__{env_name}__seed{cfg.seed}__{stamp}"
    attempt = 0
    while True:
        path = Path(cfg.output_dir) / (f"{name}-{attempt}" if attempt else name)
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            if not path.is_dir():
                raise UserError(f"output_dir '{cfg.output_dir}' is a file; choose a folder") from None
            attempt += 1
        except NotADirectoryError:
            raise UserError(f"output_dir '{cfg.output_dir}' lies below a file; choose a folder") from None
        except OSError as error:
            raise UserError(f"output_dir '{cfg.output_dir}' cannot be written: {error.strerror}") from error


def train(
    config: TrainConfig,
    *,
    factory: EnvFactory | None = None,
    callbacks: Sequence[Callback] = (),
    start_from: Path | None = None,
    console: Console | None = None,
    arguments: Sequence[str] | None = None,
) -> TrainResult:
    """Train in a new run folder; `start_from` is a checkpoint whose state the run begins with."""
    checkpoint = read_checkpoint(start_from) if start_from is not None else None
    with (
        _threads(config),
        _environments(config, factory) as stepper,
    ):  # before the folder: bad input leaves none
        run_dir = make_run_dir(config)
        write_text(run_dir / "config.yaml", config.to_yaml())
        metadata = Metadata(run_dir, config, list(sys.argv if arguments is None else arguments))
        return _Run(config, run_dir, stepper, metadata, factory, callbacks, console or Console()).execute(
            checkpoint
        )


def resume(
    path: str | PathLike[str],
    *,
    total_timesteps: int | None = None,
    factory: EnvFactory | None = None,
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
    arguments: Sequence[str] | None = None,
) -> TrainResult:
    """Go on with a run from its last checkpoint; `total_timesteps` extends a finished one.

    Schedules are functions of the fraction of the budget, so extending a run stretches them.
    """
    checkpoint = read_checkpoint(find_checkpoint(path))
    run_dir = checkpoint.path.parent.parent
    if checkpoint.path.parent.name != "checkpoints" or not (run_dir / "metadata.json").is_file():
        raise UserError(f"{path} is not part of a run; resume takes a run folder")
    config = checkpoint.config
    if total_timesteps is not None:
        config = config.with_overrides(total_timesteps=total_timesteps)
    if checkpoint.progress.timesteps >= config.total_timesteps:
        raise UserError(
            f"{run_dir} is finished ({checkpoint.progress.timesteps:,} of {config.total_timesteps:,} steps); "
            "extend it with --total-timesteps N"
        )
    with _threads(config), _environments(config, factory) as stepper:
        write_text(run_dir / "config.yaml", config.to_yaml())
        metadata = Metadata(run_dir, config, list(sys.argv if arguments is None else arguments))
        metadata.resumed(_read_metadata(run_dir), checkpoint.progress.timesteps)
        return _Run(config, run_dir, stepper, metadata, factory, callbacks, console or Console()).execute(
            checkpoint
        )


class _Run:
    """One run folder being filled: builds the parts, drives the trainer, writes what is promised."""

    def __init__(
        self,
        config: TrainConfig,
        run_dir: Path,
        stepper: VectorStepper,
        metadata: Metadata,
        factory: EnvFactory | None,
        callbacks: Sequence[Callback],
        console: Console,
    ) -> None:
        self.config, self.run_dir, self.stepper, self.metadata = config, run_dir, stepper, metadata
        self.factory, self.console = factory, console
        self.callbacks = [*_config_callbacks(config), *callbacks]
        self.parts = build_parts(config, stepper.spec)
        self.checkpoints = run_dir / "checkpoints"
        self.last_checkpoint: Path | None = None

    def execute(self, checkpoint: Checkpoint | None) -> TrainResult:
        """Train to the end; whatever happens, the folder says how it ended."""
        self.metadata.write()
        resumed = checkpoint is not None and checkpoint.path.parent == self.checkpoints
        start = Progress(total_timesteps=self.config.total_timesteps)
        if checkpoint is not None:
            start = start.advanced(
                timesteps=checkpoint.progress.timesteps, updates=checkpoint.progress.updates
            )
        logger = open_logger(self.run_dir, self.config, timesteps=start.timesteps if resumed else 0)
        evaluator = evaluation_stepper(self.config, self.config.num_eval_episodes, self.factory)
        self.trainer = self._trainer(logger, evaluator)
        try:
            if checkpoint is not None:
                self._restore(checkpoint)
            self.stepper.reset()
            self.console.start(start)
            progress = self.trainer.fit(start)
        except BaseException as error:
            self.metadata.finish(_status(error), error=str(error) or type(error).__name__)
            raise self._explained(error) from error
        finally:
            self.console.close()
            logger.close()
            evaluator.close()
        return self._finished(progress)

    def _trainer(self, logger: RunLogger, evaluator: VectorStepper) -> Trainer:
        config = self.config
        collector = Collector(self.stepper, self.parts.learner.explorer, self.parts.source)
        player = Evaluator(evaluator, self.parts.learner.policy)

        def evaluate() -> Evaluation:
            return player.evaluate(
                config.num_eval_episodes,
                deterministic=config.eval_deterministic,
                rng=numpy_generator(config.seed, EVALUATION_ACTIONS),
            )

        return Trainer(
            collector,
            self.parts.source,
            self.parts.learner,
            cadence=Cadence(
                config.log_every_timesteps, config.eval_every_timesteps, config.checkpoint_every_timesteps
            ),
            logger=RunLogger([*logger.sinks, self.console]),
            evaluate=evaluate,
            save_checkpoint=self._save,
            callbacks=[*self.callbacks, _EvaluationLog(self.run_dir / "evaluations.jsonl"), self.console],
        )

    def _save(self, progress: Progress, *, evaluation: dict[str, Any] | None, best: bool) -> None:
        state: dict[str, State] = self.parts.learner.state_dict() | {
            "source": self.parts.source.state_dict(),
            "trainer": self.trainer.state_dict(),
            "envs": self.stepper.state_dict(),
        }
        folder = self.checkpoints / f"step_{progress.timesteps}"
        self.checkpoints.mkdir(exist_ok=True)
        write_checkpoint(folder, config=self.config, progress=progress, state=state, evaluation=evaluation)
        point(self.checkpoints, "last", folder)
        if best:
            point(self.checkpoints, "best", folder)
        prune(self.checkpoints, self.config.keep_checkpoints)
        self.last_checkpoint = folder

    def _restore(self, checkpoint: Checkpoint) -> None:
        policy = self.parts.learner.policy
        assert isinstance(policy, torch.nn.Module)
        restore_model(policy, checkpoint.state["model"], checkpoint.path)
        self.parts.learner.load_state_dict(checkpoint.state)
        if "trainer" not in checkpoint.state:
            return  # a saved agent that never was in a run
        same_envs = len(checkpoint.state["source"]["running_returns"]) == self.stepper.spec.num_envs
        if same_envs:
            self.parts.source.load_state_dict(checkpoint.state["source"])
        self.trainer.load_state_dict(checkpoint.state["trainer"])
        self.stepper.load_state_dict(checkpoint.state["envs"])
        self.last_checkpoint = checkpoint.path

    def _explained(self, error: BaseException) -> BaseException:
        """Add where the last good state is to a fault's message."""
        if not isinstance(error, RunFault):
            return error
        kept = (
            f"last checkpoint: {self.last_checkpoint}"
            if self.last_checkpoint
            else "no checkpoint was due yet"
        )
        return type(error)(f"{error} ({kept})")

    def _finished(self, progress: Progress) -> TrainResult:
        plot_learning_curve(
            self.run_dir, f"{self.config.algo} on {self.config.env_id}, seed {self.config.seed}"
        )
        evaluation = self.trainer.last_evaluation or {}
        metrics = {"global_step": progress.timesteps, "updates": progress.updates} | {
            f"eval/{name}": evaluation[name]
            for name in ("mean_reward", "std_reward", "mean_ep_length")
            if evaluation
        }
        status = "finished" if self.trainer.stop_reason is None else "stopped"
        self.metadata.finish(status, stop_reason=self.trainer.stop_reason, metrics=metrics)
        assert self.last_checkpoint is not None
        return TrainResult(self.run_dir, self.last_checkpoint, metrics, self.trainer.stop_reason)


class _EvaluationLog(Callback):
    """Appends every evaluation, with all its episodes, to `evaluations.jsonl`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_evaluate(self, progress: Progress, summary: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"timesteps": progress.timesteps, **summary}) + "\n")


def evaluate_checkpoint(path: str | PathLike[str], num_episodes: int = 10) -> dict[str, Any]:
    """Evaluate any saved agent, run or checkpoint; return `mean_reward`, `std_reward` and more."""
    return load_agent(path).evaluate(num_episodes)


def train_ppo(cfg: TrainConfig, **overrides: Any) -> TrainResult:
    """Train PPO; keyword overrides reach run-level and algorithm-level settings alike."""
    return _train_algorithm("ppo", cfg, overrides)


def _train_algorithm(algo: str, cfg: TrainConfig, overrides: dict[str, Any]) -> TrainResult:
    if cfg.algo != algo:
        raise ConfigError([f"algo is '{cfg.algo}', but train_{algo} takes algo '{algo}'"])
    return train(cfg.with_overrides(**overrides))


@contextlib.contextmanager
def _threads(config: TrainConfig) -> Iterator[None]:
    """Use the configured number of threads while the run lasts."""
    before = torch.get_num_threads()
    torch.set_num_threads(config.num_threads)
    try:
        with threadpool_limits(config.num_threads, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _environments(config: TrainConfig, factory: EnvFactory | None) -> Iterator[VectorStepper]:
    stepper = VectorStepper(
        make_vector_env(config, factory=factory), seed=config.seed if config.env_backend == "native" else None
    )
    try:
        yield stepper
    finally:
        stepper.close()


def _config_callbacks(config: TrainConfig) -> list[Callback]:
    found: list[Callback] = []
    if config.stop_at_reward is not None:
        found.append(StopAtReward(config.stop_at_reward))
    if config.stop_after_stale_evals is not None:
        found.append(StopOnPlateau(config.stop_after_stale_evals))
    if config.max_time is not None:
        found.append(TimeLimit(config.max_time))
    return found


def _status(error: BaseException) -> str:
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"


def _read_metadata(run_dir: Path) -> dict[str, Any]:
    try:
        data = json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
