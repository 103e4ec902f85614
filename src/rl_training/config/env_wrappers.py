"""The setting `env_wrappers`: `module:Wrapper`, or `{module:Wrapper: {argument: value}}`."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import yaml

from rl_training.config.object_paths import is_name, name_of
from rl_training.config.plain_data import PLAIN, is_plain, plain
from rl_training.config.strict_yaml import FORGED, StrictLoader

Wrappers: TypeAlias = Sequence[str | type | Mapping[Any, Mapping[str, Any]]]
"""As a user gives them; after the checks, a tuple of names and of maps with one name."""
FORMS = "use a list of module:Wrapper, or of {module:Wrapper: {argument: value}} where one takes arguments"


def checked_wrappers(value: Any) -> tuple[str | dict[str, dict[str, Any]], ...]:
    """Return wrappers as they are saved, or raise ValueError with the remedy; a single one needs no list."""
    found: list[str | dict[str, dict[str, Any]]] = []
    for entry in value if isinstance(value, list | tuple) else [value]:
        if isinstance(entry, str) and entry.lstrip()[:1] in ("{", "["):
            try:
                entry = yaml.load(entry, Loader=StrictLoader)
            except (yaml.YAMLError, *FORGED):
                raise ValueError(FORMS) from None
        found += [_checked(part) for part in (entry if isinstance(entry, list | tuple) else [entry])]
    return tuple(found)


def wrapper_calls(wrappers: Wrappers) -> list[tuple[str, dict[str, Any]]]:
    """Return names and arguments of checked wrappers, innermost first."""
    found: list[tuple[str, dict[str, Any]]] = []
    for entry in wrappers:
        pairs = entry.items() if isinstance(entry, Mapping) else [(entry, {})]
        found += [(str(name), dict(arguments)) for name, arguments in pairs]
    return found


def wrapper_texts(wrappers: Wrappers) -> tuple[str, ...]:
    """Return each wrapper as one text, as it is written on the command line."""
    flow: dict[str, Any] = {"default_flow_style": True, "width": 10**6}
    return tuple(item if isinstance(item, str) else yaml.safe_dump(item, **flow).strip() for item in wrappers)


def _checked(entry: Any) -> str | dict[str, dict[str, Any]]:
    if not isinstance(entry, Mapping):
        return _name(entry)
    if len(entry) != 1:
        raise ValueError(FORMS)
    ((name, arguments),) = entry.items()
    name, arguments = _name(name), {} if arguments is None else arguments
    if not isinstance(arguments, Mapping) or not all(isinstance(key, str) for key in arguments):
        raise ValueError(f"give '{name}' a map of arguments, such as {{{name}: {{argument: 1}}}}")
    kept: dict[str, Any] = plain(dict(arguments))
    if not is_plain(kept):
        raise ValueError(f"the arguments of '{name}' cannot be saved as they are; use {PLAIN}")
    return {name: kept}


def _name(entry: Any) -> str:
    if isinstance(entry, str):
        if is_name(entry):
            return entry
        module, _, wrapper = entry.rpartition(".")
        raise ValueError(f"write {module}:{wrapper}" if is_name(f"{module}:{wrapper}") else FORMS)
    if not callable(entry):
        raise ValueError(FORMS)
    if (name := name_of(entry)) is not None:
        return name
    raise ValueError("it cannot be imported by name; define the wrapper at the top level of a module")
