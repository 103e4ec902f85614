"""Warnings on the command line: ours and the simulators' as one line each, and little of what libraries say."""

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
    """Print our warnings and Gymnasium's without file and line, each text of Gymnasium's once.

    Left out are what is said to developers of installed packages, which Python leaves out by itself until Gymnasium
    changes that, and Gymnasium's checks of environments, as ours say the same by name and step. What an environment of
    the user's own warns of is shown as Python shows it.
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
    """Return the installed package that a file belongs to, or ours; None for the user's own."""
    path = Path(filename)
    if "rl_training" in path.parts:
        return "rl_training"
    for name in ("purelib", "platlib"):
        folder = Path(sysconfig.get_path(name))
        if path.is_relative_to(folder):
            return path.relative_to(folder).parts[0]
    return None
