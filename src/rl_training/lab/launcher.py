"""Trains many runs in parallel, each in its own process, on this machine or on a Ray cluster.

A launch can be interrupted and started again: started runs are resumed, finished ones are kept, and the record of a job
is written as soon as it ends.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from rl_training.config import TrainConfig
from rl_training.core.errors import RunFault, UserError
from rl_training.experiment.checkpoints.locking import RunLock, is_held
from rl_training.experiment.files import write_text
from rl_training.experiment.logs.rows import clock_of, is_evaluation, is_metrics_row, last_row
from rl_training.lab.jobs import (
    MAX_LOSSES,
    Board,
    Job,
    JobFolder,
    JobState,
    Launched,
    ended_record,
    failed_record,
    has_ended,
)
from rl_training.lab.places import ERRORS, LocalPlace, Lost, Place, Refused, Worker

Engine = Literal["process", "ray"]
"""Where a launch runs its jobs: in processes of this machine, or on a Ray cluster."""
SECONDS_BETWEEN_LOOKS = 0.2
ERROR_TAIL = 4096
"""Bytes at the end of a job's stderr that are searched for its error message."""


def launch(
    jobs: Sequence[Job],
    folder: Path,
    *,
    processes: int | None = None,
    retry_failed: bool = False,
    board: Board | None = None,
    engine: Engine = "process",
    ray_address: str | None = None,
) -> Launched:
    """Train the jobs that are not done, `processes` at a time; return the status of all jobs.

    Engine `ray` runs them on the cluster at `ray_address`, or on one that is started for this launch. `processes` is by
    default 1, or, with Ray, the number of CPUs of the cluster.

    SIGINT and SIGTERM pause the runs, a second SIGINT stops them at once; the same call continues them. A job that
    failed earlier is reported but not repeated, unless `retry_failed`. Raises an error if there are no jobs, or if none
    of them could start its run.
    """
    if engine not in ("process", "ray"):
        raise UserError(f"engine is '{engine}'; use process or ray")
    if ray_address is not None and engine != "ray":
        raise UserError(f"ray_address is given, but engine is '{engine}'; use engine ray (--engine ray)")
    if processes is not None and processes < 1:
        raise UserError(f"jobs is {processes}; use 1 or more")
    if not jobs:
        raise UserError(
            "there is nothing to launch: the list of jobs is empty; give a config and a seed or more"
        )
    for job in jobs:
        _refuse_unnamed_class(job)
    home = JobFolder(folder)
    home.make()
    with RunLock(folder), contextlib.closing(_place(engine, processes, ray_address)) as place:
        launched = Launch(jobs, home, place, board or Board()).run(retry_failed)
    _refuse_no_runs(launched)
    return launched


def _place(engine: Engine, processes: int | None, ray_address: str | None) -> Place:
    if engine == "process":
        return LocalPlace(processes or 1)
    from rl_training.lab.ray_place import RayPlace

    return RayPlace(ray_address, processes)


def _refuse_unnamed_class(job: Job) -> None:
    """Raise if the class of a job's algorithm cannot be imported by name, as its process would have to."""
    algo = job.config.algo
    if "<locals>" in algo or algo.startswith("__main__:"):
        raise UserError(
            f"{job} trains in a process of its own, which cannot import its algorithm '{algo}'; move the class to the "
            "top level of a module in the working folder"
        )


def _refuse_no_runs(launched: Launched) -> None:
    """Raise if every job failed before it had a run folder."""
    records = [state.record for state in launched.having("failed")]
    if len(records) == len(launched.states) and not any(record and record["run"] for record in records):
        first = launched.states[0]
        raise UserError(
            f"no run could be started ({len(records)} failed); {first.job}: {first.error}; fix this, and launch again "
            "with retry_failed=True (--retry-failed)"
        )


