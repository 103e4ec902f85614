"""What a fork server may run in tests: its second fork fails, as at a limit."""

import errno
import os
from multiprocessing.connection import Connection

FORKS = 0
fork = os.fork


def limited() -> int:
    global FORKS
    FORKS += 1
    if FORKS == 2:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
    return fork()


os.fork = limited


def serve(connection: Connection) -> None:
    """Answer with what is sent."""
    connection.send("alive")
    while True:
        connection.send(connection.recv())
