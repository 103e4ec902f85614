"""Where pictures are drawn: matplotlib without a display, a word, or settings of the working folder."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def silent_drawing() -> Iterator[None]:
    """Draw with matplotlib's own defaults, and not what a `matplotlibrc` in the working folder says.

    It would tell of a home that it cannot write to, where its fonts are remembered; here it does not.
    """
    logger = logging.getLogger("matplotlib")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        import matplotlib

        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams["text.parse_math"] = False  # a name with dollars is a name, and no formula
            yield
    finally:
        logger.setLevel(before)


def new_figure(width: float, height: float) -> Any:
    """Return a figure of so many inches that belongs to no window."""
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
    """Tell why there is no picture: none is worth what it shows, so whatever goes wrong is a warning."""
    problem = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.strerror:
        problem = error.strerror
    warnings.warn(f"{path} was not drawn: {problem}", stacklevel=3)