@dataclass
class Child:
    """A worker that trains one job."""

    state: JobState
    worker: Worker
    slot: int
    run_dir: Path | None = None
    sent: list[signal.Signals] = field(default_factory=list)
    """Signals that were forwarded to it."""

    def send(self, number: signal.Signals) -> None:
        """Forward a signal, once."""
        if number not in self.sent:
            self.sent.append(number)
            self.worker.send(number)


@dataclass
class Launch:
    """A launch in progress."""

    jobs: Sequence[Job]
    home: JobFolder
    place: Place
    board: Board
    children: list[Child] = field(default_factory=list)
    stopped_by: int | None = None
    hurry: bool = False
    """A second SIGINT was received."""

    def run(self, retry_failed: bool) -> Launched:
        """Run the jobs until all are done or a signal arrives."""
        self.states = list({job.key: JobState(job) for job in self.jobs}.values())
        try:
            with self._signals():
                for state in self.states:
                    if retry_failed:
                        self.home.retry_failed_job(state.job)
                    self._use_earlier_result(state)
                while self.children or (self.stopped_by is None and self._waiting()):
                    self._start_waiting()
                    self._poll()
                    self.board.show(self.states)
                    time.sleep(SECONDS_BETWEEN_LOOKS)
        except BrokenPipeError:  # nobody reads what is printed
            raise
        except OSError as error:
            raise RunFault(
                f"{error.filename or self.home.path}: {error.strerror or error}; no training is lost, repeat the "
                "command to continue"
            ) from error
        finally:
            self._end_children()
            self.board.close()
        return Launched(self.jobs, self.states, self.stopped_by)

    def _waiting(self) -> list[JobState]:
        return [state for state in self.states if state.status == "waiting"]

    def _use_earlier_result(self, state: JobState) -> None:
        """Use the result of an earlier launch: the job's record, or a finished run without a record."""
        record, run_dir = self.home.record(state.job), self.home.run_dir(state.job)
        if record is None and run_dir is not None and has_ended(run_dir) and not _in_use(run_dir):
            record = self.home.write_record(state.job, ended_record(state.job, run_dir))
        if record is not None:
            state.earlier = True
            self._ended(state, record)

    def _ended(self, state: JobState, record: dict[str, Any]) -> None:
        state.status, state.record = record["status"], record
        state.error = str(record.get("error", ""))
        if evaluations := record.get("evaluations"):
            state.steps, state.evaluation = evaluations[-1]["step"], evaluations[-1]["mean_reward"]
        self.board.event(state)

    def _start_waiting(self) -> None:
        """Start jobs in free slots, except those whose run is still used by a process of an earlier launch."""
        slots = range(min(self.place.slots(), len(self.states)))
        for state in self._waiting():
            free = set(slots) - {child.slot for child in self.children}
            if not free or self.stopped_by is not None:
                return
            run_dir = self.home.run_dir(state.job)
            if run_dir is not None and _in_use(run_dir):
                if not state.held:
                    state.held = True
                    self.board.event(state)
                continue
            self._use_earlier_result(state)  # the other process may have finished it
            if state.status == "waiting":
                self._start(state, run_dir, min(free))

    def _start(self, state: JobState, run_dir: Path | None, slot: int) -> None:
        home = self.home.home(state.job)
        home.mkdir(exist_ok=True)
        if run_dir is None:
            write_text(home / "job.yaml", with_one_thread(state.job.config).to_yaml())
            command = ["train", "--config", str(home / "job.yaml"), "--output-dir", str(home), "--quiet"]
        else:
            command = ["resume", str(run_dir), "--quiet"]
        worker = self.place.start(command, home, slot)
        self.children.append(Child(state, worker, slot, run_dir))  # at once, so that it is always waited for
        state.status, state.began = "training", time.monotonic()
        state.steps = state.began_at = steps_of(run_dir)[0] if run_dir else 0
        self.board.event(state)

    def _poll(self) -> None:
        """Update the progress of the children, and record those that ended."""
        for child in list(self.children):
            if self.stopped_by is not None:
                child.send(signal.SIGTERM)
            if self.hurry:
                child.send(signal.SIGINT)
            code = child.worker.poll()  # first, so that its files are complete if it has ended
            child.run_dir = child.run_dir or self.home.run_dir(child.state.job)
            if child.run_dir is not None:
                steps, child.state.evaluation = steps_of(child.run_dir)
                child.state.steps = max(steps, child.state.steps)
            if code is not None:
                self.children.remove(child)
                self._record_end(child, code)

    def _record_end(self, child: Child, code: int | Lost | Refused) -> None:
        state, run_dir = child.state, child.run_dir
        if isinstance(code, Lost) and self.stopped_by is None and state.losses < MAX_LOSSES:
            state.losses += 1
            state.status, state.lost, state.held = "waiting", code.reason, False
            self.board.event(state)
        elif code == 0 and run_dir is not None and has_ended(run_dir):
            self._ended(state, self.home.write_record(state.job, ended_record(state.job, run_dir)))
        elif code == 0 or code in STOPPED or self.stopped_by is not None:
            state.status = "paused"
            self.board.event(state)
        else:
            error = self._failure(state, code)
            self._ended(state, self.home.write_record(state.job, failed_record(state.job, error, run_dir)))

    def _failure(self, state: JobState, code: int | Lost | Refused) -> str:
        """Return why a job failed."""
        if isinstance(code, Lost):
            return f"its worker was lost {state.losses + 1} times, the last time by {code.reason}"
        if isinstance(code, Refused):
            return code.reason
        return failure_text(code, self.home.home(state.job) / ERRORS)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # signals need the main thread
            yield
            return
        before = {
            number: signal.signal(number, self._signalled) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        """Remember the signal; the next poll forwards it, also to a child that is just being started."""
        if self.stopped_by is None:
            text = f"\n{signal.Signals(number).name}: saving a checkpoint of every run; Ctrl-C again stops at once\n"
            with contextlib.suppress(OSError):  # not print, which the handler may have interrupted
                os.write(2, text.encode())
        self.hurry = self.hurry or (self.stopped_by is not None and number == signal.SIGINT)
        self.stopped_by = self.stopped_by or number

    def _end_children(self) -> None:
        """Stop the remaining children after an error of the launcher; they save their checkpoints first."""
        for child in self.children:
            child.send(signal.SIGTERM)
        for child in self.children:
            child.worker.wait()


STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM)
"""Exit codes of a run that was asked to stop; the next launch resumes it."""


