"""Connections to a Ray cluster: an existing one, or one that is started on this machine. Imports Ray when needed."""

import contextlib
import importlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rl_training.core.errors import RunFault, UserError, reason
from rl_training.runtime import ray_watcher

TRIES = 2
"""Ray waits 30 s for its own processes, which may not suffice on a busy machine."""
OBJECT_STORE = 100 * 2**20
"""Bytes of shared memory of a cluster that is started here."""
SECONDS_TO_ANSWER = 10.0
PATIENCE, SECONDS_WITHOUT_HEAD = "RAY_gcs_rpc_server_reconnect_timeout_s", "10"
"""How long Ray's own processes of such a cluster live on after its head was killed; Ray's own value is a minute."""
ADDRESS = re.compile(r"auto|[^\s:/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")


def import_ray() -> Any:
    """Return the package; raise an error that names the extra if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when a cluster starts
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UserError(
            "engine 'ray' needs a package that is not installed: pip install 'rl-training[ray]'"
        ) from error


def refuse_bad_address(address: str | None) -> None:
    """Raise an error if an address is neither `auto` nor `HOST:PORT`."""
    if address is not None and ADDRESS.fullmatch(address) is None:
        raise UserError(
            f"ray_address is '{address}'; use HOST:PORT of the cluster's head, auto for a cluster on this machine, or "
            "leave it out to start one"
        )


@dataclass(frozen=True)
class RayCluster:
    """A connection to a cluster."""

    ray: Any
    """The package `ray`."""

    def cpus(self) -> int:
        """Return the CPUs of all nodes that are alive."""
        nodes = [node for node in self.ray.nodes() if node.get("Alive")]
        return int(sum(node.get("Resources", {}).get("CPU", 0) for node in nodes))


@contextlib.contextmanager
def ray_cluster(
    address: str | None = None, *, num_cpus: int | None = None, object_store: int | None = OBJECT_STORE
) -> Iterator[RayCluster]:
    """Connect to a cluster until the context exits.

    Without an address, a cluster is started on this machine with `num_cpus` and `object_store` bytes of shared memory,
    None for Ray's own choice, and stopped at the end; if this process is connected to one already, it is used and
    stays. Signal handlers are left as they were.
    """
    refuse_bad_address(address)
    ray = import_ray()
    if ray.is_initialized():
        yield RayCluster(ray)
        return
    options: dict[str, Any] = {"address": address}
    if address is None:
        # "local", because the address may come from the environment variable RAY_ADDRESS otherwise
        options = {
            "address": "local",
            "num_cpus": num_cpus,
            "object_store_memory": object_store,
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
        }
    elif address != "auto":
        _refuse_silence(address)
    with contextlib.ExitStack() as stack:
        watcher = stack.enter_context(_watched()) if address is None else None
        with _own_signals():
            _connect(ray, options, watcher)
        try:
            with _without_messages():
                yield RayCluster(ray)
        finally:
            with _own_signals():
                ray.shutdown()


@contextlib.contextmanager
def _watched() -> Iterator["Watcher"]:
    """Have the processes of a new cluster end with it, and with this process."""
    mark = uuid.uuid4().hex
    command = [sys.executable, "-I", "-S", ray_watcher.__file__, mark, str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        yield Watcher(mark, process)


@dataclass(frozen=True)
class Watcher:
    """A process that ends what is left of a cluster."""

    mark: str
    process: "subprocess.Popen[bytes]"

    def watch(self) -> None:
        """Tell it the folder of the cluster."""
        node = getattr(importlib.import_module("ray._private.worker"), "_global_node", None)
        if node is not None and self.process.stdin is not None:
            self.process.stdin.write(node.get_session_dir_path().encode())
            self.process.stdin.flush()


def _connect(ray: Any, options: dict[str, Any], watcher: "Watcher | None") -> None:
    address = options["address"]
    for tries_left in reversed(range(TRIES)):
        try:
            with _quiet_logs(), _inherited(None if watcher is None else watcher.mark):
                ray.init(log_to_driver=False, configure_logging=False, **options)
            if watcher is not None:
                watcher.watch()
            return
        except Exception as error:  # of any kind: Ray, its client, or a process that did not start
            with contextlib.suppress(Exception):
                ray.shutdown()
            if address != "local":
                raise _no_connection(address, error) from error
            if not tries_left:
                raise RunFault(
                    f"Ray could not be started on this machine: {_first_line(error)}; try again when it is less busy"
                ) from error


def _refuse_silence(address: str) -> None:
    """Raise an error if nothing listens at an address; Ray would try for a minute."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise _no_connection(address, error) from error


def _no_connection(address: str, error: Exception) -> UserError:
    hint = "start one with: ray start --head" if address == "auto" else "check the address"
    return UserError(
        f"no connection to a Ray cluster at '{address}': {_first_line(error)}; {hint}, or leave ray_address out to "
        "start a cluster on this machine"
    )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in reason(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the signal handlers of this process, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


@contextlib.contextmanager
def _inherited(mark: str | None) -> Iterator[None]:
    """Set the variables that the processes of a new cluster inherit; a value that the user has set stays."""
    wanted: dict[str, str] = {}
    if mark is not None:
        wanted = {PATIENCE: os.environ.get(PATIENCE, SECONDS_WITHOUT_HEAD), ray_watcher.VARIABLE: mark}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _quiet_logs() -> Iterator[None]:
    """Keep Ray's messages about its start out of the console; errors are raised anyway."""
    log = logging.getLogger("ray")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


@contextlib.contextmanager
def _without_messages() -> Iterator[None]:
    """Keep Ray from printing pages about lost nodes to the standard output, which `log_to_driver` does not cover."""
    worker = importlib.import_module("ray._private.worker")
    before = getattr(worker, "print_to_stdstream", None)
    if before is None:  # another version of Ray
        yield
        return
    worker.print_to_stdstream = lambda *arguments, **options: None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        worker.print_to_stdstream = before  # type: ignore[attr-defined]
