"""The setting `info_keywords`: numbers of an environment's `info`, and how those of an episode become one."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from rl_training.core.errors import did_you_mean

InfoKeywords: TypeAlias = Sequence[str | Mapping[str, str]]
"""As a user gives them; after the checks, a tuple of texts such as `fuel` and `distance:last`."""
REDUCTIONS = ("mean", "last", "sum", "min", "max")
FORMS = f"use a list of names such as [fuel, distance:last]; after the colon: {', '.join(REDUCTIONS)}"


def checked_keywords(value: Any) -> tuple[str, ...]:
    """Return keywords as they are saved, or raise ValueError with the remedy; a single one needs no list."""
    found: dict[str, str] = {}
    for entry in value if isinstance(value, list | tuple) else [value]:
        pairs = entry.items() if isinstance(entry, Mapping) else [_split(entry)]
        for name, reduction in pairs:
            if not isinstance(name, str) or not name or not name.isprintable():
                raise ValueError(FORMS)
            if reduction not in REDUCTIONS:
                wrong = str(reduction)
                raise ValueError(
                    f"'{name}' takes one of {', '.join(REDUCTIONS)}{did_you_mean(wrong, REDUCTIONS)}"
                )
            if name in found:
                raise ValueError(f"'{name}' is named twice; name it once")
            found[name] = reduction
    return tuple(
        name if reduction == "mean" and ":" not in name else f"{name}:{reduction}"
        for name, reduction in found.items()
    )


def keyword_parts(keyword: str) -> tuple[str, str]:
    """Return the name of a checked keyword and its reduction.

    >>> keyword_parts("distance:last"), keyword_parts("fuel")
    (('distance', 'last'), ('fuel', 'mean'))
    """
    name, colon, reduction = keyword.rpartition(":")
    return (name, reduction) if colon else (keyword, "mean")


def _split(entry: Any) -> tuple[str, str]:
    if not isinstance(entry, str):
        raise ValueError(FORMS)
    return keyword_parts(entry.strip())
