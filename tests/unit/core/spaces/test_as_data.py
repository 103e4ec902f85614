"""Spaces written as data come back equal to the last bit; data of anybody's is read without harm."""

import base64
import json
import tracemalloc
import zlib
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rl_training.core.errors import UserError
from rl_training.core.spaces import as_data
from rl_training.core.spaces.as_data import space_from_data, space_to_data

RNG = np.random.default_rng(0)
IRREGULAR = RNG.normal(size=(5, 40))
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
SPACES: dict[str, Space[Any]] = {
    "constant bounds": spaces.Box(-0.1, 0.3, (2, 3), np.float32),
    "double bounds": spaces.Box(-0.1, 1 / 3, (4,), np.float64),
    "half bounds": spaces.Box(np.float16(-0.1), np.float16(0.7), (4,), np.float16),
    "no bounds": spaces.Box(-np.inf, np.inf, (4,), np.float32),
    "bounds of every kind": spaces.Box(np.array([-np.inf, 0.1, -2]), np.array([1, np.inf, 3]), dtype=np.float64),
    "largest bounds": spaces.Box(np.finfo(np.float32).min, np.finfo(np.float32).max, (3,), np.float32),
    "negative zero": spaces.Box(np.array([-0.0, 0.0], np.float32), np.zeros(2, np.float32), dtype=np.float32),
    "many bounds": spaces.Box(IRREGULAR, IRREGULAR + 1, dtype=np.float64),
    "one number": spaces.Box(0.0, 1.0, (), np.float32),
    "no number": spaces.Box(0.0, 1.0, (0, 3), np.float32),
    "image": spaces.Box(0, 255, (96, 96, 3), np.uint8),
    "image with a mask": spaces.Box(np.zeros((64, 64), np.uint8), np.tri(64, dtype=np.uint8) * 200, dtype=np.uint8),
    "truths": spaces.Box(np.array([False, False]), np.array([True, False]), dtype=np.bool_),
    "large whole numbers": spaces.Box(0, 2**63, (2,), np.uint64),
    "smallest whole numbers": spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64),
    "discrete": spaces.Discrete(7),
    "discrete from elsewhere": spaces.Discrete(3, start=-5),
    "small discrete": spaces.Discrete(3, start=1, dtype=np.int32),
    "many discrete": spaces.MultiDiscrete([3, 4, 5], start=[-1, 0, 7]),
    "discrete in a table": spaces.MultiDiscrete(np.arange(1, 61).reshape(6, 10), dtype=np.int32),
    "bits": spaces.MultiBinary(5),
    "bits by shape": spaces.MultiBinary([5]),
    "bits in a table": spaces.MultiBinary((2, 3)),
    "pair": spaces.Tuple([BOX, spaces.Discrete(2)]),
    "nothing": spaces.Tuple([]),
    "nested": spaces.Dict(
        {"arm": spaces.Dict({"angle": BOX, "a/b": spaces.Discrete(3)}), "pair": spaces.Tuple([spaces.MultiBinary(2)])}
    ),
    "keys in an order of their own": spaces.Dict(OrderedDict(z=BOX, a=spaces.Discrete(2), m=BOX)),
    "numbers as keys": spaces.Dict({2: BOX, 1: spaces.Discrete(2)}),
}  # fmt: skip


def there_and_back(space: Space[Any]) -> Space[Any]:
    return space_from_data(json.loads(json.dumps(space_to_data(space), allow_nan=False)))


def assert_same(found: Space[Any], wanted: Space[Any]) -> None:
    assert type(found) is type(wanted)
    assert found == wanted
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    if isinstance(wanted, spaces.Dict):
        assert isinstance(found, spaces.Dict)
        assert list(found.spaces) == list(wanted.spaces)
        for key, part in wanted.spaces.items():
            assert_same(found.spaces[key], part)
    if isinstance(wanted, spaces.Tuple):
        assert isinstance(found, spaces.Tuple)
        for one, other in zip(found.spaces, wanted.spaces, strict=True):
            assert_same(one, other)
    for name in ("low", "high", "nvec", "start"):
        if hasattr(wanted, name):
            one, other = np.asarray(getattr(found, name)), np.asarray(getattr(wanted, name))
            assert one.dtype == other.dtype, name
            assert one.tobytes() == other.tobytes(), name


@pytest.mark.parametrize("name", SPACES)
def test_a_space_comes_back_to_the_last_bit(name: str) -> None:
    assert_same(there_and_back(SPACES[name]), SPACES[name])


@given(
    st.sampled_from([np.float16, np.float32, np.float64]).flatmap(
        lambda dtype: arrays.arrays(dtype, st.integers(0, 40), elements={"allow_nan": False})
    )
)
def test_any_bounds_come_back(low: Any) -> None:
    space = spaces.Box(low, np.full_like(low, np.inf), dtype=low.dtype.type)
    assert_same(there_and_back(space), space)


