"""One run folder being filled: builds the parts, drives the trainer, saves and restores everything."""

import contextlib
import json
import random
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.base import Algorithm
from rl_training.config import TrainConfig
from rl_training.core.errors import Interrupted, RunFault, UserError
from rl_training.core.types import Evaluation, Progress, State
from rl_training.envs.factory import EnvFactory
from rl_training.envs.stepper import VectorStepper
from rl_training.experiment.agent import (
    Agent,
    agent_facts,
    build_parts,
    check_spaces,
)
from rl_training.experiment.checkpointing import (
    Checkpoint,
    forget_after,
    point,
    prune,
    restore_model,
    restoring,
    write_checkpoint,
)
from rl_training.experiment.console import Console
from rl_training.experiment.curves import plot_learning_curve
from rl_training.experiment.evaluation import evaluate_policy, evaluation_stepper
from rl_training.experiment.faults import forget_traceback, write_traceback
from rl_training.experiment.files import write_text
from rl_training.experiment.interrupts import Interrupts
from rl_training.experiment.logging import MetricFiles
from rl_training.experiment.metadata import Metadata, surroundings
from rl_training.experiment.replay import FOLDER, ReplayFiles
from rl_training.runtime.callbacks import (
    Callback,
    PauseTraining,
    StopAtReward,
    StopOnPlateau,
    TimeLimit,
    TrainingContext,
)
from rl_training.runtime.collector import Collector
from rl_training.runtime.trainer import EVALUATION_COLUMNS, Cadence, Trainer


@dataclass(frozen=True)
class TrainResult:
    """What a run left: where it is and how it ended."""

    run_dir: Path
    checkpoint_path: Path
    """The newest checkpoint; the folder for them, if the run was interrupted before its first."""
    metrics: dict[str, Any] = field(default_factory=dict)
    stop_reason: str | None = None
    paused: bool = False


