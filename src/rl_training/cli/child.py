"""`python -m rl_training.cli.child PARENT CORES COMMAND…`: a command as a job of a launcher.

It runs on its own cores, chosen before PyTorch counts them, and pauses when its launcher ends, as nobody would record
its result.
"""

import ctypes
import os
import signal
import sys

SET_PARENT_DEATH_SIGNAL = 1


def run(parent: int, cores: set[int], arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    signal.pthread_sigmask(
        signal.SIG_UNBLOCK, {signal.SIGINT}
    )  # Ray's processes block it, and so do their children
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        if os.getppid() != parent:  # the launcher ended before the signal was set up
            return 128 + signal.SIGTERM
        if cores:
            os.sched_setaffinity(0, cores)
    from rl_training.cli import main

    return main(arguments)


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), {int(core) for core in sys.argv[2].split(",") if core}, sys.argv[3:]))
