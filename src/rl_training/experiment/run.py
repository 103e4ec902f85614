"""One run being executed: from its start or a checkpoint to its end, a pause or a fault."""

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig
from rl_training.core.errors import EnvironmentFault, Interrupted, UserError
from rl_training.core.protocols import Engine, EnvStepper, Evaluate
from rl_training.core.seeding import (
    callers_generators_kept,
    global_generators,
    seed_global_generators,
    set_global_generators,
)
from rl_training.core.types import EnvSpec, Evaluation, Progress
from rl_training.envs.stepper_factory import evaluation_stepper
from rl_training.experiment.agent import Agent, agent_facts
from rl_training.experiment.building import UserObjects
from rl_training.experiment.checkpoints.folders import has_checkpoints, read_newest
from rl_training.experiment.checkpoints.format import Checkpoint, restoring
from rl_training.experiment.checkpoints.snapshot import Snapshots, checked_state, parts_with_replay
from rl_training.experiment.checkpoints.warm_start import Learned
from rl_training.experiment.console import Console
from rl_training.experiment.evaluation import evaluate_policy
from rl_training.experiment.faults import (
    forget_traceback,
    last_checkpoint_text,
    readable_error,
    write_traceback,
)
from rl_training.experiment.files import write_text
from rl_training.experiment.interrupts import Interrupts
from rl_training.experiment.logs.curves import plot_learning_curve
from rl_training.experiment.logs.metadata import Metadata
from rl_training.experiment.logs.sinks import EvaluationLog, MetricFiles
from rl_training.runtime.callbacks import Callback, PauseTraining, TrainingContext, config_callbacks
from rl_training.runtime.trainer import Cadence, Trainer, columns_of

NO_EVALUATION = "there is no environment to evaluate in: this run has no evaluations and no best checkpoint"


@dataclass(frozen=True)
class TrainResult:
    """The result of a run: its folder and how it ended."""

    run_dir: Path
    checkpoint_path: Path
    """The newest checkpoint; the folder for them, if the run was interrupted before its first."""
    metrics: dict[str, Any] = field(default_factory=dict)
    stop_reason: str | None = None
    paused: bool = False


