"""Starting, resuming and evaluating runs. Command line and Python both come through here."""

import contextlib
import errno
import os
import re
import secrets
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from rl_training.algorithms.base import Algorithm
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, EnvironmentFault, UserError
from rl_training.envs.factory import EnvFactory, make_vector_env
from rl_training.envs.history import settle_rebuilding
from rl_training.envs.stepper import VectorStepper
from rl_training.experiment.agent import Agent, build_parts, choose_device, own_build
from rl_training.experiment.checkpointing import (
    Checkpoint,
    find_checkpoint,
    has_checkpoints,
    read_checkpoint,
    read_given,
    read_newest,
    recover_aside,
    write_checkpoint,
)
from rl_training.experiment.console import Console
from rl_training.experiment.files import refuse_strange_files
from rl_training.experiment.loading import check_algorithm, load_agent
from rl_training.experiment.locking import RunLock
from rl_training.experiment.logging import check_tracker
from rl_training.experiment.memory import refuse_too_large, size_text
from rl_training.experiment.metadata import Metadata, differences, read_metadata, surroundings
from rl_training.experiment.origin import Origin, read_origin
from rl_training.experiment.replay import verify_replay
from rl_training.experiment.session import Session, TrainResult, config_callbacks
from rl_training.experiment.trust import refuse_foreign_module, refuse_missing_factory, refuse_other_env
from rl_training.runtime.callbacks import Callback, TrainingContext

NOT_RESUMABLE = (
    "native vector environments cannot be brought back to the middle of an episode: after an interruption this run "
    "goes on with fresh episodes, and not exactly as it would have"
)

RECORDS = ("metrics.jsonl", "evaluations.jsonl")
"""What a run that has begun writes into; one with rows but no checkpoint has lost its checkpoints."""


def make_run_dir(
    cfg: TrainConfig,
    *,
    start_from: Path | None = None,
    algorithm: type[Algorithm] | None = None,
    env_factory: bool = False,
) -> Path:
    """Create and return `output_dir/<algo>__<env_id>__seed<seed>__<stamp>`; two runs never share one.

    The folder appears with its `config.yaml` inside, so that a run killed in its first instant can be begun again.
    """
    env_name = re.sub(r"[^A-Za-z0-9._-]+", "-", cfg.env_id)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    name = f"{cfg.algo}__{env_name}__seed{cfg.seed}__{stamp}"
    prepared = Path(cfg.output_dir) / f".{secrets.token_hex(8)}.tmp"
    try:
        prepared.mkdir(parents=True)
        begun_with = None if start_from is None else str(start_from.resolve())
        Origin(cfg, begun_with, own_build(cfg, algorithm), env_factory).write(prepared)
        return _published(prepared, Path(cfg.output_dir) / name)
    except FileExistsError:
        raise UserError(f"output_dir '{cfg.output_dir}' is a file; choose a folder") from None
    except NotADirectoryError:
        raise UserError(f"output_dir '{cfg.output_dir}' lies below a file; choose a folder") from None
    except OSError as error:
        shutil.rmtree(prepared, ignore_errors=True)
        raise UserError(f"output_dir '{cfg.output_dir}' cannot be written: {error.strerror}") from error


def _published(prepared: Path, path: Path) -> Path:
    """Give a prepared folder its name, or one with a number, if that is taken."""
    attempt = 0
    while True:
        free = path.with_name(f"{path.name}-{attempt}") if attempt else path
        try:
            os.rename(prepared, free)  # fails if there is a file, or a folder with something in it
            return free
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            attempt += 1


def train(
    config: TrainConfig,
    *,
    algorithm: type[Algorithm] | None = None,
    factory: EnvFactory | None = None,
    callbacks: Sequence[Callback] = (),
    start_from: str | PathLike[str] | None = None,
    console: Console | None = None,
    arguments: Sequence[str] | None = None,
) -> TrainResult:
    """Train in a new run folder; `start_from` is a checkpoint whose state the run begins with.

    `algorithm` is the class whose `build` makes the parts; by default the table's entry for the config.
    """
    checkpoint = None
    if start_from is not None:
        checkpoint = read_given(start_from)
        check_algorithm(checkpoint, algorithm)
        verify_replay(checkpoint.path, checkpoint.facts["replay"])
    choose_device(config.device)
    check_tracker(config)
    console = console or Console()
    config = settle_rebuilding(config, factory, console.notice)
    with (
        _threads(config),
        _environments(config, factory) as stepper,
    ):  # before the folder: bad input leaves none
        if not stepper.resumable:
            console.notice(NOT_RESUMABLE)
        for remark in config.algorithm.remarks(config.total_timesteps):
            console.notice(remark)
        _announce_memory(config, stepper, console, algorithm)
        run_dir = make_run_dir(
            config,
            start_from=checkpoint.path if checkpoint else None,
            algorithm=algorithm,
            env_factory=factory is not None,
        )
        metadata = Metadata(run_dir, config, list(sys.argv if arguments is None else arguments))
        launch = _Launch(config, run_dir, metadata, algorithm, factory, callbacks, console)
        with RunLock(run_dir):
            return launch.run(stepper, checkpoint)


