"""Runs the jobs of a launch on a Ray cluster, each as an actor that starts the job's process on its node.

The launcher and all nodes must see the folder of the launch under the same path.
"""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_training.core.errors import RunFault, UserError
from rl_training.lab import ray_command
from rl_training.lab.places import CHILD, ERRORS, OUTPUT, Lost, Refused, Worker
from rl_training.runtime.ray_cluster import RayCluster, ray_cluster
from rl_training.version import __version__

CPUS_PER_JOB = 1
FORWARDED = (
    "PYTHONPATH",
    "XDG_STATE_HOME",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)
"""Environment variables that a job has from the launcher and not from its node: Ray sets some of them."""
SIGNALLED = {
    code: number
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
    for code in (-number, 128 + number)
}
"""Exit codes of a command that was ended by a signal."""
SECONDS_TO_END = 60.0
"""How long a stopped job may take to write its checkpoint, before its worker is killed."""
BETWEEN_LOOKS = 0.1


class RayPlace:
    """Runs each job on the cluster, one CPU each."""

    def __init__(self, address: str | None, processes: int | None) -> None:
        """Connect; `processes` limits the jobs at a time, which are otherwise as many as the cluster has CPUs."""
        self._context = contextlib.ExitStack()
        self._cluster: RayCluster = self._context.enter_context(ray_cluster(address, num_cpus=processes))
        self._limit = processes
        ray = self._cluster.ray
        try:
            if self._cluster.cpus() < CPUS_PER_JOB:
                raise UserError("the Ray cluster has no CPU; add a node with: ray start --address=HOST:PORT")
            ray.cloudpickle.register_pickle_by_value(ray_command)
            options = {
                "num_cpus": CPUS_PER_JOB,
                "max_restarts": 0,
                "max_task_retries": 0,
                "max_concurrency": 2,
            }
            self._actors = ray.remote(**options)(ray_command.Command)
        except BaseException:
            self.close()
            raise

    def slots(self) -> int:
        cpus = max(self._cluster.cpus() // CPUS_PER_JOB, 1)
        return cpus if self._limit is None else min(self._limit, cpus)

    def start(self, command: Sequence[str], home: Path, slot: int) -> Worker:
        order = ray_command.Order(
            child=CHILD,
            command=tuple(command),
            home=str(home.absolute()),
            files=(OUTPUT, ERRORS),
            folder=os.getcwd(),
            variables={name: os.environ.get(name) for name in FORWARDED},
            version=__version__,
        )
        actor = self._actors.remote()
        ended = actor.run.remote(order)
        return RayWorker(self._cluster.ray, actor, ended)

    def close(self) -> None:
        self._context.close()


class RayWorker:
    """An actor and its command."""

    def __init__(self, ray: Any, actor: Any, ended: Any) -> None:
        self._ray, self._actor, self._ended = ray, actor, ended
        self._began = actor.is_there.remote()
        self._outcome: int | Lost | Refused | None = None
        self._stopped = False

    def poll(self) -> int | Lost | Refused | None:
        if self._outcome is None and self._is_ready(self._ended):
            self._outcome = self._read_outcome()
            self._kill()
        return self._outcome

    def send(self, number: signal.Signals) -> None:
        if self._outcome is not None:
            return
        self._stopped = True
        if self._is_ready(self._began):
            self._actor.send.remote(int(number))
        else:  # no node had room for it yet
            self._kill()
            self._outcome = 128 + number

    def wait(self) -> None:
        end = time.monotonic() + SECONDS_TO_END
        while self.poll() is None and time.monotonic() < end:
            time.sleep(BETWEEN_LOOKS)
        self._kill()

    def _is_ready(self, reference: Any) -> bool:
        return bool(self._ray.wait([reference], timeout=0)[0])

    def _read_outcome(self) -> int | Lost | Refused:
        errors = self._ray.exceptions
        try:
            outcome = self._ray.get(self._ended)
        except errors.RayTaskError as error:  # raised by our own code on the node
            return Refused(str(getattr(error, "cause", None) or error).strip().splitlines()[-1])
        except errors.LocalRayletDiedError as error:
            raise RunFault("the Ray cluster has stopped; repeat the command to continue") from error
        except errors.RayError as error:  # the node, the actor or the connection to it is gone
            return Lost(type(error).__name__)
        if not isinstance(outcome, int):
            return Refused(str(outcome))
        if outcome in SIGNALLED and not self._stopped:  # as when its node is shut down
            return Lost(SIGNALLED[outcome].name)
        return outcome

    def _kill(self) -> None:
        """End the actor, and free its CPU; on the other side of a broken connection its process ends with it."""
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)
