"""Python objects that a config names as `module:name`."""

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

from rl_training.core.errors import UserError, did_you_mean, reason

NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_name(text: str) -> bool:
    """Return whether a text has the form `module:name`.

    >>> is_name("my_module:Part"), is_name("my_module.Part"), is_name("linear:0.1")
    (True, False, False)
    """
    return NAME.fullmatch(text) is not None


def import_module(module: str) -> None:
    """Import a module, from the working folder if it is not installed.

    The folder is appended to the path, and only for such a module, so that a local `yaml.py` shadows nothing.
    """
    if not module or sys.modules.get(module) is not None:  # None blocks an import
        return
    here, package = str(Path.cwd()), module.partition(".")[0]
    if package not in sys.modules and here not in sys.path and importlib.util.find_spec(package) is None:
        sys.path.append(here)
    importlib.import_module(module)


def import_object(name: str, setting: str, remedy: str = "") -> Any:
    """Return the object that `module:name` means; an error names the setting, and ends with the remedy.

    The caller decides whether the module may be imported.
    """
    module, _, attribute = name.partition(":")
    remedy = f"; {remedy}" if remedy else ""
    try:
        import_module(module)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        raise UserError(
            f"{setting} '{name}' cannot be imported: {type(error).__name__}: {reason(error)}; install the module "
            f"'{module}', or put it into the working folder{remedy}"
        ) from error
    found: Any = sys.modules[module]
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UserError(f"{setting} '{name}' does not exist{did_you_mean(part, dir(found))}{remedy}")
        found = getattr(found, part)
    return found


def name_of(thing: Any) -> str | None:
    """Return the `module:name` under which a class or function can be imported; None for a lambda or a local one.

    If parent packages export it under the same name, the outermost package is used, as users write it.
    """
    home, attribute = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(home, str) or not isinstance(attribute, str):
        return None
    parts = home.split(".")
    for module in (".".join(parts[: end + 1]) for end in range(len(parts))):
        name = f"{module}:{attribute}"
        if imported_object(name) is thing and is_name(name):
            return name
    return None


def imported_object(name: str) -> Any:
    """Return the object that `module:name` means if its module is imported already; None otherwise."""
    module, _, attribute = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in attribute.split("."):
        found = getattr(found, part, None)
    return found


def is_same_name(one: str, other: str) -> bool:
    """Return whether two `module:Name` mean the same object; a script's objects may be saved as `__main__:Name`.

    >>> is_same_name("__main__:my_loss", "train:my_loss"), is_same_name("a:my_loss", "b:my_loss")
    (True, False)
    """
    if one == other:
        return True
    (module, _, name), (other_module, _, other_name) = one.partition(":"), other.partition(":")
    return bool(other_name) and name == other_name and "__main__" in (module, other_module)