def resume(
    path: str | PathLike[str],
    *,
    total_timesteps: int | None = None,
    max_time: float | None = None,
    algorithm: type[Algorithm] | None = None,
    factory: EnvFactory | None = None,
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
    run_dir = _run_of(Path(path))
    refuse_strange_files(run_dir)
    with RunLock(run_dir):
        recover_aside(run_dir / "checkpoints")
        named = Path(path).resolve() != run_dir.resolve()  # a checkpoint asked for by name is used or refused
        checkpoint = read_checkpoint(find_checkpoint(path)) if named else _where_to_go_on(run_dir)
        previous = read_metadata(run_dir)
        own = checkpoint or read_origin(run_dir)
        refuse_other_env(run_dir, own.config.env_id, env_id)
        refuse_missing_factory(run_dir, own.config.env_id, needed=own.env_factory and factory is None)
        refuse_foreign_module(
            checkpoint.path if checkpoint else run_dir,
            own.config.env_id,
            signed=own.signed,
            allowed=trust_modules or env_id is not None or factory is not None,
        )
        config = own.config.with_overrides(max_time=max_time)
        if total_timesteps is not None:
            config = config.with_overrides(total_timesteps=total_timesteps)
        if checkpoint is not None:
            check_algorithm(checkpoint, algorithm)
            _refuse_finished(run_dir, checkpoint, config, previous, extended=total_timesteps is not None)
            if total_timesteps is not None:
                checkpoint = _extended(checkpoint, config)
            for difference in differences(checkpoint.facts.get("surroundings", {}), surroundings(config)):
                warnings.warn(
                    f"{difference}: the run may not go on bit for bit as it would have", stacklevel=2
                )
        with _threads(config), _environments(config, factory) as stepper:
            if isinstance(own, Origin):
                checkpoint = _begun_with(own, run_dir, algorithm)
            metadata = Metadata(run_dir, config, list(sys.argv if arguments is None else arguments))
            metadata.resumed(previous, checkpoint.progress.timesteps if checkpoint else 0)
            console = console or Console()
            _announce_memory(config, stepper, console, algorithm)
            launch = _Launch(config, run_dir, metadata, algorithm, factory, callbacks, console)
            return launch.run(stepper, checkpoint)


def _where_to_go_on(run_dir: Path) -> Checkpoint | None:
    """Return the newest whole checkpoint, or None if the run was killed before its first one."""
    begun = any((run_dir / name).is_file() and (run_dir / name).stat().st_size for name in RECORDS)
    if has_checkpoints(run_dir) or begun or not (run_dir / "config.yaml").is_file():
        return _read_newest(run_dir)
    return None


def _begun_with(origin: Origin, run_dir: Path, algorithm: type[Algorithm] | None) -> Checkpoint | None:
    """Return the checkpoint that a run which has none of its own had begun with, if it had."""
    if origin.algorithm is not None and origin.algorithm != own_build(origin.config, algorithm):
        name = origin.algorithm.rpartition(":")[2]
        raise UserError(
            f"{run_dir} was begun by {origin.algorithm}; go on with resume(path, algorithm={name})"
        )
    if origin.start_from is None:
        return None
    if not origin.signed:
        raise UserError(f"{run_dir} has no checkpoint and is not signed by you; start it again")
    checkpoint = read_checkpoint(Path(origin.start_from))
    verify_replay(checkpoint.path, checkpoint.facts["replay"])
    return checkpoint


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


class _Launch:
    """Executes a session, and after a failing environment another one, as often as `max_restarts` allows."""

    def __init__(
        self,
        config: TrainConfig,
        run_dir: Path,
        metadata: Metadata,
        algorithm: type[Algorithm] | None,
        factory: EnvFactory | None,
        callbacks: Sequence[Callback],
        console: Console,
    ) -> None:
        self.config, self.run_dir, self.metadata = config, run_dir, metadata
        self.algorithm, self.factory, self.console = algorithm, factory, console
        self.callbacks = [*config_callbacks(config), *callbacks]

    def run(self, stepper: VectorStepper, checkpoint: Checkpoint | None) -> TrainResult:
        restarts = 0
        while True:
            try:
                return self._session(stepper).execute(checkpoint)
            except EnvironmentFault as fault:
                if restarts == self.config.max_restarts:
                    raise
                restarts += 1
                warnings.warn(f"{fault}; restart {restarts} of {self.config.max_restarts}", stacklevel=2)
                self.metadata.restarted(str(fault))
            finally:
                stepper.close()
            if has_checkpoints(self.run_dir):  # otherwise it begins as it began
                checkpoint = _read_newest(self.run_dir)
            stepper = _make_stepper(self.config, self.factory)

    def _session(self, stepper: VectorStepper) -> Session:
        return Session(
            self.config,
            self.run_dir,
            stepper,
            self.metadata,
            algorithm=self.algorithm,
            factory=self.factory,
            callbacks=self.callbacks,
            console=self.console,
        )


def _read_newest(run_dir: Path) -> Checkpoint:
    """Return the newest checkpoint that is whole, its replay data included."""
    return read_newest(
        run_dir, verify=lambda checkpoint: verify_replay(checkpoint.path, checkpoint.facts["replay"])
    )


def _announce_memory(
    config: TrainConfig, stepper: VectorStepper, console: Console, algorithm: type[Algorithm] | None
) -> None:
    """Refuse a buffer that does not fit, before the run leaves a trace; otherwise tell its size."""
    needed = build_parts(config, stepper.spec, algorithm).source.nbytes
    if needed:
        refuse_too_large(needed, "the replay buffer", "use a smaller buffer_size")
        console.notice(f"the replay buffer takes {size_text(needed)} of memory when full")


def _run_of(path: Path) -> Path:
    """Return the run folder that a run, a checkpoint of it, or `last`/`best` of it belongs to."""
    whole = path.absolute()  # `.` has no parents to look at
    for candidate in (path, path.parent, path.parent.parent, whole.parent, whole.parent.parent):
        if (candidate / "metadata.json").is_file() or has_checkpoints(candidate):
            return candidate
    if (path / "config.yaml").is_file() and not (path / "manifest.json").exists():
        return path
    problem = "is not part of a run" if path.exists() else "does not exist"
    raise UserError(f"{path} {problem}; resume takes a run folder")


def _refuse_finished(
    run_dir: Path, checkpoint: Checkpoint, config: TrainConfig, previous: dict[str, Any], *, extended: bool
) -> None:
    done, total, status = checkpoint.progress.timesteps, config.total_timesteps, previous.get("status")
    # a run killed in its last second still lacks its end, whatever its checkpoint says
    if done >= total and status in ("finished", "stopped"):
        raise UserError(
            f"{run_dir} is finished ({done:,} of {total:,} steps); extend it with --total-timesteps N"
        )
    if extended and total < done:
        raise UserError(f"{run_dir} has made {done:,} steps already; give --total-timesteps {done} or more")
    # the checkpoint knows of an extension that the metadata has not heard of yet
    reason = checkpoint.state.get("trainer", {}).get("stop_reason", previous.get("stop_reason"))
    if status == "stopped" and reason is not None and not extended:
        raise UserError(
            f"{run_dir} is finished ({reason}); to go on all the same, give --total-timesteps {total}"
        )


def evaluate_checkpoint(
    path: str | PathLike[str],
    num_episodes: int = 10,
    env: EnvFactory | str | None = None,
    trust_modules: bool = False,
) -> dict[str, Any]:
    """Evaluate any saved agent, run or checkpoint; return `mean_reward`, `std_reward` and more.

    `env` is another environment than its own: an id, or a function that builds one.
    """
    agent = load_agent(path, env=env, trust_modules=trust_modules, probe=False)
    return agent.evaluate(num_episodes)


def train_ppo(cfg: TrainConfig, **overrides: Any) -> TrainResult:
    """Train PPO; keyword overrides reach run-level and algorithm-level settings alike."""
    return _train_algorithm("ppo", cfg, overrides)


def train_a2c(cfg: TrainConfig, **overrides: Any) -> TrainResult:
    """Train A2C; keyword overrides reach run-level and algorithm-level settings alike."""
    return _train_algorithm("a2c", cfg, overrides)


def train_dqn(cfg: TrainConfig, **overrides: Any) -> TrainResult:
    """Train DQN; keyword overrides reach run-level and algorithm-level settings alike."""
    return _train_algorithm("dqn", cfg, overrides)


def train_sac(cfg: TrainConfig, **overrides: Any) -> TrainResult:
    """Train SAC; keyword overrides reach run-level and algorithm-level settings alike."""
    return _train_algorithm("sac", cfg, overrides)


def train_td3(cfg: TrainConfig, **overrides: Any) -> TrainResult:
    """Train TD3; keyword overrides reach run-level and algorithm-level settings alike."""
    return _train_algorithm("td3", cfg, overrides)


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
    stepper = _make_stepper(config, factory)
    try:
        yield stepper
    finally:
        stepper.close()


def _make_stepper(config: TrainConfig, factory: EnvFactory | None) -> VectorStepper:
    native = config.env_backend == "native"
    return VectorStepper(make_vector_env(config, factory=factory), seed=config.seed if native else None)


__all__ = [
    "TrainResult",
    "evaluate_checkpoint",
    "make_run_dir",
    "resume",
    "train",
    "train_a2c",
    "train_dqn",
    "train_ppo",
    "train_sac",
    "train_td3",
]
