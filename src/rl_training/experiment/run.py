"""Executes one run, from its start or from a checkpoint to its end, a pause or an error."""

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig
from rl_training.core.errors import EnvironmentFault, Interrupted, UserError
from rl_training.core.info_keywords import checked_keywords
from rl_training.core.protocols import Engine, EnvStepper, Evaluate, Learner
from rl_training.core.seeding import (
    callers_generators_kept,
    seed_global_generators,
    set_global_generators,
)
from rl_training.core.types import Array, EnvSpec, Evaluation, Progress
from rl_training.datasets.dataset import Dataset
from rl_training.envs.stepper_factory import evaluation_stepper
from rl_training.experiment.agent import Agent, agent_facts
from rl_training.experiment.building import UserObjects, build_parts
from rl_training.experiment.checkpoints.folders import has_checkpoints, read_newest
from rl_training.experiment.checkpoints.format import Checkpoint, refuse_large_replay, restoring
from rl_training.experiment.checkpoints.replay import load_replay
from rl_training.experiment.checkpoints.snapshot import Snapshots, brings_replay, checked_state, older_than
from rl_training.experiment.checkpoints.trust import Trust
from rl_training.experiment.checkpoints.warm_start import WarmStart
from rl_training.experiment.console import Console
from rl_training.experiment.evaluation import evaluate_policy
from rl_training.experiment.faults import (
    forget_traceback,
    last_checkpoint_text,
    readable_error,
    write_traceback,
)
from rl_training.experiment.files import write_text
from rl_training.experiment.games.evaluation import EvaluationOpponent
from rl_training.experiment.held_out import with_held_out_losses
from rl_training.experiment.histograms import HistogramLog
from rl_training.experiment.interrupts import Interrupts
from rl_training.experiment.learner_ranks.ranks import num_learners, sharded_learner
from rl_training.experiment.learner_ranks.sharded import ShardedLearner
from rl_training.experiment.logs.curves import plot_learning_curve
from rl_training.experiment.logs.elo_picture import plot_ratings
from rl_training.experiment.logs.metadata import Metadata
from rl_training.experiment.logs.sinks import EvaluationLog, MetricFiles
from rl_training.experiment.resources import check_memory, report_one_hot_memory, size_text
from rl_training.experiment.threads import run_threads
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
    offline: bool = False
    """Whether it learned from a dataset alone, so that it counts updates."""


