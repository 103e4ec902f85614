"""Warnings on the command line: one line for each of ours and Gymnasium's, and few from other libraries."""

import contextlib
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl_training.core.errors import readable

COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Print our warnings and Gymnasium's without file and line, each of Gymnasium's only once.

    Deprecation warnings of installed packages are hidden, as Python does by default until Gymnasium changes it, and so
    are Gymnasium's checks of environments, as ours report the same problems. Warnings of the user's own code are shown
    unchanged.
    """
    with warnings.catch_warnings():
        show = warnings.showwarning
        said: set[str] = set()

        def show_plainly(message: Any, category: Any, filename: str, *rest: Any, **options: Any) -> None:
            text = readable(COLOURS.sub("", str(message)).removeprefix("WARN: "))
            package = _package(filename)
            if package == "gymnasium":
                if Path(filename).stem != "passive_env_checker" and text not in said:
                    said.add(text)
                    print(f"warning: {text}", file=sys.stderr)
            elif category is UserWarning and package == "rl_training":
                print(f"warning: {text}", file=sys.stderr)
            elif not (package and issubclass(category, DeprecationWarning | PendingDeprecationWarning)):
                show(message, category, filename, *rest, **options)

        warnings.showwarning = show_plainly
        yield


def _package(filename: str) -> str | None:
    """Return the installed package that a file belongs to; None for the user's own code."""
    path = Path(filename)
    if "rl_training" in path.parts:
        return "rl_training"
    for name in ("purelib", "platlib"):
        folder = Path(sysconfig.get_path(name))
        if path.is_relative_to(folder):
            return path.relative_to(folder).parts[0]
    return None
