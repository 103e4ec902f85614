"""Marks the parts of an update for a profiler, without a clock in the learner.

Call `lap("forward")` after the forward pass, `lap("backward")` after the backward pass and `lap("optimiser")` after the
step. Without a listener this is one comparison.
"""

import contextlib
from collections.abc import Callable, Iterator

_listener: Callable[[str], None] | None = None


def lap(name: str) -> None:
    """Report the end of a part of an update."""
    if _listener is not None:
        _listener(name)


@contextlib.contextmanager
def heard_by(listener: Callable[[str], None]) -> Iterator[None]:
    """Report all laps to `listener` within the context."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before