def test_constant_bounds_are_one_number_and_large_ones_are_compressed() -> None:
    data = space_to_data(SPACES["image"])
    assert (data["low"], data["high"]) == (0, 255)
    assert len(json.dumps(space_to_data(SPACES["image with a mask"]))) < 1000
    assert space_to_data(SPACES["negative zero"])["low"] == [-0.0, 0.0]


UNSAVED = {
    "text": (spaces.Text(3), "Text"),
    "long double": (spaces.Box(-1, 1, (2,), np.longdouble), "float"),
    "a key that is no text": (spaces.Dict({(1, 2): BOX}), r"key '\(1, 2\)'"),
    "too many numbers": (spaces.MultiBinary(2**23 + 1), "8388609 numbers"),
}


@pytest.mark.parametrize("name", UNSAVED)
def test_what_cannot_be_saved_is_told(name: str) -> None:
    space, message = UNSAVED[name]
    with pytest.raises(UserError, match=message):
        space_to_data(space)


def test_bounds_without_any_order_are_refused_before_they_fill_the_manifest(monkeypatch: Any) -> None:
    monkeypatch.setattr(as_data, "MAX_TEXT", 1000)
    with pytest.raises(UserError, match="same bounds"):
        space_to_data(SPACES["many bounds"])


def box(**changes: Any) -> dict[str, Any]:
    return {"type": "Box", "shape": [2], "dtype": "float32", "low": -1.0, "high": 1.0} | changes


def nested(depth: int) -> dict[str, Any]:
    return {"type": "Tuple", "spaces": [nested(depth - 1)] if depth else []}


BOMB = base64.b64encode(zlib.compress(bytes(2**26))).decode()
DISCRETE = {"type": "Discrete", "shape": [], "dtype": "int64", "n": 2, "start": 0}
HOSTILE: dict[str, Any] = {
    "nothing": None,
    "text": "Box",
    "a list": [],
    "no type": {"shape": [2]},
    "an unknown type": box(type="os.system"),
    "a type that is a list": box(type=["Box"]),
    "a type of 1 MB": box(type="x" * 10**6),
    "a dtype that is code": box(dtype="__import__('os')"),
    "a dtype of records": box(dtype="V1000000000"),
    "objects": box(dtype="object"),
    "a dtype that is a map": box(dtype={"names": ["a"], "formats": ["i4"]}),
    "shape of text": box(shape="22"),
    "negative shape": box(shape=[-2]),
    "true as shape": box(shape=[True]),
    "fractions as shape": box(shape=[2.0]),
    "endless shape": box(shape=[2**62]),
    "endless shape of nothing": box(shape=[2**62, 0]),
    "endless product": box(shape=[2**16, 2**16]),
    "many sides": box(shape=[1] * 100),
    "many spaces that are almost too large": {"type": "Tuple", "spaces": [box(shape=[2**22])] * 3},
    "many entries": {"type": "Tuple", "spaces": [nested(0)] * 5000},
    "nested deeply": nested(200),
    "entries of text": {"type": "Tuple", "spaces": "abc"},
    "pairs of three": {"type": "Dict", "spaces": [["a", box(), 1]]},
    "a key twice": {"type": "Dict", "spaces": [["a", box()], ["a", box()]]},
    "a key that is a list": {"type": "Dict", "spaces": [[["a"], box()]]},
    "no bounds": {"type": "Box", "shape": [2], "dtype": "float32"},
    "bounds of text": box(low="low"),
    "bounds that are no number": box(low="nan"),
    "bounds of true": box(low=True),
    "bounds of nothing": box(low=None),
    "bounds that do not fit": box(high=1e300),
    "bounds beyond all numbers": box(high=10**400),
    "bounds in the wrong order": box(low=2.0),
    "too few bounds": box(low=[1.0]),
    "too many bounds": box(low=[0.0] * 10**5),
    "lists in lists": box(low=[[0.0], [0.0]]),
    "a byte of 256": box(dtype="uint8", low=0, high=256),
    "compressed bounds that are text": box(low={"zlib": "???"}),
    "compressed bounds that are damaged": box(low={"zlib": "AAAA"}),
    "compressed bounds that are nothing": box(low={"zlib": None}),
    "compressed bounds of another name": box(low={"gzip": ""}),
    "a bomb": box(low={"zlib": BOMB}),
    "a larger bomb": box(shape=[2**20], low={"zlib": BOMB}),
    "no choice": DISCRETE | {"n": 0},
    "negative choice": DISCRETE | {"n": -3},
    "endless choice": DISCRETE | {"n": 2**70},
    "choice of fractions": DISCRETE | {"dtype": "float32"},
    "choice with a shape": DISCRETE | {"shape": [3]},
    "start of text": DISCRETE | {"start": "0"},
    "no choices": {"type": "MultiDiscrete", "shape": [2], "dtype": "int64", "n": 0, "start": 0},
    "bits of another size": {"type": "MultiBinary", "shape": [2], "dtype": "int8", "n": 2**40},
    "no bits": {"type": "MultiBinary", "shape": [0], "dtype": "int8"},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_impossible_data_is_refused_in_a_sentence_without_much_memory(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as caught:
            space_from_data(HOSTILE[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)
    assert peak < 128 << 20
