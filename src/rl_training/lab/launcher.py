"""Training many runs side by side, each in a process and on cores of its own, and none of them twice.

Nothing is lost when it ends, however it ends: a run that was begun is resumed, one that is done is kept, and what a job
left is written down as soon as it ends.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from rl_training.config import TrainConfig
from rl_training.core.errors import RunFault, UserError
from rl_training.experiment.checkpoints.locking import RunLock, is_held
from rl_training.experiment.files import write_text
from rl_training.experiment.logs.rows import clock_of, is_evaluation, is_metrics_row, last_row
from rl_training.lab.jobs import (
    Board,
    Job,
    JobFolder,
    JobState,
    Launched,
    ended_record,
    failed_record,
    has_ended,
)

CHILD = ("-P", "-m", "rl_training.cli.child")
"""What a job is run by: the command line, in a new process. A fork would copy the locks of torch's threads."""
SECONDS_BETWEEN_LOOKS = 0.2
ERROR_TAIL = 4096
"""Letters of a job's error stream that are looked at for its last sentence."""


def launch(
    jobs: Sequence[Job],
    folder: Path,
    *,
    processes: int = 1,
    retry_failed: bool = False,
    board: Board | None = None,
) -> Launched:
    """Train what is not done yet, `processes` jobs at a time; return what all of them left.

    SIGINT and SIGTERM pause the runs; a second SIGINT ends them at once. The same call goes on. A job that failed is
    named and left alone, unless `retry_failed`.
    """
    if processes < 1:
        raise UserError(f"jobs is {processes}; use 1 or more")
    home = JobFolder(folder)
    home.make()
    with RunLock(folder):
        return Launch(jobs, home, processes, board or Board()).run(retry_failed)


@dataclass
class Child:
    """A process that trains."""

    state: JobState
    process: subprocess.Popen[bytes]
    slot: int
    run_dir: Path | None = None
    sent: list[signal.Signals] = field(default_factory=list)
    """Signals that were passed on to it."""

    def send(self, number: signal.Signals) -> None:
        """Pass a signal on, once."""
        if number not in self.sent:
            self.sent.append(number)
            self.process.send_signal(number)


