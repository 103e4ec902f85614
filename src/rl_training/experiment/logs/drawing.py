"""Matplotlib figures without a display, log messages or settings of the working folder."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def silent_drawing() -> Iterator[None]:
    """Use matplotlib's defaults, not a `matplotlibrc` in the working folder, and hide its log messages."""
    logger = logging.getLogger("matplotlib")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        import matplotlib

        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams["text.parse_math"] = False  # a name with dollar signs is not a formula
            yield
    finally:
        logger.setLevel(before)


def new_figure(width: float, height: float) -> Any:
    """Return a figure of this size in inches, without a window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110)
    FigureCanvasAgg(figure)
    return figure


def as_png(figure: Any) -> bytes:
    """Return a figure as the content of a PNG file."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def warn_not_drawn(path: Path, error: Exception) -> None:
    """Warn that a figure could not be drawn; this never ends a run."""
    problem = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.strerror:
        problem = error.strerror
    warnings.warn(f"{path} was not drawn: {problem}", stacklevel=3)
