"""Fields of settings: values are checked against the annotation, and the docstring under a field is its help text.

To change a help text, edit the docstring in the class that declares the field, such as `TrainConfig` or `PPOConfig`.
"""

import ast
import inspect
import textwrap
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from os import PathLike
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rl_training.config.env_wrappers import Wrappers, checked_wrappers
from rl_training.config.policies import Policies, checked_policies
from rl_training.config.schedules import Schedule, checked_schedule
from rl_training.core.errors import ConfigError, did_you_mean
from rl_training.core.info_keywords import InfoKeywords, checked_keywords

MAX_SHOWN = 300
"""Characters of a value that an error shows."""
LARGEST = 2**62
"""Largest whole number, so that sums and products of a few of them do not overflow."""


class CheckedConfig:
    """Mix-in for frozen dataclasses: the constructor checks every value against its annotation."""

    def __post_init__(self) -> None:
        problems = self._coerce_fields()
        if problems:
            raise ConfigError(problems)

    def _coerce_fields(self) -> list[str]:
        hints = get_type_hints(type(self))
        problems = []
        for item in fields(self):  # type: ignore[arg-type]  # always mixed into a dataclass
            value = getattr(self, item.name)
            try:
                object.__setattr__(self, item.name, coerce(value, hints[item.name]))
            except ValueError as error:
                problems.append(
                    f"{item.name} is {shown(value)}; {error}{misplaced_schedule(type(self), item.name, value)}"
                )
                usual = item.default if item.default_factory is MISSING else item.default_factory()
                if usual is not MISSING:  # so that the other checks can run and report their problems
                    object.__setattr__(self, item.name, usual)
        return problems

    def not_positive(self, *names: str) -> list[str]:
        """Return a problem for each named setting that is not above 0."""
        return [f"{n} is {getattr(self, n)}; use a number above 0" for n in names if getattr(self, n) <= 0]

    def negative(self, *names: str) -> list[str]:
        """Return a problem for each named setting that is below 0."""
        return [f"{n} is {getattr(self, n)}; use 0 or more" for n in names if getattr(self, n) < 0]

    def outside(self, name: str, low: float, high: float) -> list[str]:
        """Return a problem if the named setting is not in [low, high]."""
        value = getattr(self, name)
        return [] if low <= value <= high else [f"{name} is {value}; use a number from {low} to {high}"]

    def bad_sizes(self, name: str) -> list[str]:
        """Return a problem if the named list of layer widths is too long or has widths out of range."""
        sizes = getattr(self, name)
        if len(sizes) <= 64 and all(1 <= size <= 2**14 for size in sizes):
            return []
        return [f"{name} is {shown(list(sizes))}; use at most 64 widths from 1 to {2**14}"]


def shown(value: Any) -> str:
    """Return a value as an error shows it: not so long that the remedy after it is cut off."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def coerce(value: Any, annotation: Any) -> Any:
    """Return `value` as the annotation wants it, or raise ValueError with the remedy.

    Lenient only where YAML is: the text `3e-4` is accepted as a float, `1e5` as a whole number, a list as a tuple.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    # nested settings check themselves
    if annotation is Any or (isinstance(annotation, type) and issubclass(annotation, CheckedConfig)):
        return value
    if annotation == Schedule:
        return checked_schedule(value)
    if annotation == Policies:
        return checked_policies(value)
    if annotation == Wrappers:
        return checked_wrappers(value)
    if annotation == InfoKeywords:
        return checked_keywords(value)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        words = [word for item in arguments if get_origin(item) is Literal for word in get_args(item)]
        if words and isinstance(value, str) and whole_number(value) is None:
            if value in words:
                return value
            raise ValueError(f"use {' or '.join(words)}, or a whole number{did_you_mean(value, words)}")
        return coerce(value, next(item for item in arguments if item is not type(None)))
    if origin is Literal:
        if isinstance(value, bool) and {"on", "off"} <= set(arguments):  # YAML reads these words as booleans
            return "on" if value else "off"
        if value in arguments and isinstance(value, str):
            return value
        words = [str(word) for word in arguments]
        raise ValueError(f"use one of {', '.join(words)}{did_you_mean(str(value), words)}")
    if origin is tuple:
        if isinstance(value, list | tuple):
            return tuple(coerce(item, arguments[0]) for item in value)
        raise ValueError("use a list")
    if origin is dict:
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return dict(value)
        raise ValueError("use a map")
    return _coerce_scalar(value, annotation)


def misplaced_schedule(config_class: type, name: str, value: Any) -> str:
    """Return where a schedule belongs if it was given instead of the number that it multiplies, else an empty text."""
    schedule = f"{name}_schedule"
    if schedule not in {item.name for item in fields(config_class)}:
        return ""
    try:
        checked_schedule(value)
    except ValueError:
        if not callable(value):
            return ""
    return f", and give the schedule as {schedule}: it multiplies {name}"


def whole_number(value: Any) -> int | None:
    """Return a whole number, also one that is written as 1e5 or 5000.0; None for anything else.

    >>> whole_number("1e5"), whole_number(2.5)
    (100000, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, int):
        return value
    try:
        if isinstance(value, str) and len(value) < 40 and value.strip().lstrip("+-").isdecimal():
            return int(value)  # exact where a float is not
        number = float(value)
    except ValueError:
        return None
    return int(number) if number.is_integer() and abs(number) <= 2**53 else None


def _coerce_scalar(value: Any, wanted: type) -> Any:
    if wanted is float:
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            try:
                number = float(value)
            except ValueError:
                raise ValueError("use a number") from None
            except OverflowError:  # a whole number of more than 308 digits
                raise ValueError("use a finite number") from None
            if number == number and abs(number) != float("inf"):
                return number
        raise ValueError("use a finite number")
    if wanted is int:
        whole = whole_number(value)
        if whole is None:
            raise ValueError("use a whole number such as 5000")
        if abs(whole) > LARGEST:
            raise ValueError(f"use a number of at most {LARGEST:,}")
        return whole
    if wanted is bool and not isinstance(value, bool):
        raise ValueError("use true or false")
    if wanted is str and not isinstance(value, str):
        if isinstance(value, PathLike):
            return str(value)
        raise ValueError("use text")
    return value


@dataclass(frozen=True)
class FieldDoc:
    """Annotation and docstring of one field."""

    owner: type
    """The class that declares it."""
    annotation: str
    text: str
    """The docstring under the field."""


def field_docs(config_class: type) -> dict[str, FieldDoc]:
    """Return the documented fields of a dataclass and of its bases, by name."""
    found: dict[str, FieldDoc] = {}
    for owner in reversed(config_class.__mro__):
        if is_dataclass(owner):
            found |= _own_docs(owner)
    return found


def _own_docs(owner: type) -> dict[str, FieldDoc]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    except (OSError, TypeError, SyntaxError):  # a class of an interactive session has no source
        return {}
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = str(following.value.value)
            found[statement.target.id] = FieldDoc(owner, ast.unparse(statement.annotation), text)
    return found