def with_one_thread(config: TrainConfig) -> TrainConfig:
    """Return the config of a job with `num_threads: auto` replaced by one thread.

    More runs in parallel use the cores better, and results must not depend on the number of parallel runs.
    """
    return config.with_overrides(num_threads=1) if config.num_threads == "auto" else config


def _in_use(run_dir: Path) -> bool:
    """Return whether another process uses a run; if its lock cannot be read, resuming it reports why."""
    return is_held(run_dir, if_unknown=False)


def steps_of(run_dir: Path) -> tuple[int, float | None]:
    """Return the logged steps of a run and the mean return of its latest evaluation."""
    evaluation = last_row(run_dir / "evaluations.jsonl", is_evaluation)
    row = last_row(run_dir / "metrics.jsonl", is_metrics_row)
    return int(clock_of(row) or 0), evaluation.get("mean_reward")


def failure_text(code: int, errors: Path) -> str:
    """Return why a process failed with exit code `code`: its error message, or the signal that ended it."""
    if code < 0:
        hint = "; it may have run out of memory" if code == -signal.SIGKILL else ""
        return f"ended by {signal.Signals(-code).name}{hint}"
    with contextlib.suppress(OSError):
        text = errors.read_bytes()[-ERROR_TAIL:].decode("utf-8", errors="replace")
        if message := text.rpartition("error: ")[2].strip():
            return message
    return f"ended with exit code {code} and no error message"