class Run:
    """Fills one run folder: `build_parts`, then `execute`."""

    def __init__(
        self,
        config: TrainConfig,
        given: UserObjects,
        callbacks: Sequence[Callback],
        console: Console,
        *,
        evaluates: bool = True,
    ) -> None:
        """`evaluates` is false where there is no environment to evaluate in."""
        self.config, self.given, self.console, self.evaluates = config, given, console, evaluates
        self.callbacks = [*config_callbacks(config), *callbacks]
        self.learned: Learned | None = None
        self.restarts = 0
        self.files: MetricFiles | None = None

    def build_parts(
        self,
        spec: EnvSpec,
        checkpoint: Checkpoint | None,
        *,
        own: bool = False,
        fall_back_in: Path | None = None,
        notice: Callable[[str], None] | None = None,
    ) -> Checkpoint | None:
        """Build the parts with the replay data of the checkpoint; return it, or an older one if it is damaged.

        The arguments are those of `parts_with_replay`.
        """
        self.facts = agent_facts(self.config, spec, self.given, env_factory=self.given.factory is not None)
        self.parts, checkpoint = parts_with_replay(
            self.config, spec, self.given, checkpoint, own=own, fall_back_in=fall_back_in, notice=notice
        )
        return checkpoint

    def execute(
        self, run_dir: Path, metadata: Metadata, engine: Engine, checkpoint: Checkpoint | None
    ) -> TrainResult:
        """Train to the end; the folder records how the run ended, whatever happens.

        `checkpoint` is what `build_parts` returned. After a failing environment everything is built again from the last
        checkpoint, up to `max_restarts` times.
        """
        self.run_dir, self.metadata = run_dir, metadata
        if not self.evaluates:
            self.console.notice(NO_EVALUATION)
        while True:
            try:
                with self._equipped(engine) as interrupts:
                    try:
                        start = self._begin(checkpoint, interrupts)
                    except PauseTraining as pause:
                        result = self._paused_at_once(str(pause), checkpoint)
                    else:
                        result = self._finished(self.trainer.fit(start))
                if interrupts.received is not None and result.paused:
                    steps = int(result.metrics["global_step"])
                    raise Interrupted(interrupts.received, self.run_dir, steps, self.snapshots.last)
                return result
            except EnvironmentFault as fault:
                if self.restarts == self.config.max_restarts:
                    raise
                self._count_restart(fault)
            spec = engine.spec
            # free the memory of the failed attempt before the next one needs as much
            del self.parts, self.sampler, self.trainer, self.snapshots
            gc.collect()  # the fault's traceback and its frames hold each other
            if has_checkpoints(run_dir):  # otherwise it starts again from the beginning
                checkpoint = read_newest(run_dir)
            own = self._is_own(checkpoint)
            checkpoint = self.build_parts(spec, checkpoint, own=own, fall_back_in=run_dir)
            engine.restart()

    def _count_restart(self, fault: EnvironmentFault) -> None:
        self.restarts += 1
        warnings.warn(f"{fault}; restart {self.restarts} of {self.config.max_restarts}", stacklevel=3)
        self.metadata.restarted(str(fault))

    @contextlib.contextmanager
    def _equipped(self, engine: Engine) -> Iterator[Interrupts]:
        """Open what one attempt needs besides its parts; afterwards close it, and record a fault."""
        config, self.spec, self.total_updates = self.config, engine.spec, engine.total_updates
        self.sampler = engine.make_sampler(self.parts.actor.explorer, self.parts.source)
        checkpoints = self.run_dir / "checkpoints"
        self.snapshots = Snapshots(config, checkpoints, self.parts, self.sampler, self.spec, self.facts)
        self.files = None
        with contextlib.ExitStack() as open_things:
            self.open_things = open_things
            open_things.callback(engine.close)
            evaluation_envs = None
            if self.evaluates:
                evaluation_envs = evaluation_stepper(config, config.num_eval_episodes, self.given.factory)
                open_things.callback(evaluation_envs.close)
            interrupts = open_things.enter_context(Interrupts(config.max_time))
            evaluate = None if evaluation_envs is None else self._evaluate(evaluation_envs, interrupts)
            self.trainer = self._trainer(interrupts, evaluate)
            open_things.callback(self.console.close)
            open_things.enter_context(callers_generators_kept())
            try:
                yield interrupts
            except BaseException as error:
                reported = self._failed(error)
                if reported is error:
                    raise
                raise reported from error

    def _evaluate(self, envs: EnvStepper, interrupts: Interrupts) -> Evaluate:
        """Return a function that evaluates the policy as it is then, with the statistics of the sampler's wrappers."""
        config, policy, sampler = self.config, self.parts.actor.policy, self.sampler

        def evaluate() -> Evaluation:
            if sampler is not None:
                envs.use_statistics(sampler.statistics())
            before = global_generators()
            try:
                return interrupts.interruptible(
                    lambda: evaluate_policy(config, envs, policy, config.num_eval_episodes)
                )
            except PauseTraining:
                set_global_generators(before)  # it is repeated, in environments that may use them
                raise

        return evaluate

    def _trainer(self, interrupts: Interrupts, evaluate: Evaluate | None) -> Trainer:
        config = self.config
        log = EvaluationLog(self.run_dir / "evaluations.jsonl")
        return Trainer(
            self.sampler,
            self.parts.source,
            self.parts.learner,
            cadence=Cadence(
                config.log_every_timesteps, config.eval_every_timesteps, config.checkpoint_every_timesteps
            ),
            logger=self,
            evaluate=evaluate,
            save_checkpoint=self.save,
            best_by=config.best_by,
            callbacks=[*self.callbacks, log, self.console, interrupts],
        )

    def _begin(self, checkpoint: Checkpoint | None, interrupts: Interrupts) -> Progress:
        """Restore the checkpoint, or begin a new run; return the progress so far."""
        own = checkpoint if self._is_own(checkpoint) else None
        if own is None:
            with self._writable():
                self.metadata.write()
        # changes no file of a resumed run, so a checkpoint that does not fit does no harm
        interrupts.interruptible(lambda: self._bring_back(checkpoint))
        start = Progress(total_timesteps=self.config.total_timesteps, total_updates=self.total_updates)
        if checkpoint is not None:
            done = checkpoint.progress
            start = start.advanced(timesteps=done.timesteps, updates=done.updates)
        with self._writable():
            if own is not None:
                self.snapshots.go_on_after(own)
            positions = own.facts["log_positions"] if own is not None else {}
            self.files = MetricFiles(self.run_dir, self.config, positions)
            self.open_things.callback(self.files.close)
        if own is None:  # so that a run can be resumed from its beginning
            self.save(start, evaluation=None, best=False)
        with self._writable():  # after the checkpoint that contains it
            write_text(self.run_dir / "config.yaml", self.config.to_yaml())
            self.metadata.write(update_path=self.parts.learner.update_path)
            forget_traceback(self.run_dir)
        self._tell_callbacks(start)
        self.console.start(start, self.trainer.episodes.means)
        return start

    def _is_own(self, checkpoint: Checkpoint | None) -> bool:
        return checkpoint is not None and checkpoint.path.parent == self.run_dir / "checkpoints"

    def _bring_back(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            seed_global_generators(self.config.seed)
            if self.learned is not None:
                self.learned.put_into(self.config, self.parts, self.spec)
                if self.sampler is not None:
                    self.sampler.use_statistics(self.learned.statistics, frozen=False)
            if self.sampler is not None:
                self.sampler.start()
            return
        own, state = self._is_own(checkpoint), checkpoint.state
        with restoring(checkpoint.path):
            self.snapshots.restore(checkpoint, own=own)
            if "trainer" in state:  # not saved by hand
                if own:
                    self.trainer.load_state_dict(state["trainer"])
                    self.trainer.last_evaluation = checkpoint.facts["evaluation"]
                set_global_generators(state["generators"])
            else:
                seed_global_generators(self.config.seed)

    def _tell_callbacks(self, start: Progress) -> None:
        learner, sampler, trainer = self.parts.learner, self.sampler, self.trainer
        agent = Agent(
            self.config,
            self.spec,
            self.parts.actor.policy,
            state=lambda: (
                checked_state(learner, "the agent was not saved")
                | ({} if sampler is None else {"sampler": sampler.state_dict()})
            ),
            progress=lambda: trainer.progress,
            given=self.given,
        )
        trainer.begin(TrainingContext(agent, self.run_dir, self.config, start, trainer.log))

    @contextlib.contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            culprit = error.filename2 or error.filename or self.run_dir
            raise UserError(f"{culprit} cannot be written: {error.strerror}") from error

    def log(self, metrics: dict[str, float], clock: int) -> None:
        """Write one row, with the cost of checkpoints so far, to the metric files and the console."""
        assert self.files is not None
        self.files.log(metrics | self.snapshots.cost, clock)
        self.console.log(metrics, clock)

    def save(self, progress: Progress, *, evaluation: dict[str, Any] | None, best: bool) -> None:
        """Write a checkpoint, after the rows that belong to it."""
        assert self.files is not None
        self.snapshots.save(
            progress,
            trainer=self.trainer.state_dict(),
            log_positions=self.files.positions,
            evaluation=evaluation,
            best=best,
        )

    def _failed(self, error: BaseException) -> BaseException:
        """Record the fault in the metadata, and add the last good checkpoint to the message."""
        if (
            isinstance(error, UserError) and self.files is None
        ):  # the checkpoint does not fit: nothing was changed
            return error
        interrupted = isinstance(error, KeyboardInterrupt)
        if not interrupted:
            write_traceback(self.run_dir, error)
        with contextlib.suppress(OSError):  # a full disk: the error itself matters more than its record
            ending = "interrupted" if interrupted else "failed"
            self.metadata.finish(ending, error=str(error) or type(error).__name__)
        return readable_error(error, self.run_dir, last_checkpoint_text(self.snapshots.last))

    def _paused_at_once(self, reason: str, checkpoint: Checkpoint | None) -> TrainResult:
        """Record a pause before the first step; a resumed run continues from what is on disk."""
        own = checkpoint if self._is_own(checkpoint) else None
        steps = own.progress.clock if own is not None else 0
        self.snapshots.last = own.path if own is not None else None
        self.metadata.finish("paused", stop_reason=reason)
        where = self.snapshots.last or self.snapshots.checkpoints
        return TrainResult(self.run_dir, where, {"global_step": steps}, reason, paused=True)

    def _finished(self, progress: Progress) -> TrainResult:
        trainer, config = self.trainer, self.config
        plot_learning_curve(self.run_dir, f"{config.algo} on {config.env_id}, seed {config.seed}")
        evaluation = trainer.last_evaluation or {}
        metrics = {"global_step": progress.clock, "updates": progress.updates} | {
            f"eval/{name}": value for name, value in columns_of(evaluation).items()
        }
        reason = trainer.pause_reason if trainer.paused else trainer.stop_reason
        ending = "paused" if trainer.paused else "stopped" if trainer.stop_reason else "finished"
        self.metadata.finish(ending, stop_reason=reason, metrics=metrics)
        assert self.snapshots.last is not None
        return TrainResult(self.run_dir, self.snapshots.last, metrics, reason, trainer.paused)