@dataclass
class Launch:
    """One launch being made."""

    jobs: Sequence[Job]
    home: JobFolder
    processes: int
    board: Board
    children: list[Child] = field(default_factory=list)
    stopped_by: int | None = None
    hurry: bool = False
    """A second SIGINT came."""

    def run(self, retry_failed: bool) -> Launched:
        """Look after the jobs until none is left or a signal comes."""
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
                f"{error.filename or self.home.path}: {error.strerror or error}; nothing that was trained is lost, and "
                "the same command goes on from there"
            ) from error
        finally:
            self._end_children()
            self.board.close()
        return Launched(self.jobs, self.states, self.stopped_by)

    def _waiting(self) -> list[JobState]:
        return [state for state in self.states if state.status == "waiting"]

    def _use_earlier_result(self, state: JobState) -> None:
        """Take what is known of a job from an earlier launch: its record, or a run that ended without one."""
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
        """Fill the free slots; a run that a process of an earlier launch still holds is left to it meanwhile."""
        for state in self._waiting():
            slots = range(min(self.processes, len(self.states)))
            free = set(slots) - {child.slot for child in self.children}
            if not free or self.stopped_by is not None:
                return
            run_dir = self.home.run_dir(state.job)
            if run_dir is not None and _in_use(run_dir):
                if not state.held:
                    state.held = True
                    self.board.event(state)
                continue
            self._use_earlier_result(state)  # whoever held it may have finished it
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
        cores = ",".join(str(core) for core in share_of_cores(slot, self.processes))
        with (home / "output.txt").open("wb") as out, (home / "errors.txt").open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, *CHILD, str(os.getpid()), cores, *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                process_group=0,  # Ctrl-C is for the launcher, which passes it on gently
            )
        self.children.append(Child(state, process, slot, run_dir))  # before anything else can go wrong
        state.status, state.began = "training", time.monotonic()
        state.steps = state.began_at = steps_of(run_dir)[0] if run_dir else 0
        self.board.event(state)

    def _poll(self) -> None:
        """See how far the children are, and write down what those that ended have left."""
        for child in list(self.children):
            if self.stopped_by is not None:
                child.send(signal.SIGTERM)
            if self.hurry:
                child.send(signal.SIGINT)
            code = child.process.poll()  # first: what is looked at afterwards is all that it has left
            child.run_dir = child.run_dir or self.home.run_dir(child.state.job)
            if child.run_dir is not None:
                steps, child.state.evaluation = steps_of(child.run_dir)
                child.state.steps = max(steps, child.state.steps)
            if code is not None:
                self.children.remove(child)
                self._record_end(child, code)

    def _record_end(self, child: Child, code: int) -> None:
        state, run_dir = child.state, child.run_dir
        if code == 0 and run_dir is not None and has_ended(run_dir):
            self._ended(state, self.home.write_record(state.job, ended_record(state.job, run_dir)))
        elif code == 0 or code in STOPPED or self.stopped_by is not None:
            state.status = "paused"
            self.board.event(state)
        else:
            error = failure_text(code, self.home.home(state.job) / "errors.txt")
            self._ended(state, self.home.write_record(state.job, failed_record(state.job, error, run_dir)))

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # which has no signals
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
        """Note it; the next look passes it on, also to a child that is just being started."""
        if self.stopped_by is None:
            said = f"\n{signal.Signals(number).name}: every run writes a checkpoint first; Ctrl-C again stops at once\n"
            with contextlib.suppress(OSError):  # not by print, which the handler may have interrupted
                os.write(2, said.encode())
        self.hurry = self.hurry or (self.stopped_by is not None and number == signal.SIGINT)
        self.stopped_by = self.stopped_by or number

    def _end_children(self) -> None:
        """Let children that are left, after a fault of the launcher's own, write their checkpoints and end."""
        for child in self.children:
            child.send(signal.SIGTERM)
        for child in self.children:
            child.process.wait()


STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM)
"""Exit codes of a run that somebody has asked to stop: it is not at fault, and goes on next time."""


def with_one_thread(config: TrainConfig) -> TrainConfig:
    """Return the config of a job: with `num_threads: auto` one thread, whatever the cores.

    Cores are for runs first; and a run's last digits, which threads change, must not depend on how many others run.
    """
    return config.with_overrides(num_threads=1) if config.num_threads == "auto" else config


def share_of_cores(slot: int, processes: int) -> list[int]:
    """Return the cores of one of several processes: equal shares, or one core by turns if there are too few."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))
    return cores[slot::processes] or [cores[slot % len(cores)]]


def _in_use(run_dir: Path) -> bool:
    """Tell whether a run must be waited for; one whose lock cannot be looked at says why when it is resumed."""
    return is_held(run_dir, if_unknown=False)


def steps_of(run_dir: Path) -> tuple[int, float | None]:
    """Return how many steps a run has logged, and the mean return of its latest evaluation."""
    evaluation = last_row(run_dir / "evaluations.jsonl", is_evaluation)
    row = last_row(run_dir / "metrics.jsonl", is_metrics_row)
    return int(clock_of(row) or 0), evaluation.get("mean_reward")


def failure_text(code: int, errors: Path) -> str:
    """Return in words why a process ended with `code`: its last sentence, or the signal that ended it."""
    if code < 0:
        hint = "; memory may have been short" if code == -signal.SIGKILL else ""
        return f"ended by {signal.Signals(-code).name}{hint}"
    with contextlib.suppress(OSError):
        said = errors.read_bytes()[-ERROR_TAIL:].decode("utf-8", errors="replace")
        if sentence := said.rpartition("error: ")[2].strip():
            return sentence
    return f"ended with exit code {code}, without a word"