class Run:
    """Trains in one run folder: call `build_parts`, then `execute`."""

    def __init__(
        self,
        config: TrainConfig,
        given: UserObjects,
        callbacks: Sequence[Callback],
        console: Console,
        placed: TrainConfig | None = None,
        *,
        evaluates: bool | None = None,
        dataset: Dataset | None = None,
    ) -> None:
        """By default the run `evaluates` if there is an environment; `dataset` is the one that the config names.

        `placed` is the config with the engine that was chosen for this machine; `config` is the one that is saved.
        """
        self.config, self.given, self.console, self.dataset = config, given, console, dataset
        self.evaluates = given.has_env(config) if evaluates is None else evaluates
        self.placed = config if placed is None else placed
        self.callbacks = [*config_callbacks(config), *callbacks]
        self.warm_start: WarmStart | None = None
        self.opponent: EvaluationOpponent | None = None
        """Who plays against the learner in evaluations; None if nobody does."""
        self.restarts = 0
        self.files: MetricFiles | None = None
        self.sharded: ShardedLearner | None = None

    def build_parts(
        self,
        spec: EnvSpec,
        checkpoint: Checkpoint | None,
        *,
        resumed: bool = False,
        fall_back_in: Path | None = None,
        notice: Callable[[str], None] | None = None,
    ) -> Checkpoint | None:
        """Build the parts, with the replay data of the checkpoint; return the checkpoint that is used.

        `resumed` means that the checkpoint belongs to this run. If it is damaged, an older one in the run folder
        `fall_back_in` is used. With `notice`, the memory that the run needs is checked and reported.
        """
        if notice is not None:
            report_one_hot_memory(self.config, spec, notice)
        self.facts = agent_facts(self.config, spec, self.given, env_factory=self.given.factory is not None)
        self.parts = build_parts(self.config, spec, self.given, self.dataset)
        self._show_update_path(notice)
        needed, storages = self.parts.source.nbytes, self.parts.source.storages
        if notice is not None and storages:
            check_memory(needed, "the replay buffer", "use a smaller buffer_size")
            notice(f"the replay buffer takes {size_text(needed)} of memory when full")
        elif notice is not None and not self.config.offline:
            check_memory(needed, "a rollout", "use fewer num_steps or num_envs")
        while checkpoint is not None and (resumed or brings_replay(checkpoint, storages)):
            try:
                with restoring(checkpoint.path):
                    refuse_large_replay(checkpoint)
                    load_replay(storages, checkpoint.path, checkpoint.facts["replay"])
                break
            except UserError as damage:
                if fall_back_in is None:
                    raise
                checkpoint = older_than(checkpoint, fall_back_in, damage)
                self.parts = build_parts(self.config, spec, self.given, self.dataset)
                storages = self.parts.source.storages
        return checkpoint

    def execute(
        self, run_dir: Path, metadata: Metadata, engine: Engine, checkpoint: Checkpoint | None
    ) -> TrainResult:
        """Train to the end; the folder records how the run ended, also after an error.

        `checkpoint` is the one that `build_parts` returned. If an environment fails, the run restarts from its last
        checkpoint, up to `max_restarts` times.
        """
        self.run_dir, self.metadata = run_dir, metadata
        if not self.evaluates:
            self.console.notice(NO_EVALUATION)
        while True:
            try:
                with self._attempt(engine) as interrupts:
                    try:
                        start = self._begin(checkpoint, interrupts)
                    except PauseTraining as pause:
                        result = self._paused_before_start(str(pause), checkpoint)
                    else:
                        result = self._finished(self.trainer.fit(start))
                if interrupts.received is not None and result.paused:
                    steps = int(result.metrics["global_step"])
                    unit = self.trainer.progress.unit
                    raise Interrupted(interrupts.received, self.run_dir, steps, self.snapshots.last, unit)
                return result
            except EnvironmentFault as fault:
                if self.restarts == self.config.max_restarts:
                    raise
                self.restarts += 1
                warnings.warn(f"{fault}; restart {self.restarts} of {self.config.max_restarts}", stacklevel=2)
                self.metadata.restarted(str(fault))
            spec = engine.spec
            # free the memory of the failed attempt before the next one needs as much
            del self.parts, self.sampler, self.trainer, self.snapshots
            self.sharded = None
            gc.collect()  # the fault's traceback and its frames hold each other
            if has_checkpoints(run_dir):  # otherwise it starts again from the beginning
                # a folder that this process created holds only what it wrote
                own = not self._belongs_to_run(checkpoint)
                trusted = own or (checkpoint is not None and checkpoint.modules_trusted)
                checkpoint = read_newest(run_dir, Trust(self.given.algorithm_for(self.config), trusted))
            resumed = self._belongs_to_run(checkpoint)
            checkpoint = self.build_parts(spec, checkpoint, resumed=resumed, fall_back_in=run_dir)
            engine.restart()

    @contextlib.contextmanager
    def _attempt(self, engine: Engine) -> Iterator[Interrupts]:
        """Create the sampler, evaluation environments and trainer of one attempt; record an error, and close them."""
        config, self.spec, self.total_updates = self.config, engine.spec, engine.total_updates
        self.sampler = engine.make_sampler(self.parts.actor, self.parts.source)
        checkpoints = self.run_dir / "checkpoints"
        self.snapshots = Snapshots(config, checkpoints, self.parts, self.sampler, self.spec, self.facts)
        self.files = None
        with contextlib.ExitStack() as open_things:
            self.open_things = open_things
            open_things.callback(engine.close)
            evaluation_envs = None
            if self.evaluates and self.opponent is None:
                evaluation_envs = evaluation_stepper(config, config.num_eval_episodes, self.given.factory)
                open_things.callback(evaluation_envs.close)
            interrupts = open_things.enter_context(Interrupts(config.max_time))
            evaluate = None if evaluation_envs is None else self._evaluate(evaluation_envs, interrupts)
            if self.evaluates and self.opponent is not None:
                evaluate = self._evaluate_against(self.opponent, interrupts)
            # ranks use the other cores themselves
            no_borrowing = bool(self.given.loss_names(config)) or num_learners(self.placed) > 1
            threads = run_threads(config, self.spec, self.parts.learner, own_code=no_borrowing, acts=True)
            updates = open_things.enter_context(threads)
            sharded = sharded_learner(self.placed, self.spec, self.given, self.parts.learner, updates)
            learner = open_things.enter_context(sharded)
            self.sharded = learner if isinstance(learner, ShardedLearner) else None
            held_out = with_held_out_losses(learner, self.parts, config.log_every_timesteps)
            self.trainer = self._trainer(held_out, interrupts, evaluate)
            open_things.callback(self.console.close)
            open_things.enter_context(callers_generators_kept())
            try:
                yield interrupts
            except BaseException as error:
                reported = self._record_error(error)
                if reported is error:
                    raise
                raise reported from error

    def _evaluate(self, envs: EnvStepper, interrupts: Interrupts) -> Evaluate:
        """Return a function that evaluates the current policy with the current statistics of the wrappers."""
        config, policy, sampler = self.config, self.parts.actor.policy, self.sampler

        def evaluate() -> Evaluation:
            if sampler is not None:
                envs.use_statistics(sampler.statistics())
            with (
                callers_generators_kept()
            ):  # also if a signal interrupts the evaluation while it restores them
                return interrupts.interruptible(
                    lambda: evaluate_policy(config, envs, policy, config.num_eval_episodes)
                )

        return evaluate

    def _evaluate_against(self, opponent: EvaluationOpponent, interrupts: Interrupts) -> Evaluate:
        """Return a function that lets the current policy play against another player."""
        config, policy, game, factory = (
            self.config,
            self.parts.actor.policy,
            self.spec.game,
            self.given.factory,
        )
        assert game is not None

        def evaluate() -> Evaluation:
            with callers_generators_kept():
                return interrupts.interruptible(lambda: opponent.evaluate(config, factory, game, policy))

        return evaluate

    def _trainer(self, learner: Learner[Any], interrupts: Interrupts, evaluate: Evaluate | None) -> Trainer:
        config = self.config
        log = EvaluationLog(self.run_dir / "evaluations.jsonl")
        return Trainer(
            self.sampler,
            self.parts.source,
            learner,
            cadence=Cadence(
                config.log_every_timesteps, config.eval_every_timesteps, config.checkpoint_every_timesteps
            ),
            logger=self,
            evaluate=evaluate,
            save_checkpoint=self.save,
            best_by=config.best_by,
            info_keywords=checked_keywords(config.info_keywords),
            callbacks=[*self.callbacks, *self._histograms(), log, self.console, interrupts],
        )

    def _histograms(self) -> list[Callback]:
        """Return the callback that writes histograms, if the config asks for them."""
        every = self.config.log_histograms_every

        def write(numbers: Mapping[str, Array], clock: int) -> None:
            assert self.files is not None
            self.files.log_histograms(numbers, clock)

        return [HistogramLog(every, self.parts.learner, write)] if every else []

    def _begin(self, checkpoint: Checkpoint | None, interrupts: Interrupts) -> Progress:
        """Restore the checkpoint, or begin a new run; return the progress so far."""
        resumed = checkpoint if self._belongs_to_run(checkpoint) else None
        if resumed is None:
            with self._writable():
                self.metadata.write()
        # before any file changes, in case the checkpoint does not fit
        interrupts.interruptible(lambda: self._restore(checkpoint))
        start = Progress(total_timesteps=self.config.total_timesteps, total_updates=self.total_updates)
        if checkpoint is not None:
            done = checkpoint.progress
            start = start.advanced(timesteps=done.timesteps, updates=done.updates)
        with self._writable():
            if resumed is not None:
                self.snapshots.continue_from(resumed)
            positions = resumed.facts["log_positions"] if resumed is not None else {}
            self.files = MetricFiles(self.run_dir, self.config, positions)
            self.open_things.callback(self.files.close)
        if resumed is None:  # so that the run can be resumed at once
            self.save(start, evaluation=None, best=False)
        with self._writable():  # after the checkpoint that contains it
            write_text(self.run_dir / "config.yaml", self.config.to_yaml())
            self.metadata.write(update_path=self.parts.learner.update_path, **self._replaced_losses())
            forget_traceback(self.run_dir)
        self._start_callbacks(start)
        self.console.start(start, self.trainer.episodes.means)
        return start

    def _show_update_path(self, notice: Callable[[str], None] | None) -> None:
        """Report replaced losses, and how gradients are computed if that is not the default."""
        if notice is None:
            return
        for name, function in self.facts["losses"].items():
            notice(f"{function} replaces the built-in {name}")
        if self.facts["losses"] or self.config.update_path != "auto":
            notice(f"gradients are computed by the update path '{self.parts.learner.update_path}'")

    def _replaced_losses(self) -> dict[str, Any]:
        """Return the names of replaced losses for the metadata; empty if there are none."""
        return {"losses": self.facts["losses"]} if self.facts["losses"] else {}

    def _belongs_to_run(self, checkpoint: Checkpoint | None) -> bool:
        return checkpoint is not None and checkpoint.path.parent == self.run_dir / "checkpoints"

    def _restore(self, checkpoint: Checkpoint | None) -> None:
        """Restore the state of a checkpoint, or seed a new run and load the weights of a warm start."""
        if checkpoint is None:
            seed_global_generators(self.config.seed)
            if self.warm_start is not None:
                self.warm_start.load_into(self.config, self.parts, self.spec)
                if self.sampler is not None:
                    self.sampler.use_statistics(self.warm_start.statistics, frozen=False)
            if self.sampler is not None:
                self.sampler.start()
            return
        resumed, state = self._belongs_to_run(checkpoint), checkpoint.state
        with restoring(checkpoint.path):
            self.snapshots.restore(checkpoint, resumed=resumed)
            if "trainer" in state:  # not written by Agent.save
                if resumed:
                    self.trainer.load_state_dict(state["trainer"])
                    self.trainer.last_evaluation = checkpoint.facts["evaluation"]
                set_global_generators(state["generators"])
            else:
                seed_global_generators(self.config.seed)

    def _start_callbacks(self, start: Progress) -> None:
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
            losses=self.facts["losses"],
        )
        trainer.begin(
            TrainingContext(agent, self.run_dir, self.config, start, trainer.log, trainer.set_learning_rate)
        )

    @contextlib.contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            culprit = error.filename2 or error.filename or self.run_dir
            raise UserError(f"{culprit} cannot be written: {error.strerror}") from error

    def log(self, metrics: dict[str, float], clock: int) -> None:
        """Write one row, with the cost of checkpoints and the lost learners so far, to the files and the console."""
        assert self.files is not None
        learners = {} if self.sharded is None else self.sharded.metrics()
        self.files.log(metrics | self.snapshots.cost | learners, clock)
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

    def _record_error(self, error: BaseException) -> BaseException:
        """Record an error in the run folder; return it with the last good checkpoint in its message."""
        if isinstance(error, UserError) and self.files is None:  # a bad checkpoint: nothing was changed
            return error
        interrupted = isinstance(error, KeyboardInterrupt)
        if not interrupted:
            write_traceback(self.run_dir, error)
        with contextlib.suppress(OSError):  # a full disk: the error itself matters more than its record
            ending = "interrupted" if interrupted else "failed"
            self.metadata.finish(ending, error=str(error) or type(error).__name__)
        return readable_error(error, self.run_dir, last_checkpoint_text(self.snapshots.last))

    def _paused_before_start(self, reason: str, checkpoint: Checkpoint | None) -> TrainResult:
        """Record a pause before the first step."""
        resumed = checkpoint if self._belongs_to_run(checkpoint) else None
        steps = resumed.progress.clock if resumed is not None else 0
        self.snapshots.last = resumed.path if resumed is not None else None
        self.metadata.finish("paused", stop_reason=reason)
        where = self.snapshots.last or self.snapshots.checkpoints
        offline = self.config.offline
        return TrainResult(self.run_dir, where, {"global_step": steps}, reason, paused=True, offline=offline)

    def _finished(self, progress: Progress) -> TrainResult:
        trainer, config = self.trainer, self.config
        title = f"{config.algo} on {config.task}, seed {config.seed}"
        plot_learning_curve(self.run_dir, title)
        if config.opponents != "self":
            plot_ratings(self.run_dir, title)
        evaluation = trainer.last_evaluation or {}
        metrics = {"global_step": progress.clock, "updates": progress.updates} | {
            f"eval/{name}": value for name, value in columns_of(evaluation).items()
        }
        reason = trainer.pause_reason if trainer.paused else trainer.stop_reason
        ending = "paused" if trainer.paused else "stopped" if trainer.stop_reason else "finished"
        self.metadata.finish(ending, stop_reason=reason, metrics=metrics)
        assert self.snapshots.last is not None
        return TrainResult(self.run_dir, self.snapshots.last, metrics, reason, trainer.paused, config.offline)
