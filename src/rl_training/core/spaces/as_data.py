"""Spaces as plain data, so that an agent can act where its environment is not installed.

Types, order of keys and exact bounds are kept. Files may be untrusted, so sizes are checked before memory is allocated.
"""

import base64
import binascii
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.core.errors import UserError
from rl_training.core.types import Array

MAX_NUMBERS = 2**23
"""Maximum number of numbers in a space with all its entries: more than an image of 1920 x 1080 pixels has."""
MAX_TEXT = 2**22
"""Maximum number of characters of the compressed bounds of one entry."""
MAX_ENTRIES = 2**12
MAX_DEPTH = 32
LISTED = 32
"""Arrays up to this size are written as a list of numbers, larger ones compressed."""
TYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)  # fmt: skip


def space_to_data(space: Space[Any]) -> dict[str, Any]:
    """Return a space as data that JSON can hold.

    >>> space_to_data(spaces.Box(-1, 1, (2,)))
    {'type': 'Box', 'shape': [2], 'dtype': 'float32', 'low': -1.0, 'high': 1.0}
    """
    if isinstance(space, spaces.Dict):
        entries = [[_checked_key(key), space_to_data(part)] for key, part in space.spaces.items()]
        return {"type": "Dict", "spaces": entries}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_data(part) for part in space.spaces]}
    shape, dtype = list(space.shape or ()), np.dtype(space.dtype).name
    kind: dict[str, Any] = {"type": _kind(space), "shape": shape, "dtype": dtype}
    if dtype not in TYPES or math.prod(shape) > MAX_NUMBERS:
        raise UserError(
            f"a space of {math.prod(shape)} numbers of type {dtype} cannot be saved; use at most {MAX_NUMBERS} of one "
            f"of {', '.join(TYPES)}"
        )
    if isinstance(space, spaces.Box):
        return kind | {"low": _array_to_data(space.low), "high": _array_to_data(space.high)}
    if isinstance(space, spaces.Discrete):
        return kind | {"n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return kind | {"n": _array_to_data(space.nvec), "start": _array_to_data(space.start)}
    number = getattr(space, "n", None)
    return kind | ({"n": number} if isinstance(number, int) else {})


def space_from_data(data: object) -> Space[Any]:
    """Return the space that `space_to_data` described; raise an error if the data is invalid."""
    try:
        return _Reader().space(data, 0)
    except (ValueError, TypeError, KeyError, OverflowError, AssertionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"a saved space cannot be read: {type(error).__name__}: {reason}") from error


class _Reader:
    """Reads a space, and counts numbers and entries before memory is allocated."""

    def __init__(self) -> None:
        self.numbers = self.entries = 0

    def space(self, data: Any, depth: int) -> Space[Any]:
        self.entries += 1
        if depth > MAX_DEPTH or self.entries > MAX_ENTRIES:
            raise ValueError(f"more than {MAX_ENTRIES} entries, or nested deeper than {MAX_DEPTH}")
        if not isinstance(data, Mapping):
            raise TypeError(f"a space is a map, not a {type(data).__name__}")
        kind = data["type"]
        if kind == "Dict":
            parts: Any = [(_checked_key(key), self.space(part, depth + 1)) for key, part in data["spaces"]]
            if len(dict(parts)) != len(parts):
                raise ValueError("a key is written twice")
            return spaces.Dict(parts)  # pairs, because a dict would be sorted by key
        if kind == "Tuple":
            return spaces.Tuple([self.space(part, depth + 1) for part in data["spaces"]])
        return self.leaf(str(kind), self.shape(data["shape"]), _checked_type(data["dtype"]), data)

    def shape(self, data: Any) -> tuple[int, ...]:
        shape = tuple(_whole(side) for side in data)
        self.numbers += math.prod(max(side, 1) for side in shape)  # the other sides count next to a 0, too
        if len(shape) > MAX_DEPTH or min(shape, default=0) < 0 or self.numbers > MAX_NUMBERS:
            raise ValueError(f"more than {MAX_NUMBERS} numbers, or an invalid shape")
        return shape

    def leaf(
        self, kind: str, shape: tuple[int, ...], dtype: np.dtype[Any], data: Mapping[str, Any]
    ) -> Space[Any]:
        if kind == "Box":
            low, high = (_array_from_data(data[name], shape, dtype) for name in ("low", "high"))
            return spaces.Box(low, high, shape, dtype=dtype.type)
        if dtype.kind not in "iu":
            raise ValueError(f"{kind} of type {dtype}")
        if kind == "Discrete":
            n, start = (int(_array_from_data(data[name], (), dtype)) for name in ("n", "start"))
            if shape or n < 1:
                raise ValueError(f"Discrete of {n} values and shape {shape}")
            # older versions of Gymnasium support no other type
            other: dict[str, Any] = {} if dtype == np.int64 else {"dtype": dtype.type}
            return spaces.Discrete(n, start=start, **other)
        if kind == "MultiDiscrete":
            counts, starts = (_array_from_data(data[name], shape, dtype) for name in ("n", "start"))
            return spaces.MultiDiscrete(counts, dtype=dtype.type, start=starts)
        if kind == "MultiBinary" and dtype == np.int8:
            # Gymnasium distinguishes MultiBinary(n) from MultiBinary([n])
            number = _whole(data["n"]) if "n" in data else None
            if number is not None and shape != (number,):
                raise ValueError(f"MultiBinary of {number} numbers and shape {shape}")
            return spaces.MultiBinary(shape if number is None else number)
        raise ValueError(f"unknown kind {kind[:50]!r}")


def _kind(space: Space[Any]) -> str:
    for known in (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary):
        if isinstance(space, known):
            return known.__name__
    raise UserError(f"a space of type {type(space).__name__} cannot be saved")


def _array_to_data(array: Array) -> Any:
    """Return one number if all have the same bits, a short list, or compressed bytes."""
    flat = np.ascontiguousarray(array).reshape(-1)
    rows = flat.view(np.uint8).reshape(flat.size, flat.itemsize)
    if flat.size and (rows == rows[0]).all():
        return _number_to_data(flat[0])
    if flat.size <= LISTED:
        return [_number_to_data(number) for number in flat]
    little = flat.astype(flat.dtype.newbyteorder("<"), copy=False)
    text = base64.b64encode(zlib.compress(little.tobytes(), 9)).decode("ascii")
    if len(text) > MAX_TEXT:
        raise UserError(
            f"the bounds of a space of {flat.size} numbers take {len(text)} characters even when compressed; use the "
            "same bounds for all of them"
        )
    return {"zlib": text}


def _number_to_data(number: Any) -> Any:
    """Return a JSON number, or text if it is not finite."""
    value = number.item()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _array_from_data(data: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    size = math.prod(shape)
    if isinstance(data, Mapping):
        text = data["zlib"]
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise ValueError("compressed bounds are too long, or not text")
        little = dtype.newbyteorder("<")
        return np.frombuffer(_unpacked(text, size * dtype.itemsize), little).astype(dtype).reshape(shape)
    if isinstance(data, list):
        if len(data) != size:
            raise ValueError(f"{len(data)} bounds for {size} numbers")
        return np.array([_number_from_data(item, dtype) for item in data], dtype).reshape(shape)
    return np.full(shape, _number_from_data(data, dtype), dtype)


def _unpacked(text: str, size: int) -> bytes:
    """Return exactly `size` bytes; a small text could otherwise expand to any size."""
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(base64.b64decode(text, validate=True), size + 1)
    except (zlib.error, binascii.Error) as error:
        raise ValueError(f"compressed bounds are damaged ({error})") from error
    if len(content) != size:
        raise ValueError(f"compressed bounds do not have {size} bytes")
    return content


def _number_from_data(data: Any, dtype: np.dtype[Any]) -> Any:
    """Return a number that the type can represent; NumPy would round or wrap others silently."""
    if dtype.kind == "f":
        if data in ("inf", "-inf"):
            return float(data)
        if isinstance(data, bool) or not isinstance(data, int | float):
            raise TypeError(f"{str(data)[:50]!r} is not a number")
        smallest, largest = float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    elif dtype.kind == "b":
        if not isinstance(data, bool):
            raise TypeError(f"{str(data)[:50]!r} is neither true nor false")
        return data
    else:
        _whole(data)
        smallest, largest = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if not smallest <= data <= largest:
        raise ValueError(f"{str(data)[:50]} does not fit {dtype}")
    return data


def _whole(data: Any) -> int:
    if not isinstance(data, int) or isinstance(data, bool):
        raise TypeError(f"{str(data)[:50]!r} is not a whole number")
    return data


def _checked_type(name: Any) -> np.dtype[Any]:
    if not isinstance(name, str) or name not in TYPES:
        raise ValueError(f"unknown type {str(name)[:50]!r}")
    return np.dtype(name)


def _checked_key(key: Any) -> str | int:
    if isinstance(key, str | int) and not isinstance(key, bool):
        return key
    raise UserError(f"a Dict space with the key {str(key)[:50]!r} cannot be saved; use text")
