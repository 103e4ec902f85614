"""Laps of an update, for whoever wants to know where its time goes: a learner tells, and has no clock itself.

`lap("forward")` after the forward pass, `lap("backward")` after the backward pass, `lap("optimiser")` after the step:
each names what has ended. While nobody listens it is one comparison.
"""

import contextlib
from collections.abc import Callable, Iterator

_listener: Callable[[str], None] | None = None


def lap(name: str) -> None:
    """Tell that a part of an update has ended."""
    if _listener is not None:
        _listener(name)


@contextlib.contextmanager
def heard_by(listener: Callable[[str], None]) -> Iterator[None]:
    """Let `listener` hear all laps meanwhile."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before