class Session:
    """A run from its start or from a checkpoint to its end, a pause or a fault."""

    def __init__(
        self,
        config: TrainConfig,
        run_dir: Path,
        stepper: VectorStepper,
        metadata: Metadata,
        *,
        algorithm: type[Algorithm] | None = None,
        factory: EnvFactory | None = None,
        callbacks: Sequence[Callback] = (),
        console: Console,
    ) -> None:
        self.config, self.run_dir, self.stepper, self.metadata = config, run_dir, stepper, metadata
        self.algorithm, self.factory, self.console = algorithm, factory, console
        self.callbacks = callbacks
        self.parts = build_parts(config, stepper.spec, algorithm)
        self.agent_facts = agent_facts(config, stepper.spec, algorithm, env_factory=factory is not None)
        self.checkpoints = run_dir / "checkpoints"
        self.replay = ReplayFiles(self.checkpoints, self.parts.source.storages)
        self.last_checkpoint: Path | None = None
        self.best_checkpoint: str | None = None
        self.files: MetricFiles | None = None
        self.checkpoint_cost = {"time/checkpoint_seconds": 0.0, "time/checkpoint_bytes": 0.0}

    def execute(self, checkpoint: Checkpoint | None) -> TrainResult:
        """Train to the end; whatever happens, the folder says how it ended."""
        resumed = checkpoint is not None and checkpoint.path.parent == self.checkpoints
        evaluator = evaluation_stepper(self.config, self.config.num_eval_episodes, self.factory)
        callers_generators = global_generators()
        with Interrupts(self.config.max_time) as interrupts:
            try:
                self.trainer = self._trainer(evaluator, interrupts)
                result = self._run(checkpoint, resumed, interrupts)
            except BaseException as error:
                told = self._failed(error)
                if told is error:
                    raise
                raise told from error
            finally:
                set_global_generators(callers_generators)
                self.console.close()
                evaluator.close()
                if self.files is not None:
                    self.files.close()
            if interrupts.received is not None and result.paused:
                steps = int(result.metrics["global_step"])
                raise Interrupted(interrupts.received, self.run_dir, steps, self.last_checkpoint)
        return result

    def _run(self, checkpoint: Checkpoint | None, resumed: bool, interrupts: Interrupts) -> TrainResult:
        if not resumed:
            self.metadata.write()
        try:  # touches no file of a run that goes on, so a checkpoint that does not fit does no harm
            start = interrupts.interruptible(lambda: self._begin(checkpoint, resumed))
        except PauseTraining as pause:
            return self._paused_at_once(str(pause), checkpoint if resumed else None)
        own = checkpoint if resumed else None
        self._open_files(own)
        if own is None:  # so that a run can be resumed from its first instant
            self._save(start, evaluation=None, best=False)
        self._record_start()
        self._tell_callbacks(start)
        self.console.start(start)
        return self._finished(self.trainer.fit(start))

    def _trainer(self, evaluator: VectorStepper, interrupts: Interrupts) -> Trainer:
        config, policy = self.config, self.parts.learner.policy
        collector = Collector(self.stepper, self.parts.learner.explorer, self.parts.source)

        def evaluate() -> Evaluation:
            evaluator.take_statistics(self.stepper)
            before = global_generators()
            try:
                return interrupts.interruptible(
                    lambda: evaluate_policy(config, evaluator, policy, config.num_eval_episodes)
                )
            except PauseTraining:
                set_global_generators(before)  # it will be made anew, by an environment that may use them
                raise

        return Trainer(
            collector,
            self.parts.source,
            self.parts.learner,
            cadence=Cadence(
                config.log_every_timesteps, config.eval_every_timesteps, config.checkpoint_every_timesteps
            ),
            logger=self,
            evaluate=evaluate,
            save_checkpoint=self._save,
            callbacks=[
                *self.callbacks,
                _EvaluationLog(self.run_dir / "evaluations.jsonl"),
                self.console,
                interrupts,
            ],
        )

    def _tell_callbacks(self, start: Progress) -> None:
        learner, stepper, trainer = self.parts.learner, self.stepper, self.trainer
        agent = Agent(
            self.config,
            stepper.spec,
            learner.policy,
            state=lambda: learner.state_dict() | {"envs": stepper.state_dict()},
            progress=lambda: trainer.progress,
            algorithm=self.algorithm,
            factory=self.factory,
        )
        trainer.begin(TrainingContext(agent, self.run_dir, self.config, start, trainer.log))

    def _begin(self, checkpoint: Checkpoint | None, resumed: bool) -> Progress:
        """Bring everything to the state of the checkpoint, or to the start; return the progress made so far."""
        start = Progress(total_timesteps=self.config.total_timesteps)
        if checkpoint is None:
            seed_global_generators(self.config.seed)
            self.stepper.reset()
            return start
        with restoring(checkpoint.path):
            self._restore(checkpoint, resumed)
        return start.advanced(timesteps=checkpoint.progress.timesteps, updates=checkpoint.progress.updates)

    def _open_files(self, checkpoint: Checkpoint | None) -> None:
        """Open the metric files; those of a resumed run are cut back to its checkpoint, and so is the folder."""
        with self._writable():
            if checkpoint is not None:
                self._cut_back(checkpoint)
            self.files = MetricFiles(
                self.run_dir, self.config, checkpoint.facts["log_positions"] if checkpoint else {}
            )

    def _cut_back(self, checkpoint: Checkpoint) -> None:
        forget_after(self.checkpoints, checkpoint.path.name)
        self.last_checkpoint = checkpoint.path
        self.best_checkpoint = checkpoint.facts["best_checkpoint"]
        point(self.checkpoints, "last", checkpoint.path.name)
        if self.best_checkpoint is not None and (self.checkpoints / self.best_checkpoint).is_dir():
            point(self.checkpoints, "best", self.best_checkpoint)
        self.replay.prune()

    def _record_start(self) -> None:
        """Write down what the run is now: after the checkpoint that has it, so that neither can say more."""
        with self._writable():
            write_text(self.run_dir / "config.yaml", self.config.to_yaml())
            self.metadata.write()
            forget_traceback(self.run_dir)

    @contextlib.contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            culprit = error.filename2 or error.filename or self.run_dir
            raise UserError(f"{culprit} cannot be written: {error.strerror}") from error

    def log(self, metrics: dict[str, float], timesteps: int) -> None:
        """Write one row, with what checkpoints have cost so far, to the metric files and the console."""
        assert self.files is not None
        self.files.log(metrics | self.checkpoint_cost, timesteps)
        self.console.log(metrics, timesteps)

    def _restore(self, checkpoint: Checkpoint, resumed: bool) -> None:
        state = checkpoint.state
        trained = checkpoint.spec or checkpoint.facts["spaces"]
        check_spaces(checkpoint.path, self.config, self.stepper.spec, trained)
        restore_model(self.parts.learner.policy, state["model"], checkpoint.path)
        self.parts.learner.load_state_dict(state)
        if "trainer" not in state:  # saved by hand: what was learned, and perhaps where the environments were
            self.stepper.resume(self._fitting_envs(state))
            return
        self._restore_source(checkpoint, resumed)
        self.stepper.change_seed(checkpoint.progress.timesteps)
        lost = self.stepper.resume(self._fitting_envs(state))
        self.parts.source.forget(lost)
        self.parts.learner.explorer.forget(lost)
        if lost and resumed and self.stepper.resumable:
            warnings.warn(
                f"environments {lost} are not deterministic: replaying their actions led elsewhere. They go on with a "
                "fresh episode, so this run is not the same as if it had not been interrupted",
                stacklevel=2,
            )
        if resumed:
            self.trainer.load_state_dict(state["trainer"], lost=lost)
            self.trainer.last_evaluation = checkpoint.facts["evaluation"]
        set_global_generators(state["generators"])

    def _fitting_envs(self, state: dict[str, State]) -> State:
        """Return the saved environments, nothing if their number was another."""
        envs = state.get("envs", {})
        return envs if len(envs.get("episodes", ())) == self.stepper.spec.num_envs else {}

    def _restore_source(self, checkpoint: Checkpoint, resumed: bool) -> None:
        """Restore what the source remembers; an agent saved apart from its run has no replay data to bring."""
        listed = checkpoint.facts["replay"]
        if self.replay.storages and not listed and not resumed:
            return
        self.replay.restore(checkpoint.path.parent / FOLDER, listed, own=resumed)
        self.parts.source.load_state_dict(checkpoint.state["source"])

    def _save(self, progress: Progress, *, evaluation: dict[str, Any] | None, best: bool) -> None:
        assert self.files is not None
        started, written = time.monotonic(), self.replay.bytes_written
        name = f"step_{progress.timesteps}"
        if best:
            self.best_checkpoint = name
        state: dict[str, State] = self.parts.learner.state_dict() | {
            "source": self.parts.source.state_dict(),
            "trainer": self.trainer.state_dict(),
            "envs": self.stepper.state_dict(),
            "generators": global_generators(),
        }
        facts = self.agent_facts | {
            "evaluation": evaluation,
            "best_checkpoint": self.best_checkpoint,
            "surroundings": surroundings(self.config),
        }
        try:
            self.checkpoints.mkdir(exist_ok=True)
            facts["log_positions"] = self.files.positions()
            facts["replay"] = self.replay.save(name)  # first: a manifest lists only what is there
            size = write_checkpoint(
                self.checkpoints / name, config=self.config, progress=progress, state=state, facts=facts
            )
            point(self.checkpoints, "last", name)
            if best:
                point(self.checkpoints, "best", name)
            prune(self.checkpoints, self.config.keep_checkpoints)
            self.replay.prune()
        except OSError as error:
            raise RunFault(f"checkpoint {name} could not be written: {error.strerror or error}") from error
        self.last_checkpoint = self.checkpoints / name
        self.checkpoint_cost["time/checkpoint_seconds"] += time.monotonic() - started
        self.checkpoint_cost["time/checkpoint_bytes"] += size + self.replay.bytes_written - written

    def _failed(self, error: BaseException) -> BaseException:
        """Record the end in the metadata, and add to the message where the last good state is."""
        if isinstance(error, UserError) and self.files is None:  # it does not fit: nothing was touched
            return error
        interrupted = isinstance(error, KeyboardInterrupt)
        if not interrupted:
            write_traceback(self.run_dir, error)
        with contextlib.suppress(OSError):  # a full disk: the error itself is worth more than its record
            ending = "interrupted" if interrupted else "failed"
            self.metadata.finish(ending, error=str(error) or type(error).__name__)
        kept = (
            f"last good checkpoint: {self.last_checkpoint}"
            if self.last_checkpoint
            else "no checkpoint was written"
        )
        if not isinstance(error, RunFault) and not interrupted:
            error.add_note(kept)
            return error
        if isinstance(error, RunFault):
            return type(error)(f"{error} ({kept})")
        return KeyboardInterrupt(f"{str(error) or 'interrupted'} ({kept})")

    def _paused_at_once(self, reason: str, checkpoint: Checkpoint | None) -> TrainResult:
        """Record a pause before the first step: what is on disk is where the run will go on."""
        steps = checkpoint.progress.timesteps if checkpoint else 0
        self.last_checkpoint = checkpoint.path if checkpoint else None
        self.metadata.finish("paused", stop_reason=reason)
        where = self.last_checkpoint or self.checkpoints
        return TrainResult(self.run_dir, where, {"global_step": steps}, reason, paused=True)

    def _finished(self, progress: Progress) -> TrainResult:
        trainer = self.trainer
        plot_learning_curve(
            self.run_dir, f"{self.config.algo} on {self.config.env_id}, seed {self.config.seed}"
        )
        evaluation = trainer.last_evaluation or {}
        metrics = {"global_step": progress.timesteps, "updates": progress.updates} | {
            f"eval/{name}": evaluation[name] for name in EVALUATION_COLUMNS if evaluation
        }
        reason = trainer.pause_reason if trainer.paused else trainer.stop_reason
        ending = "paused" if trainer.paused else "stopped" if trainer.stop_reason else "finished"
        self.metadata.finish(ending, stop_reason=reason, metrics=metrics)
        assert self.last_checkpoint is not None
        return TrainResult(self.run_dir, self.last_checkpoint, metrics, reason, trainer.paused)


class _EvaluationLog(Callback):
    """Appends every evaluation, with all its episodes, to `evaluations.jsonl`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_evaluate(self, progress: Progress, summary: dict[str, Any]) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"timesteps": progress.timesteps, **summary}) + "\n")
        except OSError as error:
            raise RunFault(f"{self.path.name} could not be written: {error.strerror or error}") from error


def seed_global_generators(seed: int) -> None:
    """Seed the generators nobody here uses, for environments and callbacks that do."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def global_generators() -> State:
    """Return the states of Python's, NumPy's and torch's global generators."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(words), gauss],
        "numpy": [str(kind), np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
    }


def set_global_generators(state: State) -> None:
    """Restore what `global_generators` returned."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])


def config_callbacks(config: TrainConfig) -> list[Callback]:
    """Return the stops that the config asks for."""
    found: list[Callback] = []
    if config.stop_at_reward is not None:
        found.append(StopAtReward(config.stop_at_reward))
    if config.stop_after_stale_evals is not None:
        found.append(StopOnPlateau(config.stop_after_stale_evals))
    if config.max_time is not None:
        found.append(TimeLimit(config.max_time))
    return found
