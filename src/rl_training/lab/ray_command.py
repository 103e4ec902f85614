"""The command of a job on a node of a Ray cluster.

It is sent to the node by value and imports only the standard library, so that it can report what the node lacks.
"""

import contextlib
import os
import platform
import subprocess
import sys
from dataclasses import dataclass

VERSION = ("-P", "-c", "import rl_training.version; print(rl_training.version.__version__)")


@dataclass(frozen=True)
class Order:
    """What to run, and where."""

    child: tuple[str, ...]
    """Arguments of Python that start a job; the process id of the parent, its cores and `command` follow."""
    command: tuple[str, ...]
    home: str
    """The folder of the job."""
    files: tuple[str, str]
    """Names of the files for output and errors in `home`."""
    folder: str
    """The working folder."""
    variables: dict[str, str | None]
    """Environment variables; None removes one."""
    version: str
    """The version of rl_training that the node must have."""


class Command:
    """An actor that runs one command; `send` may be called meanwhile, in another thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._asked: list[int] = []

    def is_there(self) -> bool:
        """Return True: the actor has a node."""
        return True

    def run(self, order: Order) -> int | str:
        """Run the command; return its exit code, or why it cannot be run on this node."""
        variables = _variables(order)
        if problem := _problem(order, variables):
            return problem
        out, errors = (os.path.join(order.home, name) for name in order.files)
        with open(out, "wb") as out_file, open(errors, "wb") as errors_file:
            self._process = subprocess.Popen(
                [sys.executable, *order.child, str(os.getpid()), "", *order.command],
                cwd=order.folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=errors_file,
                process_group=0,
            )
        self._deliver()
        return self._process.wait()

    def send(self, number: int) -> None:
        """Send a signal to the command, as soon as it runs."""
        self._asked.append(number)
        if self._process is not None:
            self._deliver()

    def _deliver(self) -> None:
        """Send the signals that were asked for, each once; `run` and `send` may both be here."""
        assert self._process is not None
        with contextlib.suppress(IndexError):
            while True:
                self._process.send_signal(self._asked.pop(0))


def _variables(order: Order) -> dict[str, str]:
    found = {name: text for name, text in os.environ.items() if name not in order.variables}
    return found | {name: text for name, text in order.variables.items() if text is not None}


def _problem(order: Order, variables: dict[str, str]) -> str | None:
    """Return why this node cannot run the command, or None."""
    node = platform.node()
    for path in (order.home, order.folder):
        if not os.path.isdir(path):
            return (
                f"node '{node}' does not see the folder {path}; the working folder and the output_dir of a launch must "
                "be on storage that all nodes share"
            )
    answer = subprocess.run(
        [sys.executable, *VERSION],
        cwd=order.folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    found = answer.stdout.strip()
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["no error text"])[-1][:200]
        return (
            f"node '{node}' cannot import rl_training in {sys.executable} ({last}); install it on all nodes"
        )
    if found != order.version:
        return f"node '{node}' has rl_training {found}, but this is {order.version}; install one version on all nodes"
    return None
