"""Plain data: values that are unchanged after they are written to a file and read back."""

from typing import Any

PLAIN = "numbers, text, true, false, null, lists and maps"
"""Plain data, as messages describe it."""


def is_plain(value: Any) -> bool:
    """Return whether a value is plain data."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(part) for key, part in value.items())
    if isinstance(value, list):
        return all(is_plain(part) for part in value)
    return value is None or type(value) in (bool, int, float, str)


def plain(value: Any) -> Any:
    """Return a value with all tuples in it replaced by lists.

    >>> plain({"a": (1, (2,))})
    {'a': [1, [2]]}
    """
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def num_values(value: Any) -> int:
    """Return the number of values in plain data, with keys, lists and maps.

    >>> num_values({"a": [1, 2]})
    5
    """
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(num_values, value.values()))
    return 1 + sum(map(num_values, value)) if isinstance(value, list | tuple) else 1
