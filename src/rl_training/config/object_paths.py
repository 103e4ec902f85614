"""What a user writes as `module:name`: imported, found, and named again."""

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

from rl_training.core.errors import UserError, did_you_mean

NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_name(text: str) -> bool:
    """Tell whether a text has the form `module:name`.

    >>> is_name("my_module:Part"), is_name("my_module.Part"), is_name("linear:0.1")
    (True, False, False)
    """
    return NAME.fullmatch(text) is not None


def import_module(module: str) -> None:
    """Import a module, out of the working folder if it is installed nowhere.

    The folder is added last, and only for such a module: nobody's `yaml.py` is to take the place of an installed one.
    """
    if not module or module in sys.modules:
        return
    here, package = str(Path.cwd()), module.partition(".")[0]
    if package not in sys.modules and here not in sys.path and importlib.util.find_spec(package) is None:
        sys.path.append(here)
    importlib.import_module(module)


def named_object(name: str, setting: str) -> Any:
    """Return what `module:name` means, or say which setting names something that is not there.

    Whether its module may be imported is the caller's to know.
    """
    module, _, attribute = name.partition(":")
    try:
        import_module(module)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        raise UserError(
            f"{setting} '{name}' cannot be imported: {type(error).__name__}: {error}; is the module '{module}' "
            "installed, or in the working folder?"
        ) from error
    found: Any = sys.modules[module]
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UserError(f"{setting} '{name}' is not there{did_you_mean(part, dir(found))}")
        found = getattr(found, part)
    return found


def name_of(thing: Any) -> str | None:
    """Return the `module:name` that leads back to a class or function; None if none does, as for a lambda.

    Where packages around its module have it by the same name, it is called by the outermost of them, as users do.
    """
    home, attribute = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(home, str) or not isinstance(attribute, str):
        return None
    parts = home.split(".")
    for module in (".".join(parts[: end + 1]) for end in range(len(parts))):
        found: Any = sys.modules.get(module)
        for part in attribute.split("."):
            found = getattr(found, part, None)
        if found is thing and is_name(f"{module}:{attribute}"):
            return f"{module}:{attribute}"
    return None
